//! Tests that run C programs on the emulated runtime and driver. `CC` names the C compiler. If it
//! is unset, the tests use `cc`.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

#[path = "../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;

/// Expected output. Its memory figures follow `docs/emulator.md`, and the rest follows the
/// runtime's documentation.
const PRINTED: &str = "\
plain: 12 MiB
of no bytes: 1
copied: 7 9 7
rectangle: 7 9 7
device memory: 2 0
pinned: 1 1
managed: 3
unknown: 0
freed: 0 MiB
freed twice: cudaErrorInvalidValue
last: cudaErrorInvalidValue, then cudaSuccess
too much: out of memory
no memory for a stream: out of memory
two streams: 2 MiB
in order: 3, 1
pool: 0 MiB
captured: 5
no blocks: cudaErrorInvalidConfiguration
large blocks: cudaErrorInvalidConfiguration
no kernel: cudaErrorInvalidDeviceFunction
pushed: 256 12 1
nothing pushed: cudaErrorMissingConfiguration
occupancy: 8
threads: 1024, dynamic: 102400
captured: status 1, 1, 1 node
green context: 1 0
entry point: 1 0
variable: 6 of 4
past its end: cudaErrorInvalidValue
no variable: cudaErrorInvalidSymbol
shared with processes: cudaErrorNotSupported
CUDA 13: emulated NVIDIA H200, 9.0, 132
CUDA 12: emulated NVIDIA H200, 9.0, 132
version 13000, 2 devices
no such device: cudaErrorInvalidDevice
device 1
from a peer: 4
unknown code: unrecognized error code
";

#[test]
fn a_program_of_each_family_runs() {
    let folder = folder();
    let cudart = folder.path().join("libgpuheap_emu_cudart.so");
    let program = compile(&folder, "runtime", "runtime", &[&cudart]);
    let report = folder.path().to_str().unwrap();
    let mut run = library::command(&program, &folder, &[("GPUHEAP_EMULATED_REPORT", report)]);
    run.envs([("GPUHEAP_EMULATED_DEVICE", "h200,h200"), ("GPUHEAP_EMULATED_KERNELS", "no-op")]);
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), PRINTED, "{said}");
    assert!(output.status.success(), "{said}");
    assert!(said.contains("cudaIpcGetMemHandle is not modelled"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");

    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let names = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let report = files.into_iter().find(|path| names(path).starts_with("cudart.")).unwrap();
    let report = std::fs::read_to_string(report).unwrap();
    assert_eq!(report, "{\"not_modelled\":[{\"function\":\"cudaIpcGetMemHandle\",\"times\":1}]}\n");
}

/// The library finds a program's CUDA version in the name of the runtime that the program needs.
/// The test links an empty library with that name.
#[test]
fn argument_layout_follows_programs_runtime() {
    for major in ["12", "13"] {
        let folder = folder();
        let shell = shell(&folder, major);
        let cudart = folder.path().join("libgpuheap_emu_cudart.so");
        let program = compile(&folder, "abi", major, &[&cudart, &shell]);
        let mut run = library::command(&program, &folder, &[]);
        run.env("GPUHEAP_EMULATED_DEVICE", "h200,h200");
        let printed = library::quiet_success(run.output().unwrap());
        assert_eq!(printed, format!("{major}: preferred 1, prefetched 1\n"));
    }
}

/// PyTorch reuses memory and changes tensors without driver calls. This library's replacements of
/// PyTorch's functions report that memory to the emulated driver, and the memory then reads as
/// zero. Without the report, the program would read earlier uploads there.
#[test]
fn memory_that_pytorch_reports_reads_zero() {
    let folder = folder();
    let cudart = folder.path().join("libgpuheap_emu_cudart.so");
    let libraries = ["libc10.so", "libtorch_cpu.so"].map(|name| {
        let library = folder.path().join(name);
        let soname = format!("-Wl,-soname,{name}");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch.c");
        let mut shared = compiler();
        shared.args(["-shared", "-fPIC", "-DLIBRARY", &soname, "-o"]).arg(&library);
        assert!(shared.arg(source).status().unwrap().success());
        library
    });
    let linked = [&cudart, &libraries[0], &libraries[1]].map(PathBuf::as_path);
    let program = compile(&folder, "torch", "torch", &linked);
    let mut run = library::command(&program, &folder, &[]);
    run.env("GPUHEAP_EMULATED_KERNELS", "no-op");
    let printed = library::quiet_success(run.output().unwrap());
    let expected = "\
profiler: 1, 512, 3, 4, 0 -1
7 8
profiler: 1, -512, 3, 4, 1 0
7 8
profiler: 1, 512, 3, 4, 1 0
0 8
changed: 1
0 8
changed: 1
0 0
changed: 1
7 0
changed: 1
7 8
changed: 1
7 8
changed: 1
7 8
changed: 1
7 8
";
    assert_eq!(printed, expected);
}

/// Returns a folder that contains the emulated runtime and the emulated driver.
fn folder() -> TempDir {
    library::folder(&[&library::CUDART, &library::LIBCUDA])
}

/// Compiles the C file `source` to `program`. A program of the name `12` or `13` is compiled for
/// that major version of CUDA.
fn compile(folder: &TempDir, source: &str, program: &str, link: &[&Path]) -> PathBuf {
    let program_path = folder.path().join(program);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{source}.c"));
    let mut compile = compiler();
    compile.args(["-std=c99", "-Wall", "-Werror", &format!("-DMAJOR={program}"), "-o"]);
    compile.arg(&program_path).arg(source).arg("-Wl,--no-as-needed").args(link);
    assert!(compile.status().unwrap().success());
    program_path
}

/// Creates an empty library with the soname of CUDA `major`'s runtime.
fn shell(folder: &TempDir, major: &str) -> PathBuf {
    let path = folder.path().join(format!("libcudart.so.{major}"));
    let name = format!("-Wl,-soname,libcudart.so.{major}");
    let mut compile = compiler();
    compile.args(["-shared", "-x", "c", "/dev/null", &name, "-o"]).arg(&path);
    assert!(compile.status().unwrap().success());
    path
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}
