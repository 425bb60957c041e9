//! Tests that a capture has the ranges of NVTX, and that the report shows their memory.

use gpuheap_trace::WarningKind;

use crate::*;

#[test]
fn ranges_have_their_memory() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder, "ranges.c");
    let output = tempfile::tempdir().unwrap();
    let ran = command(&output, &[], &["--", program.to_str().unwrap()]);
    assert_eq!((ran.code, &*ran.stdout), (0, "levels: 0 1 1 1 1 1 1 0 0 0 -1\n"), "{}", ran.stderr);
    let run = Run { folder: output, ran };
    let trace = run.traces().remove(0);
    let report = gpuheap_report::Report::new(&trace, gpuheap_report::At::Peak).unwrap();
    let rows: Vec<_> = report
        .ranges
        .iter()
        .map(|range| {
            let name = &*range.name;
            let left = range.left_bytes;
            (name, range.ranges, range.peak_bytes, range.allocations, range.allocated_bytes, left)
        })
        .collect();
    // The peak is 10 MiB: the main thread holds 3 blocks of 1 MiB while another thread takes 7 MiB.
    // The main thread frees the last of the 3 blocks afterwards. NVTX ranges during which no memory
    // is taken or freed are left out.
    let all = 10 * MIB;
    assert_eq!(
        rows,
        [
            ("all threads", 1, all, 1, 7 * MIB, 7 * MIB),
            ("library: setup", 1, all, 1, 5, 5),
            ("program", 1, all, 7, 12 * MIB + 5, 2 * MIB + 5),
            ("wide ä", 1, all, 0, 0, 0),
            ("step", 3, 7 * MIB, 6, 12 * MIB, 2 * MIB),
        ]
    );
    let text = gpuheap_report::text::render(&report);
    assert!(text.contains("Which range of the program had the peak?"), "{text}");
    let json = gpuheap_report::json::render(&[report]).unwrap();
    assert!(json.contains("\"name\": \"library: setup\""), "{json}");
}

/// The child process opens an NVTX range and takes no memory, so it writes no capture. The parent
/// leaves 5,010 ranges open, so its capture has only the first 4,096.
#[test]
fn endless_ranges_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder, "ranges.c");
    let output = tempfile::tempdir().unwrap();
    let ran = command(&output, &["--max-peak", "1GiB"], &["--", program.to_str().unwrap(), "many"]);
    assert_eq!((ran.code, &*ran.stdout), (0, ""), "{}", ran.stderr);
    let run = Run { folder: output, ran };
    let traces = run.traces();
    let [trace] = &traces[..] else { panic!("{}", run.ran.stderr) };
    let lost: Vec<_> =
        trace.warnings().iter().map(|warning| (&warning.kind, warning.count)).collect();
    assert_eq!((trace.ranges().len(), &lost[..]), (4096, &[(&WarningKind::LostRange, 914)][..]));
    assert!(trace.ranges().iter().all(|range| &*range.name == "without an end"));
}

#[test]
fn variable_of_profiler_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--", "sh", "-c", "echo $NVTX_INJECTION64_PATH"];
    let mut gpuheap = gpuheap(&folder, &words);
    let ran = ran(gpuheap.env("NVTX_INJECTION64_PATH", "/opt/profiler.so"));
    assert_eq!(ran.stdout, "/opt/profiler.so\n");
}
