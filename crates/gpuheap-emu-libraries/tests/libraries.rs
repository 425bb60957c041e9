//! Tests with C programs that call the library.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../../gpuheap-emu/tests/libraries/mod.rs"]
mod library;

use std::path::Path;
use std::process::Command;

/// Compiles the program `NAME.c` in the folder `tests`, and runs it with the library.
fn run(name: &str, reports: &Path) -> String {
    run_beside(&[&library::LIBRARIES], name, reports)
}

/// Compiles the program `NAME.c` in the folder `tests`, and runs it with `libraries`.
fn run_beside(libraries: &[&library::Emulated], name: &str, reports: &Path) -> String {
    let folder = library::folder(libraries);
    let program = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let mut command = Command::new("cc");
    command
        .args(["-Wall", "-Werror", "-rdynamic", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-L")
        .arg(folder.path());
    assert!(command.arg("-l:libgpuheap_emu_libraries.so").status().unwrap().success());
    let reports = ("GPUHEAP_EMULATED_REPORT", reports.to_str().unwrap());
    let variables = [reports, ("GPUHEAP_EMULATED_DEVICE", "h200,h200")];
    library::quiet_success(library::command(&program, &folder, &variables).output().unwrap())
}

#[test]
fn product_succeeds_and_others_refuse() {
    let reports = tempfile::tempdir().unwrap();
    assert_eq!(run("client", reports.path()), "the end of the C program\n");
    let files: Vec<_> = std::fs::read_dir(reports.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(
        std::fs::read_to_string(files[0].path()).unwrap(),
        "{\"libraries\": [\
         {\"name\": \"NCCL\", \"notes\": [\"channels and buffers are by rules that were measured on \
         two H200; those of NVLS are not in the figures\"]}, \
         {\"name\": \"cuFFT\", \"notes\": [\"work areas are by rules that were measured on an H200\"]}, \
         {\"name\": \"cuSOLVER\", \"notes\": [\"work areas are by rules that were measured on an \
         H200\"]}, \
         {\"name\": \"cuSPARSE\", \"notes\": [\"the number of values of a sum or a product of sparse \
         matrices is not known in a dry run: it is the number for values at random places\"]}, \
         {\"name\": \"cuSPARSE\", \"notes\": [\"work areas are by rules that were measured on an \
         H200\"]}, \
         {\"name\": \"cuFile\", \"notes\": [\"is not modelled: 2 calls were refused, of \
         cuFileBufRegister\"]}]}\n"
    );
}

#[test]
fn cudnn_reports_workspaces_and_weights() {
    let reports = tempfile::tempdir().unwrap();
    // The program prints the workspaces of a convolution's first three plans, and of the fallback
    // plan that every convolution has. The sizes for CTC loss and an LSTM match an H200's.
    let expected = "workspace 13139968\nworkspace 13139968\nworkspace 21528576\nworkspace 0\n\
         by algorithm 13139968\nloss 978880, 6765632\nweights 92372992, reserve 891289856\n";
    assert_eq!(run("cudnn", reports.path()), expected);
    let files: Vec<_> = std::fs::read_dir(reports.path()).unwrap().map(Result::unwrap).collect();
    let report = std::fs::read_to_string(files[0].path()).unwrap();
    assert!(report.contains("], \"timed_workspace\": 21528576}"), "{report}");
}

#[test]
fn libraries_take_measured_memory() {
    let reports = tempfile::tempdir().unwrap();
    let libraries = [&library::LIBRARIES, &library::LIBCUDA];
    // Each entry has a call's result code, and the granules (2 MiB) that the call took on two H200.
    // The first call also loads PyTorch's kernels: they take 46 granules.
    let expected = "communicator: 0, 193\nreduction: 0, 237\nbroadcast: 0, 2\nmessage: 0, 61\n\
         another: 0, 0\nanswer: 0, 160\nto itself: 0, 0\nto nobody: 4, 0\n\
         further communicator: 0, 99\nbroadcast in place: 0, 144\nexchange: 0, 192\nend: 0, -435\n\
         one on each device: 0, 99\ncuBLAS: 0, 34\nagain: 0, 32\ndestroyed: 0, -32\ncuDNN: 0, 6\n\
         again: 0, 4\n";
    assert_eq!(run_beside(&libraries, "memory", reports.path()), expected);
}
