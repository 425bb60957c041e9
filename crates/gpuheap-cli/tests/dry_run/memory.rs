//! Verdicts on compiled programs that request memory through the CUDA runtime.

use crate::{Bench, Ran, library};
use serde_json::{Value, json};

/// Runs `refused.cpp` on a card. `way` is the first argument of that program.
fn ran(way: &str, card: &str, options: &[&str]) -> (Ran, Value) {
    let bench = Bench::with_runtime();
    let program = bench.compiled_with_runtime("crates/gpuheap-cli/tests/dry_run/refused.cpp");
    let (mut ran, json) =
        bench.json(&[&["--card", card][..], options, &["--", &program, way]].concat());
    ran.stderr = ran.stderr.replace(bench.files.path().to_str().unwrap(), "FOLDER");
    (ran, json)
}

fn refusals(json: &Value) -> Vec<Value> {
    json["cards"][0]["processes"][0]["refused"].as_array().unwrap().clone()
}

#[test]
fn unchecked_refusal_is_out_of_memory() {
    for (way, function) in
        [("ignored", "cudaMalloc"), ("ordered", "cudaMallocAsync"), ("killed", "cudaMalloc")]
    {
        let (ran, json) = ran(way, "RTX 4090", &[]);
        assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
        let refused = refusals(&json);
        let first = &refused[0];
        assert_eq!(first["function"], function);
        assert_eq!(first["requested"], 60_u64 << 30);
        assert_eq!((&first["library"], &first["is_decisive"]), (&"refused".into(), &true.into()));
        let line = first["lines"][0].as_str().unwrap();
        assert!(line.contains("refused.cpp:") && line.contains("ignore"), "{line}");
        let (ran, json) = self::ran(way, "H200", &[]);
        assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
    }
}

#[test]
fn refusal_before_exec_counts() {
    for (way, programs) in [("exec", 2), ("exec twice", 3)] {
        let (ran, json) = ran(way, "RTX 4090", &[]);
        assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
        assert!(ran.stderr.contains("cudaMalloc of 60 GiB was refused"), "{}", ran.stderr);
        let processes = json["cards"][0]["processes"].as_array().unwrap();
        assert_eq!(processes.len(), programs, "{processes:?}");
        assert!(processes.iter().all(|one| one["pid"] == processes[0]["pid"]), "{processes:?}");
    }
}

#[test]
fn unchecked_refusal_is_shown() {
    insta::assert_snapshot!(ran("ignored", "RTX 4090", &[]).0.stderr);
}

#[test]
fn checked_refusal_is_out_of_memory() {
    let (ran, _) = ran("checked", "RTX 4090", &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(!ran.stderr.contains("exit code 0"), "{}", ran.stderr);
}

#[test]
fn refusal_with_later_success_fits() {
    for (way, then) in [("repeated", "repeated"), ("halved", "less")] {
        let (ran, json) = ran(way, "RTX 4090", &[]);
        assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
        let refused = refusals(&json);
        let are_all = refused.iter().all(|one| one["then"] == then);
        assert!(!refused.is_empty() && are_all, "{refused:?}");
    }
    insta::assert_snapshot!(ran("halved", "RTX 4090", &[]).0.stderr);
}

#[test]
fn success_elsewhere_leaves_refusal_open() {
    let (ran, json) = ran("three", "RTX 4090", &[]);
    assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
}

#[test]
fn refusal_before_further_work_stays_open() {
    for way in ["sweep", "turns"] {
        let (ran, json) = ran(way, "RTX 4090", &[]);
        assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
        assert!(ran.stderr.contains("exit code 0 all the same"), "{}", ran.stderr);
    }
}

#[test]
fn search_ends_at_fitting_managed_memory() {
    let bench = Bench::with_runtime();
    let program = bench.compiled_with_runtime("crates/gpuheap-cli/tests/dry_run/refused.cpp");
    let search = ["--card", "RTX 4090", "--margin", "0", "--find-batch", "N=1..25", "--"];
    // The last value that is tried, 24, is too large.
    let (ran, json) = bench.json(&[&search[..], &[&program, "managed GiB", "{N}"]].concat());
    assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
    assert_eq!(json["batch"]["found"][0]["largest"], 23);
    assert!(ran.stderr.contains("Managed memory on RTX 4090: 23 GiB"), "{}", ran.stderr);
}

#[test]
fn managed_memory_beyond_the_device_oversubscribes() {
    let (ran, json) = ran("managed", "RTX 4090", &[]);
    assert_eq!((ran.code, &json["outcome"]), (1, &"oversubscribed".into()), "{}", ran.stderr);
    let device = &json["cards"][0]["processes"][0]["devices"][0];
    assert_eq!(device["managed"], json!(60_u64 << 30));
    assert_eq!(device["demand"], json!((60_u64 << 30) + device["in_use"].as_u64().unwrap()));
    insta::assert_snapshot!(ran.stderr);
    let (ran, json) = self::ran("managed", "RTX 4090", &["--allow-oversubscription"]);
    assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
    assert!(ran.stderr.contains("Managed memory on RTX 4090"), "{}", ran.stderr);
    let windows = ["--allow-oversubscription"];
    let (ran, json) = self::ran("managed", "RTX 4090 WSL2", &windows);
    assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
    assert!(ran.stderr.contains("which Windows does"), "{}", ran.stderr);
    assert_eq!(self::ran("managed little", "RTX 4090", &[]).0.code, 0);
}

#[test]
fn killed_program_keeps_its_figures() {
    let (ran, json) = ran("waits", "RTX 4090", &["--time-limit", "2s"]);
    assert_eq!((ran.code, &json["cards"][0]["reason"]), (3, &"no_step".into()), "{}", ran.stderr);
    assert_eq!(json["cards"][0]["processes"][0]["devices"][0]["managed"], 1 << 30);
}

#[test]
fn refusal_of_a_heap_counts() {
    let bench = Bench::with_runtime();
    let program = bench.compiled_with_runtime("crates/gpuheap-cli/tests/dry_run/heap.cpp");
    for (way, code, outcome) in [
        ("fits", 0, "fits"),
        ("ignored", 1, "does_not_fit"),
        ("pieces", 1, "does_not_fit"),
        ("told", 1, "does_not_fit"),
        ("halved", 0, "fits"),
    ] {
        let (ran, json) = bench.json(&["--card", "RTX 4090", "--", &program, way]);
        assert_eq!((ran.code, &json["outcome"]), (code, &outcome.into()), "{way}: {}", ran.stderr);
        if code == 1 {
            assert!(ran.stderr.contains("gpuheap_allocate of "), "{}", ran.stderr);
            assert!(ran.stderr.contains("heap.cpp:"), "{}", ran.stderr);
        }
    }
}

#[test]
fn refusal_under_dropin_counts() {
    let bench = Bench::with_runtime();
    let drop_in = library::folder(&[&library::MALLOC]);
    let drop_in = drop_in.path().join("libgpuheap_malloc.so");
    let program = bench.compiled_with_runtime("crates/gpuheap-cli/tests/dry_run/refused.cpp");
    // The first case preloads the drop-in library before the emulated libraries, the second after.
    for list in
        [format!("{}:$LD_PRELOAD", drop_in.display()), format!("$LD_PRELOAD:{}", drop_in.display())]
    {
        for (way, function, outcome) in [
            ("ignored", "cudaMalloc of 60 GiB", "does_not_fit"),
            ("ordered", "cudaMallocAsync of 60 GiB", "does_not_fit"),
            ("checked", "cudaMalloc of 60 GiB", "does_not_fit"),
            ("repeated", "", "fits"),
            ("halved", "", "fits"),
        ] {
            let line = format!("LD_PRELOAD={list} exec '{program}' {way}");
            let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "sh", "-c", &line]);
            assert_eq!(json["outcome"], outcome, "{list}, {way}: {}", ran.stderr);
            assert!(ran.stderr.contains(function) && !ran.stderr.contains("EiB"), "{}", ran.stderr);
            assert!(outcome == "fits" || ran.stderr.contains("refused.cpp:"), "{}", ran.stderr);
        }
    }
}

/// Runs a program of `examples/cpp` on an H200 with `memory`. The context takes 527 MiB.
fn example(name: &str, memory: &str) -> (Ran, Value) {
    let bench = Bench::with_runtime();
    let program = bench.compiled_with_runtime(&format!("examples/cpp/{name}.cpp"));
    bench.json(&["--memory", memory, "--", &program])
}

#[test]
fn example_free_and_reset_has_verdict() {
    let (ran, json) = example("free_and_reset", "1GiB");
    assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
    assert!(ran.stdout.contains("gpuheap: reset           0 MiB taken"), "{}", ran.stdout);
    let (ran, json) = example("free_and_reset", "600MiB");
    assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
    let refused = &refusals(&json)[0];
    assert_eq!(refused["function"], "cudaMallocAsync");
    assert_eq!(refused["requested"], 64 << 20);
    let source = include_str!("../../../../examples/cpp/free_and_reset.cpp");
    let line = 1 + source.lines().position(|line| line.contains("cudaMallocAsync(")).unwrap();
    let place = format!("free_and_reset.cpp:{line} ");
    assert!(refused["lines"][0].as_str().unwrap().contains(&place), "{refused}");
}

/// Two processes each hold a context and 256 MiB.
#[test]
fn example_process_end_has_verdict() {
    let (ran, json) = example("process_end", "2GiB");
    assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
    assert!(!ran.stdout.contains("memory: no"), "{}", ran.stdout);
    // A killed process writes no final report, so the verdict uses its latest report. Reports are
    // written when the peak has grown by 1/64, so the peak may be up to 1/64 too low.
    let all = json["cards"][0]["processes"].as_array().unwrap();
    let peaks: Vec<u64> =
        all.iter().map(|one| one["devices"][0]["in_use"].as_u64().unwrap()).collect();
    let held = peaks.iter().filter(|&&peak| peak >= 2 * 552_402_944 + (240 << 20));
    assert_eq!((peaks.len(), held.count()), (5, 4), "{peaks:?}");
    let (ran, json) = example("process_end", "1200MiB");
    assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
    assert!(ran.stdout.contains("memory: no"), "{}", ran.stdout);
    assert!(ran.stderr.contains("cudaMalloc of 256 MiB was refused"), "{}", ran.stderr);
}

/// Program in Rust that handles the error each time its heap refuses a request.
#[test]
#[ignore = "a program of `refusal_in_rust_counts`"]
fn rust_program() {
    let device = gpuheap::Device::open("cuda:0").unwrap();
    let (heap, stream) = (device.heap().unwrap(), device.default_stream().unwrap());
    let allocate = |gib: u64| heap.allocate(gib << 30, &stream);
    match std::env::var("WAY").unwrap().as_str() {
        "fits" => drop(allocate(20)),
        "caught" => drop((allocate(60), heap.allocate(1 << 30, &stream))),
        "halved" => drop([64, 32, 16].into_iter().find_map(|gib| allocate(gib).ok()).unwrap()),
        "repeated" => {
            let first = allocate(16).unwrap();
            let second = allocate(16);
            drop(first);
            drop(second.or_else(|_| allocate(16)).unwrap());
        }
        way => panic!("{way}"),
    }
}

#[test]
fn refusal_in_rust_counts() {
    let bench = Bench::new();
    let program = std::env::current_exe().unwrap();
    for (way, outcome) in
        [("fits", "fits"), ("caught", "does_not_fit"), ("halved", "fits"), ("repeated", "fits")]
    {
        let line = format!(
            "WAY={way} exec '{}' memory::rust_program --exact --ignored --test-threads=1",
            program.display()
        );
        let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "sh", "-c", &line]);
        assert_eq!(json["outcome"], outcome, "{way}: {}\n{}", ran.stderr, ran.stdout);
        if outcome != "fits" {
            let said = "gpuheap's allocation of 60 GiB was refused at";
            assert!(ran.stderr.contains(said), "{}", ran.stderr);
            assert!(ran.stderr.contains("memory.rs:"), "{}", ran.stderr);
        }
    }
}
