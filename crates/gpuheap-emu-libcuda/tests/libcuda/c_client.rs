//! Tests with C programs that link `libcuda.so.1` or load it with `dlopen`.

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

/// Destructors of C and C++ that run at a thread's end may call the driver after the library's own
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

#[test]
fn report_has_peak_and_host_copies() {
    let folder = library::folder(&[&library::LIBCUDA]);
    let program = compile(&folder, "report", &["-ldl".as_ref()]);
    let reports = tempfile::tempdir().unwrap();
    let to = reports.path().to_str().unwrap();
    let variables = [
        ("GPUHEAP_EMULATED_DEVICE", "t4,1GiB"),
        ("GPUHEAP_EMULATED_REPORT", to),
        ("GPUHEAP_EMULATED_KERNELS", "no-op"),
    ];
    let output = library::command(&program, &folder, &variables).output().unwrap();
    assert_eq!(library::quiet_success(output), "129 bytes in 3\n");
    // The forked child writes no report.
    let files: Vec<_> = std::fs::read_dir(reports.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let expected = "\"devices\": [{\"name\": \"emulated Tesla T4\", \"number\": 0, \"total\": 15833497600, \
         \"peak_in_use\": 113246208, \"in_use_at_end\": 113246208, \"largest_refused_bytes\": 0, \
         \"peak_managed\": 0, \"peak_demand\": 113246208}, {\"name\": \"emulated device\", \
         \"number\": 1, \"total\": 1073741824, \"peak_in_use\": 0, \"in_use_at_end\": 0, \"largest_refused_bytes\": 0, \
         \"peak_managed\": 0, \"peak_demand\": 0}], \"asked_for_free_memory\": 0, \
         \"copies_to_host\": 4, \"launches_dropped\": 0, \"out_of_memory\": 0, \"refused\": [], \
         \"export_tables\": [], \"has_pytorch\": false, \"requests\": []}\n";
    let text = std::fs::read_to_string(files[0].path()).unwrap();
    let (began, rest) = text.split_once(", ").unwrap();
    assert!(began.strip_prefix("{\"began\": ").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(rest, expected);
}

/// Compiles the program `NAME.c` and runs it with the checks on. Asserts that it prints `expected`
/// and causes no findings.
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
