//! Tests `gpuheap run`. A C program calls the emulated driver in every possible way, and its
//! captures are exact to the byte. Needs a C compiler: `CC`, else `cc`.
#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../command/mod.rs"]
mod command;
mod copies;
mod hostile;
#[path = "../../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;
mod names;
mod publish;
mod ranges;
#[path = "../schema/mod.rs"]
mod schema;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_trace::{MemoryKind, Op, ReadOptions, RecordingEnd, Trace};
use tempfile::TempDir;

use crate::command::{Ran, ran};

const MIB: u64 = 1 << 20;

#[test]
fn each_way_in_is_recorded() {
    for way in ["linked", "dlsym", "address"] {
        let run = Run::of(&[way, "leak"]);
        assert_eq!((run.ran.code, &*run.ran.stdout), (3, "taken 18874369, held 3145729\n"));
        let [trace] = &run.traces()[..] else { panic!("{way}: {}", run.ran.stderr) };
        let summary = trace.summary();
        let figures = (summary.allocations, summary.peak_live_bytes, summary.left_live_bytes);
        assert_eq!(figures, (4, 5 * MIB, 3 * MIB + 1), "{way}");
        assert_eq!(trace.recording().unwrap().end, RecordingEnd::Exit);
        for event in trace.events() {
            let Op::Allocate { .. } = event.op else { continue };
            let names: Vec<_> =
                trace.stack(event.stack).map(|frame| &*frame.function).take(3).collect();
            assert_eq!(names, ["allocate", "leak", "main"], "{way}");
        }
    }
}

#[test]
fn each_family_is_recorded() {
    for way in ["linked", "address"] {
        let run = Run::of(&[way, "families"]);
        let pitched = 512 * 2 * 10;
        let taken = pitched + 12 * MIB + 7;
        assert_eq!(
            run.ran.stdout,
            format!("again: 1\ntaken {taken}, held 7\n"),
            "{}",
            run.ran.stderr
        );
        let [device, host] = &run.traces()[..] else { panic!("{}", run.ran.stderr) };
        let sizes = |trace: &Trace| {
            let all = trace.events().iter().filter_map(|event| match event.op {
                Op::Allocate { allocation, bytes } => Some((trace.kind(allocation), bytes)),
                _ => None,
            });
            all.collect::<Vec<_>>()
        };
        use MemoryKind::{
            Device, Managed, Physical, Pinned, Pitched, Pool, Registered, StreamOrdered,
        };
        let expected = [
            (Pitched, pitched),
            (Managed, MIB),
            (StreamOrdered, 4 * MIB),
            (Pool, 5 * MIB),
            (Physical, 2 * MIB),
            (Device, 7),
        ];
        assert_eq!(sizes(device), expected);
        // Different stacks at the same stack pointer are recorded as different.
        let line = |stack| {
            let mut frames = device.stack(stack);
            frames.find(|frame| &*frame.function == "families").map(|frame| frame.line)
        };
        let allocations = device.events().iter().filter(|event| event.stack > 0);
        let lines: Vec<_> = allocations.map(|event| line(event.stack).unwrap()).collect();
        assert!(lines.is_sorted_by(|one, other| one < other), "{lines:?}");
        assert_eq!(sizes(host), [(Pinned, 1000), (Pinned, 3000), (Registered, 8192)]);
        let summary = device.summary();
        assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (taken, 7));
        assert_eq!(host.summary().left_live_bytes, 1000);
    }
}

/// The emulated driver does not support these functions, so the program uses a small driver in C.
#[test]
fn arrays_and_graphs_are_recorded() {
    let run = with_other_driver(&[], &[]);
    assert_eq!(run.ran.code, 0, "{}", run.ran.stderr);
    let trace = run.traces().remove(0);
    let all = trace.events().iter().filter_map(|event| match event.op {
        Op::Allocate { allocation, bytes } => Some((trace.kind(allocation), bytes)),
        _ => None,
    });
    use MemoryKind::{Array, Graph, Imported};
    // The first two arrays have 100 × 20 × 4 floats and 8 × 4 × 2 halves. The third also has 8 × 4
    // × 2 halves, and a mipmap level of 4 × 2 × 1 halves.
    let expected = [(Array, 32_000), (Array, 128), (Array, 144), (Imported, 0), (Graph, 5000)];
    assert_eq!(all.collect::<Vec<_>>(), expected);
    assert_eq!(trace.summary().left_live_bytes, 128);
}

/// The driver answers the first request after 1.5 s.
#[test]
fn request_waits_for_slow_failure() {
    let run = with_other_driver(&["--limit", "100"], &["limit"]);
    assert_eq!((run.ran.code, &*run.ran.stdout), (0, "2 0; 0 2 1\n"), "{}", run.ran.stderr);
}

/// Runs the program in `other_driver.c` with the driver in the same file.
fn with_other_driver(options: &[&str], arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let driver = folder.path().join("libcuda.so.1");
    let built = folder.path().join("others");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let source = crates.join("gpuheap-preload/tests/other_driver.c");
    let compile = |output: &Path, words: &[&str]| {
        let mut compile = compiler();
        compile.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(output);
        assert!(compile.arg(&source).args(words).status().unwrap().success());
    };
    compile(&driver, &["-DDRIVER", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    compile(&built, &[driver.to_str().unwrap(), "-pthread"]);
    let output = tempfile::tempdir().unwrap();
    let words = [options, &["--", built.to_str().unwrap()], arguments].concat();
    let mut gpuheap = gpuheap(&output, &words);
    let ran = ran(gpuheap.env("LD_LIBRARY_PATH", folder.path()));
    Run { folder: output, ran }
}

#[test]
fn leaks_are_attributed_to_threads() {
    let run = Run::of(&["dlsym", "threads"]);
    let traces = run.traces();
    let trace = &traces[0];
    assert_eq!(trace.summary().left_live_bytes, MIB);
    let threads: Vec<_> = (0..3).map(|thread| trace.thread_info(thread).unwrap()).collect();
    let names: Vec<_> = threads.iter().map(|thread| &*thread.name).collect();
    assert_eq!(names, ["leaks", "frees", "at-end"]);
    assert!(threads.iter().all(|thread| thread.ended_ns.is_some()));
    let stderr = &run.ran.stderr;
    assert!(stderr.contains("1 MiB by 1 thread that ended: thread "), "{stderr}");
    assert!(stderr.contains(" (leaks)\n"), "{stderr}");
}

#[test]
fn threads_that_start_together_share_capture() {
    for _ in 0..10 {
        let run = Run::of(&["linked", "rush"]);
        assert_eq!(run.captures().len(), 1);
        let summary = run.traces()[0].summary();
        assert_eq!((summary.allocations, summary.left_live_bytes), (32, 32 * MIB));
    }
}

#[test]
fn ended_process_leaves_its_capture() {
    for (work, code, bytes) in [("crash", 139, MIB), ("killed", 137, 2 * MIB), ("quits", 7, MIB)] {
        let run = Run::of(&["linked", work]);
        assert_eq!(run.ran.code, code, "{work}");
        let traces = run.traces();
        assert_eq!(traces[0].summary().left_live_bytes, bytes, "{work}");
        assert_eq!(traces[0].recording().unwrap().end, RecordingEnd::Unknown);
        assert_eq!(traces[0].warnings(), []);
    }
}

#[test]
fn reset_ends_memory() {
    let run = Run::of(&["linked", "reset"]);
    assert_eq!(run.traces()[0].summary().left_live, 0);
}

#[test]
fn each_program_of_process_has_capture() {
    let run = Run::of(&["linked", "executes"]);
    let live: Vec<_> = run.traces().iter().map(|trace| trace.summary().left_live_bytes).collect();
    assert_eq!(live, [3 * MIB + 1, MIB], "the second program's name sorts first");
}

#[test]
fn child_outlives_its_parent() {
    let run = Run::of(&["linked", "forks"]);
    assert_eq!(run.ran.code, 0);
    let began = Instant::now();
    let is_whole = |run: &Run| {
        run.captures().first().is_some_and(|path| {
            let traces = gpuheap_trace::read(path, &ReadOptions::default());
            traces.is_ok_and(|traces| traces[0].recording().unwrap().end == RecordingEnd::Exit)
        })
    };
    while !is_whole(&run) && began.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(20));
    }
    let traces = run.traces();
    assert_eq!(traces[0].summary().left_live_bytes, 6 * MIB);
}

#[test]
fn limit_is_exact() {
    let limit = ["--limit", "262144"];
    let run = Run::with(&limit, &["address", "limit"]);
    assert_eq!(
        run.ran.stdout,
        "free 262144 of 262144\na byte more: 2\nfree 0\nrefused with room: 0\ntaken 0, held 0\n",
        "{}",
        run.ran.stderr
    );
    let traces = run.traces();
    let summary = traces[0].summary();
    assert!(summary.peak_live_bytes <= 262_144, "{}", summary.peak_live_bytes);
    assert_eq!(summary.failures, 1);
    assert_eq!(traces[0].recording().unwrap().devices[0].limit, Some(262_144));
    let said = "  limit         256 KiB by --limit\n";
    assert!(run.ran.stderr.contains(said), "{}", run.ran.stderr);
    let report = run.gpuheap("report").stdout;
    assert!(report.contains("Limit of the run: 256 KiB (--limit); 1 request failed."), "{report}");
    let replay = run.gpuheap("replay").stdout;
    assert!(replay.contains("limited to 256 KiB, as the run was (--limit)"), "{replay}");
}

#[test]
fn processes_share_limit_of_tree() {
    let options = ["--limit", "9MiB", "--limit-tree"];
    let run = Run::with(&options, &["linked", "shares"]);
    let said = "child 0: 0\nchild 1: 0\nchild 2: 2\nparent: 0\n";
    assert!(run.ran.stdout.starts_with(said), "{}{}", run.ran.stdout, run.ran.stderr);
    let run = Run::with(&["--limit", "9MiB"], &["linked", "shares"]);
    assert!(run.ran.stdout.starts_with("child 0: 0\nchild 1: 0\nchild 2: 0\n"));
}

#[test]
fn pairs_are_counted_near_largest_size() {
    let run = Run::with(&["--max-size", "2MiB"], &["linked", "many"]);
    assert_eq!(run.ran.code, 3);
    let size = std::fs::metadata(&run.captures()[0]).unwrap().len();
    assert!(size <= MIB + MIB / 64, "{size}");
    let trace = run.traces().remove(0);
    assert_eq!(trace.recording().unwrap().end, RecordingEnd::Exit);
    let summary = trace.summary();
    let figures = (summary.allocations, summary.frees, summary.peak_live_bytes);
    assert_eq!(figures, (200_000, 200_000, MIB));
    let events = trace.events().len() as u64;
    assert!(events > 50_000 && size / events <= 40, "{size} bytes, {events} events");
    assert!(run.ran.stderr.contains("allocations that were freed at once"), "{}", run.ran.stderr);
    let replay = run.gpuheap("replay").stderr;
    assert!(replay.contains("and not in timelines and replays"), "{replay}");
}

#[test]
fn requests_fail_on_purpose() {
    let run = Run::with(&["--fail-nth", "2"], &["linked", "fails"]);
    assert!(run.ran.stdout.starts_with("0 2 0 \n"), "{}", run.ran.stdout);
    // The third request has the same size.
    assert!(run.ran.stderr.contains(", 1 failed\n"), "{}", run.ran.stderr);
    let run = Run::with(&["--fail-after", "2MiB"], &["linked", "fails"]);
    assert!(run.ran.stdout.starts_with("0 0 2 \n"), "{}", run.ran.stdout);
}

#[test]
fn gates_set_exit_code() {
    let shell = ["-c", "\"$0\" linked leak; exit 0"];
    let gated = |options: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let words = [&["--", "sh"], &shell[..], &[program().to_str().unwrap()]].concat();
        command(&folder, options, &words).code
    };
    assert_eq!(gated(&["--max-leak", "3145729", "--max-peak", "5MiB"]), 0);
    assert_eq!(gated(&["--max-leak", "3145728"]), 1);
    assert_eq!(gated(&["--max-leak", "0"]), 1);
    assert_eq!(gated(&["--max-peak", "4MiB"]), 1);
    let folder = tempfile::tempdir().unwrap();
    let nothing = command(&folder, &["--max-leak", "0", "-o", "none"], &["--", "true"]);
    assert_eq!(nothing.code, 1, "{}", nothing.stderr);
    let run = Run::with(&["--max-peak", "2MiB"], &["linked", "leak"]);
    assert_eq!(run.ran.code, 3, "the program's own code comes first");
}

#[test]
fn forms_of_summary() {
    let run = Run::with(&["--on-exit", "none", "--no-stacks"], &["linked", "leak"]);
    assert_eq!(run.ran.stderr, "");
    let traces = run.traces();
    assert!(traces[0].events().iter().all(|event| event.stack == 0));
    let run = Run::with(&["--on-exit", "json"], &["linked", "leak"]);
    let json: serde_json::Value = serde_json::from_str(&run.ran.stderr).unwrap();
    assert_eq!(json["processes"][0]["devices"][0]["live_bytes"], 3 * MIB + 1);
    assert_eq!((&json["exit_code"], &json["schema"]), (&3.into(), &1.into()));
    assert_eq!(schema::differences(&schema::schema_of("run"), &json, "$"), Vec::<String>::new());
    let run = Run::with(&["--on-exit", "json", "--limit", "64MiB"], &["dlsym", "threads"]);
    let json: serde_json::Value = serde_json::from_str(&run.ran.stderr).unwrap();
    assert_eq!(json["processes"][0]["devices"][0]["left_by_threads"][0]["bytes"], MIB);
    assert_eq!(schema::differences(&schema::schema_of("run"), &json, "$"), Vec::<String>::new());
    let run = Run::of(&["linked", "leak"]);
    let capture = run.captures();
    let next = format!("gpuheap report {}", capture[0].file_name().unwrap().display());
    assert!(run.ran.stderr.contains(&next), "{}", run.ran.stderr);
    assert!(run.ran.stderr.contains("live at exit  3 MiB in 1 allocation"), "{}", run.ran.stderr);
}

#[test]
fn replay_reads_captures() {
    let replay = Run::of(&["linked", "leak"]).gpuheap("replay");
    assert_eq!(replay.code, 0, "{}", replay.stderr);
    for said in ["5 MiB", "The program used cudaMalloc: row cuda.", "the device of the run: "] {
        assert!(replay.stdout.contains(said), "{}", replay.stdout);
    }
    assert!(!replay.stdout.to_lowercase().contains("rmm"), "{}", replay.stdout);
}

/// Needs the Python that `PYTHON` names, or else `python3`. Also runs the other versions in `PATH`.
#[test]
fn lines_of_python_are_recorded() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let others = (8..=14).map(|minor| format!("python3.{minor}"));
    for python in [python].into_iter().chain(others) {
        let version = ["-c", "import sys; print(sys.version_info[1], sys.implementation.name)"];
        let Ok(version) = Command::new(&python).args(version).output() else { continue };
        let version = String::from_utf8(version.stdout).unwrap();
        let Some(minor) = version.strip_suffix(" cpython\n") else { continue };
        let minor: u32 = minor.parse().unwrap();
        let recorded = lines_of_python(&python, &[]);
        if !(9..=14).contains(&minor) {
            assert_eq!(recorded.0, [], "{python}");
            let said = format!("frames of this Python 3.{minor} cannot be recorded");
            assert!(recorded.1.contains(&said), "{}", recorded.1);
            continue;
        }
        let all = recorded.0;
        let step = if minor < 11 { "step" } else { "Trainer.step" };
        assert_eq!(all[0], (step.to_owned(), 15), "{python}");
        let outer = [("main".to_owned(), 24), ("<module>".to_owned(), 28)];
        assert_eq!(all[all.len() - 2..], outer, "{python}");
        assert_eq!(lines_of_python(&python, &["--no-python"]).0, []);
    }
}

/// Returns the frames of the first allocation of `train.py`, and the output on stderr.
fn lines_of_python(python: &str, options: &[&str]) -> (Vec<(String, u32)>, String) {
    let train = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/train.py");
    let folder = tempfile::tempdir().unwrap();
    let ran = command(&folder, options, &["--", python, train]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let run = Run { folder, ran };
    let trace = run.traces().remove(0);
    let stack = trace.events()[0].stack;
    let of_python = trace.stack(stack).filter(|frame| frame.file.ends_with("train.py"));
    let lines = of_python.map(|frame| (frame.function.to_string(), frame.line)).collect();
    (lines, run.ran.stderr)
}

/// A program that reports blocks as PyTorch does, and has CuPy's hooks and RMM's resources.
#[test]
fn blocks_of_pools_are_recorded() {
    const CUPY: &str = "
import collections, threading
local = threading.local()
def get_memory_hooks():
    if not hasattr(local, 'hooks'):
        local.hooks = collections.OrderedDict()
    return local.hooks
class MemoryHook:
    def __enter__(self):
        get_memory_hooks()[self.name] = self
";
    const STREAM: &str = "
class Stream:
    def __cuda_stream__(self):
        return 0, 7
";
    let packages = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("cupy/__init__.py", ""),
        ("cupy/cuda/__init__.py", ""),
        ("cupy/cuda/memory_hook.py", CUPY),
        ("rmm/__init__.py", "from . import mr, rmm\nfrom .pylibrmm import stream\n"),
        ("rmm/pylibrmm/__init__.py", ""),
        ("rmm/pylibrmm/stream.py", STREAM),
        ("rmm/rmm.py", "from .mr import _initialize"),
        ("rmm/mr.py", include_str!("rmm_resources.py")),
    ] {
        let path = packages.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/pools.py");
    let recorded = |options: &[&str], pools: &str| {
        let folder = tempfile::tempdir().unwrap();
        let words = ["--", &python, program, pools];
        let mut gpuheap = gpuheap(&folder, &[&["--emulate", "16GiB"], options, &words].concat());
        let ran = ran(gpuheap.env("PYTHONPATH", packages.path()));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        Run { folder, ran }
    };
    let sites = |run: &Run| {
        let trace = run.traces().remove(0);
        let blocks = trace.events().iter().filter_map(|event| match event.op {
            Op::Allocate { allocation, bytes } => {
                Some((trace.kind(allocation).as_str(), bytes, trace.site(event.stack)))
            }
            _ => None,
        });
        blocks.map(|(kind, bytes, site)| format!("{kind} {bytes} {site}")).collect::<Vec<_>>()
    };
    let with = recorded(&["--frameworks"], "");
    assert_eq!(
        sites(&with),
        [
            "PyTorch 1024 pools.py:31 in tensor",
            "PyTorch 512 pools.py:31 in tensor",
            "device 1048576 pools.py:26 in segment",
            "CuPy 2048 pools.py:38 in array",
            "CuPy 4096 pools.py:38 in array",
        ]
    );
    let report = ran(Command::new(env!("CARGO_BIN_EXE_gpuheap"))
        .args(["report", "--at", "end"])
        .args(with.captures()));
    let pools = report.stdout.split_once("\nWhich memory of the driver holds").unwrap().1;
    insta::assert_snapshot!(pools.split_once("\n\nWhich line").unwrap().0);
    let replay = with.gpuheap("replay").stdout;
    assert!(replay.contains("The program used CuPy's pool: row cupy."), "{replay}");
    assert!(!replay.contains("rmm"), "{replay}");
    assert!(with.ran.stderr.contains("live at exit  7 MiB in 3"), "{}", with.ran.stderr);
    let without = recorded(&[], "");
    assert_eq!(sites(&without).len(), 3);
    let of_rmm = recorded(&["--frameworks"], "rmm");
    let buffers = ["RMM 8192 pools.py:52 in buffer", "RMM 100 pools.py:52 in buffer"];
    assert_eq!(sites(&of_rmm)[5..], buffers);
    let replay = of_rmm.gpuheap("replay").stdout;
    assert!(replay.contains("The program used RMM."), "{replay}");
    assert!(replay.contains("rmm:arena"), "{replay}");
}

/// The test runs itself as the recorded program.
#[test]
fn cudarc_is_recorded() {
    const PROGRAM: &str = "CUDARC_PROGRAM";
    if std::env::var_os(PROGRAM).is_some() {
        cudarc_program();
    }
    let folder = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let words = ["--", test.to_str().unwrap(), "--exact", "cudarc_is_recorded"];
    let mut gpuheap = gpuheap(&folder, &[&["--emulate", "16GiB"], &words[..]].concat());
    let ran = ran(gpuheap.env(PROGRAM, "1"));
    assert_eq!(ran.code, 7, "{}", ran.stderr);
    let run = Run { folder, ran };
    let trace = run.traces().remove(0);
    let summary = trace.summary();
    let left = 2 * (3 * MIB + 1);
    let figures = (summary.allocations, summary.peak_live_bytes, summary.left_live_bytes);
    assert_eq!(figures, (3, left + 4000, left));
    let lines: Vec<_> = (trace.events().iter())
        .filter(|event| matches!(event.op, Op::Allocate { .. }))
        .map(|event| {
            let frame = trace.own_frames(event.stack)[0];
            assert!(frame.file.ends_with("tests/run/main.rs"), "{frame:?}");
            frame.line
        })
        .collect();
    assert_eq!(lines, [lines[0], lines[0], lines[0] + 1]);
}

/// Allocates two slices on one line, and leaves them live. Also frees a slice of another line.
fn cudarc_program() -> ! {
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let stream = context.default_stream();
    let take = |_| stream.alloc_zeros::<u8>(3 * MIB as usize + 1).unwrap();
    let freed = |_| stream.alloc_zeros::<f32>(1000).unwrap();
    let kept: Vec<_> = (0..2).map(take).collect();
    drop(freed(()));
    assert_eq!(kept.len(), 2);
    // `exit` does not drop the slices.
    std::process::exit(7)
}

#[test]
fn unusable_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("train.py");
    std::fs::write(&text, "print()").unwrap();
    let fixed = folder.path().join("static");
    let source = folder.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let compiled = compiler().args(["-static", "-o"]).arg(&fixed).arg(&source).status().unwrap();
    assert!(compiled.success());
    let train = text.to_str().unwrap();
    for (words, said) in [
        (vec!["--", "/nosuch/program"], "there is no such program"),
        (vec!["--", train], "for a Python file write gpuheap run -- python"),
        (vec!["--", fixed.to_str().unwrap()], "it is statically linked"),
        (vec!["--output", "/nosuch/a.gph", "--", "true"], "/nosuch/a.gph: No such file"),
        (vec![], "no program was given"),
        (vec!["sh"], "write -- before the program: gpuheap run -- sh"),
        (vec!["--limit", "much", "--", "true"], "--limit"),
    ] {
        let ran = command(&folder, &[], &words);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(said) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}

#[test]
fn emulated_device_is_h200_or_known() {
    let folder = tempfile::tempdir().unwrap();
    let program = program().to_str().unwrap();
    let default = ["--emulate", "--copies", "--", program, "linked", "leak"];
    let default = ran(&mut gpuheap(&folder, &default));
    assert!(default.stderr.contains("NVIDIA H200"), "{}", default.stderr);
    let unknown = ran(&mut gpuheap(&folder, &["--emulate", "h300", "--", program]));
    assert_eq!((unknown.code, &*unknown.stdout), (2, ""));
    let said =
        "error: --emulate: 'h300' is not a device; write h200, rtx4090, t4, wsl2-rtx4060, or";
    assert!(unknown.stderr.starts_with(said), "{}", unknown.stderr);
}

#[test]
fn program_that_records_itself_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ran = ran(gpuheap(&folder, &["--", "true"]).env("GPUHEAP_RECORD", "own.gph"));
    assert_eq!((ran.code, ran.stdout.is_empty()), (2, true));
    assert!(ran.stderr.contains("GPUHEAP_RECORD is set"), "{}", ran.stderr);
}

#[test]
fn program_keeps_its_own_preload() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--", "sh", "-c", "echo $LD_PRELOAD; LD_PRELOAD= sh -c 'exit 5'"];
    let mut gpuheap = gpuheap(&folder, &words);
    let own = libraries().path().join("libcuda.so.1");
    let ran = ran(gpuheap.env("LD_PRELOAD", &own));
    assert_eq!(ran.code, 5);
    assert!(ran.stdout.starts_with(&format!("{}:/", own.display())), "{}", ran.stdout);
    insta::assert_snapshot!(ran.stderr, @r"
    gpuheap: no process allocated GPU memory, so nothing was recorded
      without a GPU: gpuheap run --emulate -- ...
    ");
}

/// Result of `gpuheap run` on an emulated GPU.
struct Run {
    folder: TempDir,
    ran: Ran,
}

impl Run {
    fn of(arguments: &[&str]) -> Run {
        Run::with(&[], arguments)
    }

    fn with(options: &[&str], arguments: &[&str]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let words = [&["--", program().to_str().unwrap()], arguments].concat();
        let ran = command(&folder, options, &words);
        Run { folder, ran }
    }

    /// Runs another command with the captures.
    fn gpuheap(&self, command: &str) -> Ran {
        ran(Command::new(env!("CARGO_BIN_EXE_gpuheap")).arg(command).args(self.captures()))
    }

    fn captures(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    fn traces(&self) -> Vec<Trace> {
        let options = ReadOptions::default().host_memory(true);
        let read = |path: &PathBuf| gpuheap_trace::read(path, &options).unwrap();
        self.captures().iter().flat_map(read).collect()
    }
}

fn command(folder: &TempDir, options: &[&str], words: &[&str]) -> Ran {
    ran(&mut gpuheap(folder, &[&["--emulate", "16GiB"], options, words].concat()))
}

/// Returns the command in a working directory.
fn gpuheap(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPUHEAP_") {
            command.env_remove(name);
        }
    }
    command.env_remove("CUDA_VISIBLE_DEVICES").env("GPUHEAP_STAND_INS", libraries().path());
    command.current_dir(folder.path()).arg("run").args(arguments);
    command
}

/// Returns a folder with the libraries.
fn libraries() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| library::folder(&[&library::LIBCUDA, &library::PRELOAD]))
}

/// Returns the path of the test program, linked with the driver.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let made = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut compile = compiler();
        compile.args(["-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-Werror", "-o"]);
        compile.arg(&program).arg(crates.join("gpuheap-preload/tests/program.c"));
        compile.arg(libraries().path().join("libcuda.so.1")).args(["-pthread", "-ldl"]);
        assert!(compile.status().unwrap().success());
        (folder, program)
    });
    &made.1
}

/// Compiles a program of the recorder's tests, and links it with the driver.
fn compiled(folder: &TempDir, source: &str) -> PathBuf {
    let program = folder.path().join("compiled");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut compile = compiler();
    compile.args(["-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-Werror", "-o"]);
    compile.arg(&program).arg(crates.join("gpuheap-preload/tests").join(source));
    compile.arg(libraries().path().join("libcuda.so.1")).args(["-pthread", "-ldl"]);
    assert!(compile.status().unwrap().success());
    program
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}
