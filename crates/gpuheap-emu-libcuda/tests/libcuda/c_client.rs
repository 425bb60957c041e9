//! A C program that is linked with `libcuda.so.1`, as the loader binds it.

use std::process::Command;

use crate::library;

#[test]
fn a_linked_program_runs() {
    let folder = library::folder();
    let program = folder.path().join("client");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(&compiler)
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libcuda/client.c"))
        .arg("-L")
        .arg(folder.path())
        .arg("-l:libcuda.so.1")
        .status()
        .unwrap();
    assert!(compiled.success());

    for schedule in ["immediate", "seeded:5"] {
        let output = library::command(&program, &folder)
            .env("GPUHEAP_EMULATED_DEVICE", "2GiB")
            .env("GPUHEAP_EMULATED_SCHEDULE", schedule)
            .env("GPUHEAP_EMULATED_CHECKS", "1")
            .output()
            .unwrap();
        assert_eq!(library::quiet_success(output), "the end of the C program\n");
    }
}
