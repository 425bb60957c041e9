//! Programs that are hard to record. Each program must behave as it does without the recorder, and
//! its figures must be correct.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use crate::*;

#[test]
fn cancelled_thread_ends_after_its_call() {
    let run = Hostile::new().run(&["cancels"]);
    assert_eq!((run.ran.code, &*run.ran.stdout), (3, "cancelled: 1\n"), "{}", run.ran.stderr);
    let trace = run.traces().remove(0);
    assert_eq!(trace.summary().left_live_bytes, MIB);
    assert!(trace.thread_info(0).unwrap().ended_ns.is_some());
}

#[test]
fn report_of_pytorch_survives_cancellation() {
    let hostile = Hostile::new().with(&["--frameworks"]);
    let run = hostile.run(&["reports", hostile.folder()]);
    let said = "reported: 512 1\ncancelled: 1\n";
    assert_eq!((run.ran.code, &*run.ran.stdout), (3, said), "{}", run.ran.stderr);
    assert_eq!(run.traces()[0].summary().allocations, 2);
}

#[test]
fn exit_within_recorder_ends_program() {
    let run = Hostile::new().run(&["exits"]);
    assert_eq!(run.ran.code, 5, "{}", run.ran.stderr);
}

#[test]
fn limit_of_file_sizes_stops_recording() {
    for limit in ["4000", "100000", "1200000"] {
        let run = Hostile::new().run(&["file-limit", limit]);
        assert_eq!(run.ran.code, 3, "{limit}: {}", run.ran.stderr);
        let sizes = run.captures().into_iter().map(|path| std::fs::metadata(path).unwrap().len());
        let sizes: Vec<u64> = sizes.collect();
        // A limit of 4000 bytes leaves no room for the file's first part, so the file is removed.
        assert_eq!(sizes.len(), usize::from(limit != "4000"));
        assert!(sizes.iter().all(|&size| size <= limit.parse().unwrap()), "{sizes:?}");
        assert!(run.ran.stderr.contains("limit of file sizes"), "{limit}: {}", run.ran.stderr);
    }
}

#[test]
fn thread_that_begins_late_ends() {
    let run = Hostile::new().run(&["late-thread"]);
    assert_eq!(run.ran.code, 3);
    assert!(run.traces()[0].thread_info(0).unwrap().ended_ns.is_some());
}

#[test]
fn raw_clone_has_capture() {
    let run = Hostile::new().with(&["--limit", "4MiB"]).run(&["clones"]);
    let figures: BTreeSet<_> = run.traces().iter().map(figures).collect();
    assert_eq!(figures, BTreeSet::from([(0, 0, 1), (1, MIB, 0)]), "{}", run.ran.stderr);
}

#[test]
fn physical_memory_lives_until_last_unmap() {
    let run = Hostile::new().run(&["maps"]);
    assert_eq!((run.ran.code, &*run.ran.stdout), (3, "failed: 1 1 1 1\n"));
    let summary = run.traces()[0].summary();
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (6 * MIB, 0));
}

#[test]
fn driver_is_read_on_its_device() {
    let run = Hostile::new().with(&["--emulate", "16GiB,16GiB"]).run(&["other-device"]);
    let traces = run.traces();
    let devices = &traces[0].recording().unwrap().devices;
    let read: Vec<_> = devices.iter().map(|device| (device.ordinal, device.used_before)).collect();
    assert_eq!(read, [(0, Some(0)), (1, None)], "{}", run.ran.stderr);
}

#[test]
fn closed_library_keeps_its_names() {
    let hostile = Hostile::new();
    let run = hostile.run(&["closes", hostile.folder()]);
    assert_eq!(run.ran.stdout, "same address: 1\n", "{}", run.ran.stderr);
    let trace = run.traces().remove(0);
    let allocations = trace.events().iter().filter(|event| matches!(event.op, Op::Allocate { .. }));
    let callers = allocations.map(|event| trace.stack(event.stack).nth(1).unwrap());
    let names: Vec<_> = callers.map(|frame| frame.function.to_string()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[test]
fn destructor_of_library_frees() {
    let hostile = Hostile::new();
    let run = hostile.run(&["late-free", hostile.folder()]);
    assert_eq!(figures(&run.traces()[0]), (1, 0, 0), "{}", run.ran.stderr);
    assert_eq!(run.traces()[0].recording().unwrap().end, RecordingEnd::Exit);
}

#[test]
fn stopped_recording_takes_no_memory() {
    let options = ["--max-size", "2MiB", "--max-leak", "1TiB"];
    let run = Hostile::new().with(&options).run(&["stacks"]);
    assert_eq!(run.ran.stdout, "grows: 0\n", "{}", run.ran.stderr);
    assert!(run.ran.stderr.contains("the gates were not checked to the end"), "{}", run.ran.stderr);
    let size = std::fs::metadata(&run.captures()[0]).unwrap().len();
    assert!(size <= 2 * MIB, "{size}");
    let traces = run.traces();
    let recording = traces[0].recording().unwrap();
    assert_eq!(recording.end, RecordingEnd::Stopped("--max-size is reached".into()));
    let said = "recording stopped: --max-size is reached; the program goes on";
    assert!(run.ran.stderr.contains(said), "{}", run.ran.stderr);
}

#[test]
fn requests_wait_for_others_that_fail() {
    let options = ["--emulate", "64MiB", "--limit", "100MiB", "--no-stacks", "--max-size", "2MiB"];
    let run = Hostile::new().with(&options).run(&["crowd"]);
    assert_eq!(run.ran.stdout, "refused with room: 0\n", "{}", run.ran.stderr);
}

#[test]
fn stacks_of_fibres_are_not_compared() {
    let run = Hostile::new().run(&["fibres"]);
    assert_eq!(run.ran.code, 3, "{}", run.ran.stderr);
    assert_eq!(figures(&run.traces()[0]), (2, 2 * MIB, 0));
}

/// The program removes gpuheap's temporary files. It also adds a file that is not a capture to
/// gpuheap's list of captures. The command must ignore that file.
#[test]
fn list_has_captures_of_run_only() {
    let folder = tempfile::tempdir().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let script = "rm -f \"$TMPDIR\"/*gpuheap-run-*; mkfifo a.fifo; printf '%s\\0' \"$PWD/a.fifo\" >> \
                  \"$GPUHEAP_RUN_LIST\"; exec \"$0\" linked leak";
    let command = ["--emulate", "16GiB", "--output", "a.gph", "--", "sh", "-c", script];
    let mut gpuheap = gpuheap(&folder, &command);
    let ran = ran(gpuheap.arg(program()).env("TMPDIR", temporary.path()));
    assert!(ran.stderr.contains("3 MiB in 1 allocation"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("fifo"), "{}", ran.stderr);
}

/// A child holds 4 MiB of a limit of 6 MiB. In each case, the child is unusual: its first thread
/// has ended, it runs as another user, it runs another program, or its memory is on another device.
#[test]
fn limit_of_tree_follows_processes() {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    for (child_does, code) in [("thread", 2), ("user", 2), ("exec", 0), ("device", 0)] {
        if child_does == "user" && !is_root {
            continue;
        }
        let options = ["--emulate", "16GiB,16GiB", "--limit", "6MiB", "--limit-tree"];
        let run = Hostile::new().with(&options).run(&["shares", child_does]);
        let said = format!("parent: {code}\n");
        assert_eq!(run.ran.stdout, said, "{child_does}: {}", run.ran.stderr);
    }
}

#[test]
fn lock_of_killed_process_is_taken() {
    let run = Hostile::new().with(&["--limit", "6MiB", "--limit-tree"]).run(&["half-done"]);
    assert_eq!(run.ran.stdout, "parent: 0\n", "{}", run.ran.stderr);
}

#[test]
fn children_with_their_own_preload_are_recorded() {
    let hostile = Hostile::new();
    let library = hostile.folder.path().join("libfirst.so");
    let run = hostile.run(&["preloads", library.to_str().unwrap()]);
    assert_eq!(run.ran.code, 3, "{}", run.ran.stderr);
    let figures: Vec<_> = run.traces().iter().map(figures).collect();
    assert_eq!(figures, [(1, MIB, 0); 5], "{}", run.ran.stderr);
}

#[test]
fn odd_paths_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"100%p \xff");
    std::fs::create_dir(folder.path().join(odd)).unwrap();
    let mut command = gpuheap(&folder, &["--emulate", "16GiB", "--on-exit", "json", "--output"]);
    command.arg(Path::new(odd).join("a%p.%p.gph")).arg("--").arg(program());
    let ran = ran(command.args(["linked", "leak"]));
    let json: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    let capture = json["processes"][0]["capture"].as_str().unwrap();
    let name = capture.rsplit('/').next().unwrap();
    assert_eq!(name, format!("a%p.{}.gph", json["processes"][0]["pid"]));
    assert!(folder.path().join(odd).join(name).exists());
}

#[test]
fn runs_of_one_name_stay_apart() {
    let folder = tempfile::tempdir().unwrap();
    let inner = "\"$0\" run --emulate 16GiB --output a.gph -- \"$1\" linked leak; exit 0";
    let command = ["--output", "a.gph", "--", "sh", "-c", inner, env!("CARGO_BIN_EXE_gpuheap")];
    let ran = ran(gpuheap(&folder, &command).arg(program()));
    let said = "gpuheap: no process allocated GPU memory, so nothing was recorded\n  without a GPU: \
                gpuheap run --emulate -- ...\n";
    assert!(ran.stderr.contains("3 MiB in 1 allocation"), "{}", ran.stderr);
    assert!(ran.stderr.ends_with(said), "{}", ran.stderr);
}

#[test]
fn programs_without_recorder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let fixed = folder.path().join("static");
    assert!(compiler().args(["-static", "-o"]).args([&fixed, &source]).status().unwrap().success());
    let file = |name: &str, text: &[u8], mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let script = file("script", format!("#! {} -x\n", fixed.display()).as_bytes(), 0o755);
    let small = file("small", b"\x7fELF\x01\x01", 0o755);
    let mut refused = vec![(script, "it is statically linked"), (small, "it is a 32-bit program")];
    let group = file("group", b"#!/bin/sh\n", 0o755);
    // Only root may give a file away.
    if chown(&group, None, Some(1)).is_ok() {
        std::fs::set_permissions(&group, Permissions::from_mode(0o2755)).unwrap();
        refused.push((group, "it is set-uid, set-gid or has capabilities"));
    }
    for (path, said) in refused {
        let ran = ran(gpuheap(&folder, &["--"]).arg(path));
        assert_eq!(ran.code, 2, "{said}: {}", ran.stderr);
        assert!(ran.stderr.contains(said) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}

/// Returns the number of allocations, the live bytes at the end, and the number of failed requests.
fn figures(trace: &Trace) -> (u64, u64, u64) {
    let summary = trace.summary();
    (summary.allocations, summary.left_live_bytes, summary.failures)
}

/// The program `hostile.c` and its libraries.
struct Hostile {
    folder: TempDir,
    options: Vec<&'static str>,
}

impl Hostile {
    fn new() -> Hostile {
        let folder = tempfile::tempdir().unwrap();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let compile = |name: &str, words: &[&str]| {
            let mut compile = compiler();
            compile.args(["-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-Werror", "-o"]);
            compile.arg(folder.path().join(name));
            compile.arg(crates.join("gpuheap-preload/tests/hostile.c"));
            compile.arg(libraries().path().join("libcuda.so.1")).args(words);
            assert!(compile.status().unwrap().success());
        };
        // The recorder calls functions of the program.
        compile("hostile", &["-rdynamic", "-pthread", "-ldl"]);
        compile("libfirst.so", &["-DLIBRARY=first", "-shared", "-fPIC"]);
        compile("libsecond.so", &["-DLIBRARY=second", "-shared", "-fPIC"]);
        compile("libc10.so", &["-DC10", "-shared", "-fPIC", "-Wl,-soname,libc10.so"]);
        Hostile { folder, options: Vec::new() }
    }

    fn with(self, options: &[&'static str]) -> Hostile {
        Hostile { options: options.to_vec(), ..self }
    }

    fn folder(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let program = self.folder.path().join("hostile");
        let words = [&["--", program.to_str().unwrap()], arguments].concat();
        let emulated: &[&str] = match self.options.contains(&"--emulate") {
            true => &[],
            false => &["--emulate", "16GiB"],
        };
        let ran = ran(&mut gpuheap(&folder, &[emulated, &self.options, &words].concat()));
        Run { folder, ran }
    }
}
