//! Tests the names that a profiler gets for a heap's memory. A stand-in for a profiler prints them.

use crate::*;

/// The test runs itself as the program.
#[test]
fn heap_names_its_memory() {
    const PROGRAM: &str = "NAMES_PROGRAM";
    if std::env::var_os(PROGRAM).is_some() {
        let device = gpuheap::Device::open("cuda:0").unwrap();
        let heap = gpuheap::Heap::builder(&device).build().unwrap();
        let array = heap.target().unwrap().zeroed::<u8, _>(1000).unwrap();
        drop(array);
        drop(heap);
        std::process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    let tool = folder.path().join("tool.so");
    let mut compile = compiler();
    compile.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&tool);
    compile.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/nvtx_tool.c"));
    assert!(compile.status().unwrap().success());
    let test = std::env::current_exe().unwrap();
    let words = ["--", test.to_str().unwrap(), "--exact", "names::heap_names_its_memory"];
    let named = |options: &[&str]| {
        let all = [&["--emulate", "16GiB"], options, &words, &["--nocapture"]].concat();
        let mut gpuheap = gpuheap(&folder, &all);
        let ran = ran(gpuheap.env("NVTX_INJECTION64_PATH", &tool).env(PROGRAM, "1"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let is_name = |line: &&str| {
            line.starts_with("pool") || line.contains("block") || line.contains("named")
        };
        ran.stdout.lines().filter(is_name).map(str::to_owned).collect::<Vec<_>>()
    };
    let names = [
        "pool gpuheap device memory, cuda:0",
        "block of 1000",
        "named names.rs:12",
        "block ended",
        "pool ended",
    ];
    assert_eq!(named(&["--nvtx"]), names);
    assert_eq!(named(&[]), [""; 0]);
    let refused =
        ran(gpuheap(&folder, &["--nvtx", "--", "true"]).env_remove("NVTX_INJECTION64_PATH"));
    assert_eq!((refused.code, &*refused.stdout), (2, ""));
    assert!(refused.stderr.contains("--nvtx: no profiler runs this command"), "{}", refused.stderr);
}
