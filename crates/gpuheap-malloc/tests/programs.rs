//! Runs C programs with the drop-in library `libgpuheap_malloc.so` preloaded, on the emulated
//! device with its checks on. The programs do not call gpuheap. The drop-in writes a report to
//! stderr at a program's exit. Needs a C compiler: `CC`, else `cc`.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

#[path = "../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;

/// Line of the drop-in's report if the program freed all memory.
const ALL_FREED: &str = "all allocations were freed";

#[test]
fn live_memory_is_reported_at_exit() {
    let (printed, said) = Run::driver("live").get();
    assert_eq!(printed, "1\n");
    assert_eq!(
        said,
        "gpuheap: process N, cuda:0: 1 allocation is live, 1000 bytes\n  \
         allocated 2 times, 3 MiB at most at once; taken from the device 4 MiB at most\n  \
         out of memory 0 times; frees of memory from elsewhere 0; frees of unknown addresses 0\n  \
         set GPUHEAP_TRACK to backtraces to see where they were made\n"
    );
    let (_, said) = Run::driver("live").with("GPUHEAP_TRACK", "backtraces").get();
    assert!(said.contains("1 allocation outstanding: 1000 bytes from 1 site"), "{said}");
    assert!(said.contains("] live at"), "{said}");
    let (_, said) = Run::driver("live").with("GPUHEAP_MALLOC_REPORT", "off").get();
    assert_eq!(said, "");
}

#[test]
fn variable_records_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    let (_, said) = Run::driver("live").with("GPUHEAP_RECORD", path.to_str().unwrap()).get();
    assert!(said.contains("1 allocation is live, 1000 bytes"), "{said}");
    let trace = gpuheap_trace::read(&path, &Default::default()).unwrap().swap_remove(0);
    let summary = trace.summary();
    assert_eq!((summary.allocations, summary.frees), (2, 1));
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (3 * 1_048_576 + 1000, 1000));
    assert_eq!(trace.recording().unwrap().end, gpuheap_trace::RecordingEnd::Exit);
    let site = trace.site(trace.events()[1].stack);
    assert!(site.starts_with("driver.c:") && site.ends_with(" in allocated"), "{site}");
}

#[test]
fn freed_program_gets_no_report() {
    for program in ["waits", "streams", "threads", "at_exit"] {
        assert_eq!(Run::driver(program).get().1, "", "{program}");
    }
    for program in ["plain", "threads", "streams"] {
        assert_eq!(Run::runtime(program).get().1, "", "{program}");
    }
}

#[test]
fn each_pool_serves() {
    for pool in ["split", "stitched", "binned", "simple", "none", "driver"] {
        for (program, times) in [("streams", 80), ("threads", 16_000)] {
            let (_, said) = Run::driver(program).with("GPUHEAP_POOL", pool).always().get();
            assert!(said.contains(ALL_FREED), "{pool}, {program}: {said}");
            // The pool `driver` does not serve a thread's own default stream.
            let (times, lines) = match (pool, program) {
                ("driver", "streams") => (60, 4),
                _ => (times, 3),
            };
            assert!(said.contains(&format!("allocated {times} times")), "{pool}: {said}");
            assert_eq!(said.lines().count(), lines, "{pool}, {program}: {said}");
        }
    }
}

#[test]
fn wrong_frees_are_refused() {
    for pool in ["split", "stitched", "none"] {
        let (printed, said) = Run::driver("wrong_frees").with("GPUHEAP_POOL", pool).always().get();
        assert_eq!(
            printed, "again: 1\ninside: 1\nnever: 1\nmanaged again: 1\nread: 7\n",
            "{pool}: {said}"
        );
        assert!(said.contains(ALL_FREED), "{said}");
        assert!(said.contains("elsewhere 1; frees of unknown addresses 4"), "{said}");
    }
}

#[test]
fn one_of_many_frees() {
    let (printed, said) = Run::runtime("free_races").always().get();
    assert_eq!(printed, "50 frees succeeded\n");
    assert!(said.contains(ALL_FREED) && said.contains("unknown addresses 150"), "{said}");
}

#[test]
fn limit_bounds_the_program() {
    let (printed, said) = Run::driver("limit").with("GPUHEAP_MEMORY_LIMIT", "32MiB").always().get();
    assert_eq!(
        printed,
        "26 of 32 MiB are free\ntoo much: 2\nmore than any device has: 2\nnothing: 1\nnowhere: 1\n"
    );
    // stderr explains the first refusal.
    assert!(said.starts_with("gpuheap: out of GPU memory: 60 MiB requested"), "{said}");
    assert!(said.contains("raise the limit by 34 MiB (GPUHEAP_MEMORY_LIMIT)"), "{said}");
    assert!(said.contains("out of memory 2 times"), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn total_limit_bounds_the_program() {
    let run = Run::driver("limit").with("GPUHEAP_TOTAL_MEMORY_LIMIT", "32MiB");
    let (printed, said) = run.always().get();
    assert!(printed.starts_with("26 of 32 MiB are free\ntoo much: 2\n"), "{printed}");
    let expected = "raise the total limit by 34 MiB (the program's or GPUHEAP_TOTAL_MEMORY_LIMIT)";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn setting_removes_wait_of_free() {
    assert_eq!(Run::driver("waits").get().0, "done: 1\n");
    let (printed, _) = Run::driver("does_not_wait").with("GPUHEAP_MALLOC_WAIT", "none").get();
    assert_eq!(printed, "done: 1\n");
}

#[test]
fn plain_allocation_waits_for_stream() {
    for pool in ["split", "stitched"] {
        let run = Run::driver("in_use").with("GPUHEAP_POOL", pool);
        let (printed, said) = run.with("GPUHEAP_MEMORY_LIMIT", "32MiB").get();
        assert_eq!((printed.as_str(), said.as_str()), ("done: 1\n", ""), "{pool}");
    }
}

#[test]
fn pool_figures_count_heap() {
    for pool in ["stitched", "split", "binned"] {
        let (printed, said) = Run::runtime("pools").with("GPUHEAP_POOL", pool).always().get();
        assert_eq!(
            printed,
            "plain: 0 of at most 0 used, reserved 1 1\n\
             two: 3072 of at most 3072 used, reserved 1 1\n\
             reserved stays: 1\n\
             one: 2048 of at most 3072 used, reserved 1 1\n\
             after a reset: 2048 of at most 2048 used, reserved 1 1\n\
             with the driver's own: 1050624 of at most 1050624 used, reserved 1 1\n\
             trimmed: 0\n\
             trimmed with a plain block: 0\n\
             kept: 1 1\n\
             plain kept: 0\n\
             threshold: 2097152, reserved 1\n\
             another: 1024, before: 0\n",
            "{pool}: {said}"
        );
        assert!(said.contains(ALL_FREED), "{pool}: {said}");
    }
}

#[test]
fn pool_is_answered_however_found() {
    assert_eq!(Run::driver("pool_ways").get().0, "3 3 3 trimmed 0\n");
}

#[test]
fn captured_allocation_goes_to_driver() {
    let (printed, said) = Run::driver("capture").always().get();
    assert_eq!(printed, "freed inside: 900\nallocated inside: 900\n");
    assert!(said.contains("allocated 2 times"), "{said}");
}

#[test]
fn memory_ends_with_a_reset() {
    let (printed, said) = Run::driver("reset").always().get();
    assert_eq!(printed, "freed after the reset: 1\n");
    assert!(said.contains("allocated 2 times, 1 MiB at most"), "{said}");
    let (printed, said) = Run::runtime("reset").always().get();
    assert_eq!(printed, "0\n");
    assert!(said.contains("allocated 2 times, 2 MiB at most"), "{said}");
}

#[test]
fn account_continues_after_resets() {
    let (_, said) = Run::runtime("resets").get();
    assert_eq!(
        said,
        "gpuheap: process N, cuda:0: no allocation is live\n  \
         reset 3 times: 3 live allocations were lost, 3 MiB\n  \
         allocated 1004 times, 3 MiB at most at once; taken from the device 4 MiB at most\n  \
         out of memory 0 times; frees of memory from elsewhere 0; frees of unknown addresses 0\n  \
         set GPUHEAP_TRACK to backtraces to see where they were made\n"
    );
    let (_, said) = Run::runtime("resets").with("GPUHEAP_TRACK", "backtraces").get();
    let lost = "lost at the last reset with live memory: 1 allocation outstanding: 1000 bytes";
    assert!(said.contains(lost) && said.contains("] resets at"), "{said}");
    assert!(!said.contains("set GPUHEAP_TRACK"), "{said}");
    let (_, said) = Run::runtime("reset").get();
    assert!(said.contains("reset once: 1 live allocation was lost with it, 1 MiB"), "{said}");
}

#[test]
fn reset_without_live_memory_loses_nothing() {
    assert_eq!(Run::runtime("resets_freed").get().1, "");
    let (_, said) = Run::runtime("resets_freed").always().get();
    assert!(
        said.starts_with(
            "gpuheap: process N, cuda:0: all allocations were freed\n  \
             reset once, with no allocation live\n  \
             allocated 2 times, 8 MiB at most"
        ),
        "{said}"
    );
}

#[test]
fn always_reports_programs_without_allocations() {
    let (_, said) = Run::runtime("nothing").always().get();
    assert_eq!(said, "gpuheap: process N: no allocation was served\n");
    assert_eq!(Run::runtime("nothing").get().1, "");
}

#[test]
fn missing_driver_is_reported_once() {
    let folder = without_driver();
    for (program, is_static) in [("no_driver", false), ("no_driver_static", true)] {
        for end in ["returns", "aborts"] {
            let output = without_driver_run(program, end).0.output().unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(printed, "35 35, last 0\n", "{said}");
            // If a driver exists in another folder, the program could still load it. So the drop-in
            // reports only at the exit, and an aborted program never gets there.
            let is_deferred = has_driver() && is_static && end == "aborts";
            assert_eq!(said.matches("gpuheap: ").count(), usize::from(!is_deferred), "{said}");
            if is_deferred {
                continue;
            }
            let begin = "gpuheap: this program uses CUDA, and the loader finds no driver: ";
            assert!(said.starts_with(begin), "{said}");
            let folders = format!("LD_LIBRARY_PATH ({}", folder.path().display());
            assert!(said.contains(&folders), "{said}");
            assert!(said.contains("ldconfig -p") && said.contains("/usr/lib/wsl/lib"), "{said}");
            assert_eq!(said.contains("nvcc -cudart shared"), is_static && !has_driver(), "{said}");
        }
    }
}

/// The executable has its own folder in its run path, and that folder has a driver.
#[test]
fn driver_in_programs_folder_is_found() {
    let mut run = without_driver_run("no_driver_with_folder", "returns").always();
    run.0.env_remove("LD_LIBRARY_PATH");
    let (printed, said) = run.get();
    assert_eq!(printed, "999 999, last 0\n");
    assert_eq!(said, "gpuheap: process N: no allocation was served\n");
}

#[test]
fn line_for_emulated_driver_runs() {
    if has_driver() {
        // If the machine has a driver, the message names this driver's file, not an emulated one.
        let (_, said) = without_driver_run("no_driver", "returns").get();
        assert!(said.contains("is there; for the loader to find it, type\n"), "{said}");
        return;
    }
    let (_, said) = without_driver_run("no_driver", "it's a test").get();
    let line = said.lines().find(|line| line.trim().starts_with("LD_PRELOAD=")).unwrap();
    // docs/cpp.md contains the same line.
    let page = include_str!("../../../docs/cpp.md");
    let (libraries, variable) = line.trim().split_once(' ').unwrap();
    for library in libraries.split(['=', ':']).skip(1) {
        let name = Path::new(library).file_name().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("$built/{name}")), "{name}");
    }
    assert!(page.contains(variable.split(' ').next().unwrap()), "{variable}");
    let mut shell = without_driver_run("no_driver", "");
    shell.0 = {
        let mut command = Command::new("sh");
        command.args(["-c", line.trim()]);
        command.envs(shell.0.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env_remove("LD_PRELOAD");
        command
    };
    let (printed, said) = shell.with("GPUHEAP_MALLOC_REPORT", "leaks").get();
    assert_eq!(printed, "0 0, last 0\n", "{line}\n{said}");
    assert!(said.contains("2 allocations are live"), "{said}");
}

#[test]
fn driver_without_devices_is_reported() {
    let mut run = Run::driver("live").with("CUDA_VISIBLE_DEVICES", "");
    let output = run.0.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("gpuheap: the CUDA driver at "), "{said}");
    assert!(said.contains("cuInit returned CUDA_ERROR_NO_DEVICE (100)"), "{said}");
    assert!(said.contains("gpuheap doctor"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn programs_without_cuda_get_nothing() {
    for (program, argument) in [("/bin/ls", "/"), ("/bin/sh", "-c")] {
        let mut run = without_driver_run("no_driver", argument).always();
        let mut command = Command::new(program);
        command.args([argument, "true"].iter().take(if argument == "-c" { 2 } else { 1 }));
        command.envs(run.0.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run.0 = command;
        assert_eq!(run.get().1, "", "{program}");
    }
}

#[test]
fn probe_for_loaded_driver_loads_nothing() {
    let run = |argument: &str| Run::of(&folder().path().join("probes"), argument).get();
    assert_eq!(run("loaded"), ("loaded: 0\n".to_owned(), String::new()));
}

#[test]
fn closed_driver_is_not_reported_missing() {
    // The emulated driver would stay loaded after `dlclose`, so this test uses a small library
    // instead.
    let here = tempfile::tempdir().unwrap();
    let driver = here.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small_runtime.c");
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&driver).arg(source);
    assert!(compile.status().unwrap().success());
    for name in [driver.to_str().unwrap(), "libcuda.so.1"] {
        let folders = if name.starts_with('/') { "" } else { here.path().to_str().unwrap() };
        let probes = folder().path().join("probes");
        let run = Run::of(&probes, name).with("LD_LIBRARY_PATH", folders);
        assert_eq!(run.get(), ("there: 1\n".to_owned(), String::new()), "{name}");
    }
}

#[test]
fn symbols_without_cuda_are_not_found() {
    let (printed, said) = Run::of(&folder().path().join("probes"), "linked").get();
    assert_eq!(printed, "linked: 0, an error: 1\nlinked: 0, an error: 1\n");
    assert_eq!(said, "");
}

#[test]
fn closed_stderr_ends_no_program() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = without_driver_run("no_driver", "returns");
    run.0.stderr(writer).stdout(std::process::Stdio::piped());
    let output = run.0.spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "35 35, last 0\n");
}

#[test]
fn other_contexts_are_not_served() {
    let (_, said) = Run::driver("own_context").always().get();
    let expected = "gpuheap: process N: no allocation was served; beside the heap: unserved 1 ";
    assert_eq!(said, format!("{expected}(1 MiB)\n"));
}

#[test]
fn memory_is_freed_in_any_context() {
    let (printed, said) = Run::driver("contexts").always().get();
    assert_eq!(printed, "again: 1\n");
    assert!(said.contains("allocated 2 times, 3 MiB at most"), "{said}");
    assert!(said.contains("elsewhere 1; frees of unknown addresses 1"), "{said}");
    assert!(said.contains("unserved 1 (3 MiB)"), "{said}");
}

#[test]
fn memory_beside_the_heap_is_counted() {
    /// Memory that the program takes without the heap. The program's allocation of a CUDA array
    /// failed, so no array is listed.
    const BESIDE: &str = "managed 2 (2 MiB), pitched 1 (97.66 KiB), from pools 1 (3 MiB), \
                          virtual 1 (2 MiB)\n";
    let (printed, said) = Run::driver("served_and_foreign").always().get();
    assert_eq!(printed, "array: 0\ntoo large: 1\n");
    assert!(said.contains("allocated 1 times"), "{said}");
    assert!(said.contains(&format!("beside the heap, by all of the process: {BESIDE}")), "{said}");
    let (_, said) = Run::driver("foreign").always().get();
    let expected = "gpuheap: process N: no allocation was served; beside the heap: ";
    assert_eq!(said, format!("{expected}{BESIDE}"));
    assert_eq!(Run::driver("foreign").get().1, "", "no memory of a heap is live");
}

#[test]
fn lookups_find_drop_ins_functions() {
    assert_eq!(
        Run::driver("found").get().0,
        "one function: 1 1\na twin: 1\nanother: 1 1\ncounted: 1 1\nmissing: 1\nwhich the loader says: 1\n\
         handle: 801\n"
    );
}

#[test]
fn runtime_loaded_by_name_is_served() {
    let folder = folder();
    let runtime = folder.path().join("libgpuheap_emu_cudart.so");
    let run = Run::of(&folder.path().join("loading"), runtime.to_str().unwrap());
    let (printed, said) = run.always().get();
    assert_eq!(
        printed,
        "allocated: 0\ntoo much: 2, last 2\nfreed: 0\nagain: 1\nloaded again: 0 1 0\n"
    );
    assert!(
        said.contains("1 allocation is live, 1000 bytes\n  allocated 3 times, 1 MiB"),
        "{said}"
    );
}

#[test]
fn closed_runtime_stays_loaded() {
    let folder = folder();
    let runtime = folder.path().join("small_runtime");
    let run = Run::of(&folder.path().join("closing"), runtime.to_str().unwrap());
    assert_eq!(run.get().0, "before: 17\nafter: 17\n");
}

/// The program's own heap takes its memory from the drop-in's heap, through `cuMemAlloc`. Program
/// and drop-in use separate copies of gpuheap's library.
#[test]
fn c_interface_program_keeps_its_library() {
    let program = folder().path().join("own_heap");
    let run = Run::of(&program, "cuda:0").with("GPUHEAP_POOL", "split").always();
    // The checks are off: they would report that blocks of the two heaps overlap.
    let (printed, said) = run.with("GPUHEAP_EMULATED_CHECKS", "0").get();
    assert_eq!(printed, "live: 1000, then 0\n");
    assert!(said.contains("all allocations were freed\n  allocated 1 times, 2 MiB"), "{said}");
}

#[test]
fn forked_child_reports_nothing() {
    let (printed, said) = Run::driver("child").always().get();
    assert_eq!(printed, "child: 3 3\nparent: 0\n");
    assert_eq!(said.matches("process").count(), 1, "{said}");
    assert!(said.contains(ALL_FREED), "{said}");
}

#[test]
fn runtime_keeps_last_error() {
    let (printed, _) = Run::runtime("errors").with("GPUHEAP_MEMORY_LIMIT", "64MiB").get();
    assert_eq!(
        printed,
        "too much: 2, last 2, then 0\nagain: 1, last 1\nnever: 1, last 1\nnothing: 1\n"
    );
}

#[test]
fn other_memory_is_counted() {
    let (printed, said) =
        Run::runtime("others").with("GPUHEAP_MEMORY_LIMIT", "64MiB").always().get();
    assert_eq!(printed, "56 of 64 MiB are free\nhandle: 801\n");
    assert!(said.contains("frees of memory from elsewhere 2;"), "{said}");
    assert!(said.contains("managed 1 (1 MiB), pitched 1 ("), "{said}");
    assert!(said.contains("from pools 1 (5 MiB)"), "{said}");
    assert!(said.contains("(cudaIpcGetMemHandle) is refused"), "{said}");
    assert!(said.contains("run this program without libgpuheap_malloc.so"), "{said}");
}

/// Other threads allocate while the process ends. Their memory may be live in the report.
#[test]
fn process_ends_while_threads_allocate() {
    for _ in 0..20 {
        let (_, said) = Run::runtime("leave").get();
        let account = "gpuheap: process N, cuda:0: ";
        assert!(said.starts_with(account) && said.contains(" live, "), "{said}");
    }
}

#[test]
fn each_device_has_a_heap() {
    let devices = "256MiB,256MiB";
    let (_, said) = Run::runtime("devices").with("GPUHEAP_EMULATED_DEVICE", devices).always().get();
    assert!(said.contains("cuda:0: all allocations were freed\n  allocated 2 times"), "{said}");
    // With two devices, each heap has a `split` pool, because peers can access its segments. Each
    // of the two heaps takes a segment of 20 MiB.
    assert_eq!(said.matches("taken from the device 20 MiB at most").count(), 2, "{said}");
    assert!(said.contains("cuda:1: 1 allocation is live, 2 MiB\n  allocated 2 times"), "{said}");
}

#[test]
fn limit_bounds_each_device() {
    let run = Run::runtime("device_limits").with("GPUHEAP_EMULATED_DEVICE", "256MiB,512MiB");
    let (printed, _) = run.with("GPUHEAP_MEMORY_LIMIT", "25%").get();
    assert_eq!(
        printed,
        "100 MiB: 2, 64 of 64 MiB are free\n\
         100 MiB: 0, 28 of 128 MiB are free\n\
         after a trim: 1 0\n"
    );
}

#[test]
fn invalid_setting_serves_nothing() {
    let (_, said) = Run::driver("live").with("GPUHEAP_MALLOC_WAIT", "never").get();
    assert_eq!(
        said,
        "gpuheap: GPUHEAP_MALLOC_WAIT is set to 'never', and it is one of device, none; no \
         allocation is served\n"
    );
    let (_, said) = Run::driver("live").with("GPUHEAP_POOL", "deep").get();
    assert!(said.starts_with("gpuheap: no allocation is served: GPUHEAP_POOL is set to"), "{said}");
    let (_, said) = Run::driver("threads").with("GPUHEAP_LIMIT", "1GiB").get();
    assert!(said.contains("GPUHEAP_LIMIT"), "{said}");
}

/// Command that runs a program with the drop-in library preloaded.
struct Run(Command);

impl Run {
    /// Prepares to run the program `name` of `driver.c`, linked with the driver.
    fn driver(name: &str) -> Run {
        Run::of(&folder().path().join("driver"), name)
    }

    /// Prepares to run the program `name` of `runtime.c`, linked with the runtime.
    fn runtime(name: &str) -> Run {
        Run::of(&folder().path().join("runtime"), name)
    }

    fn of(program: &Path, name: &str) -> Run {
        let folder = folder();
        let mut command = library::command(program, folder, &[]);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("GPUHEAP_") {
                command.env_remove(variable);
            }
        }
        command
            .arg(name)
            .env("LD_PRELOAD", folder.path().join("libgpuheap_malloc.so"))
            .env("GPUHEAP_EMULATED_DEVICE", "256MiB")
            .env("GPUHEAP_EMULATED_SCHEDULE", "on-demand")
            .env("GPUHEAP_EMULATED_CHECKS", "1");
        Run(command)
    }

    fn with(mut self, variable: &str, value: &str) -> Run {
        self.0.env(variable, value);
        self
    }

    /// Makes the drop-in write its report even if no memory is live.
    fn always(self) -> Run {
        self.with("GPUHEAP_MALLOC_REPORT", "always")
    }

    /// Runs the program, which must succeed. Returns its output, and its messages on stderr with N
    /// for the process id. Leaves out the emulated driver's messages about the program's wrong
    /// frees.
    fn get(mut self) -> (String, String) {
        let output = self.0.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{}\n{printed}\n{said}", output.status);
        let is_wrong_free = |line: &str| {
            line.starts_with("gpuheap: libcuda: cuMemFree") && line.contains(" frees ")
        };
        let lines = said.lines().filter(|line| !is_wrong_free(line));
        let lines = lines.map(|line| match line.strip_prefix("gpuheap: process ") {
            Some(rest) => {
                format!("gpuheap: process N{}\n", rest.trim_start_matches(char::is_numeric))
            }
            None => format!("{line}\n"),
        });
        (printed, lines.collect())
    }
}

/// Returns a folder with the libraries and the programs.
fn folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = library::folder(&[
            &library::LIBCUDA,
            &library::CUDART,
            &library::MALLOC,
            &library::CAPI,
        ]);
        let path = |name: &str| folder.path().join(name);
        compile(&folder, "driver", &path("libcuda.so.1"));
        compile(&folder, "runtime", &path("libgpuheap_emu_cudart.so"));
        compile(&folder, "loading", "-ldl".as_ref());
        compile(&folder, "own_heap", &path("libgpuheap_capi.so"));
        compile(&folder, "closing", "-ldl".as_ref());
        compile(&folder, "probes", "-ldl".as_ref());
        compile(&folder, "small_runtime", "-shared".as_ref());
        compile(&folder, "no_driver_runtime", "-shared".as_ref());
        compile(&folder, "no_driver", &path("no_driver_runtime"));
        compile(&folder, "no_driver_static", "-ldl".as_ref());
        let own_folder = format!("-Wl,-rpath,{}", folder.path().display());
        compile_as(&folder, "no_driver_static", "no_driver_with_folder", own_folder.as_ref());
        folder
    })
}

/// Returns a folder with the drop-in, and the emulated libraries under the file names that cargo
/// gives them. The file `libcuda.so.1` is empty, so no driver is loaded by this name.
fn without_driver() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let here = tempfile::tempdir().unwrap();
        for (from, to) in [
            ("libgpuheap_malloc.so", "libgpuheap_malloc.so"),
            ("libgpuheap_emu_cudart.so", "libgpuheap_emu_cudart.so"),
            ("libcuda.so.1", "libcuda_emulated.so"),
        ] {
            std::fs::copy(folder().path().join(from), here.path().join(to)).unwrap();
        }
        // If the first file found is not a library, the loader fails and searches no further.
        std::fs::write(here.path().join("libcuda.so.1"), "").unwrap();
        here
    })
}

/// Prepares to run the executable `name`, such as `no_driver`. No `libcuda.so.1` loads in the run.
fn without_driver_run(name: &str, argument: &str) -> Run {
    let here = without_driver();
    let mut run = Run::of(&folder().path().join(name), argument);
    let folders = std::env::join_paths([here.path(), folder().path()]).unwrap();
    run.0.env("LD_LIBRARY_PATH", folders);
    run.0.env("LD_PRELOAD", here.path().join("libgpuheap_malloc.so"));
    run
}

/// Returns `true` if the machine has a driver in one of the usual places.
fn has_driver() -> bool {
    gpuheap_driver::SEARCH_PATHS.iter().skip(1).any(|path| Path::new(path).is_file())
}

/// Compiles the program `NAME.c` into the folder.
fn compile(folder: &TempDir, name: &str, link: &Path) {
    compile_as(folder, name, name, link);
}

/// Compiles the source file `name` into `program` in the folder.
fn compile_as(folder: &TempDir, name: &str, program: &str, link: &Path) {
    let source: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-g",
        "-fPIC",
        "-rdynamic",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    compile.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuheap-capi/include"));
    compile.arg("-o").arg(folder.path().join(program)).arg(source.with_extension("c"));
    compile.args(["-Wl,--no-as-needed"]).arg(link).args(["-pthread", "-ldl"]);
    assert!(compile.status().unwrap().success());
}
