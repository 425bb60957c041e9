//! C programs that use `libcuda.so.1`: linked with it, bound by the loader, and loading it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::library;

#[test]
fn a_linked_program_runs() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let link = ["-L".as_ref(), folder.path(), "-l:libcuda.so.1".as_ref()];
    assert_runs(&folder, "client", &link, "the end of the C program\n");
}

/// Destructors that C and C++ run at a thread's end may call the driver after the library's own
/// thread-local variables are destroyed.
#[test]
fn calls_at_thread_end_succeed() {
    let link = ["-pthread".as_ref(), "-ldl".as_ref()];
    assert_runs(
        &library::folder(&[&library::LIBCUDA]),
        "thread_end",
        &link,
        "the end of the threads\n",
    );
}

/// Compiles the program `NAME.c` and runs it with the checks on. Asserts that it prints `expected`
/// and that the checks find nothing.
fn assert_runs(folder: &TempDir, name: &str, link: &[&Path], expected: &str) {
    let program = compile(folder, name, link);
    for schedule in ["immediate", "seeded:5"] {
        let variables = [
            ("GPUHEAP_EMULATED_DEVICE", "2GiB"),
            ("GPUHEAP_EMULATED_SCHEDULE", schedule),
            ("GPUHEAP_EMULATED_CHECKS", "1"),
        ];
        let output = library::command(&program, folder, &variables).output().unwrap();
        assert_eq!(library::quiet_success(output), expected, "{schedule}");
    }
}

/// Compiles the program `NAME.c` of this folder into `folder`.
fn compile(folder: &TempDir, name: &str, arguments: &[&Path]) -> PathBuf {
    let program = folder.path().join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libcuda");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(&compiler)
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(sources.join(name).with_extension("c"))
        .args(arguments)
        .status()
        .unwrap();
    assert!(compiled.success());
    program
}
