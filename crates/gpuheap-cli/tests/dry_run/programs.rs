//! Programs on the emulated driver.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Bench;

#[test]
fn program_finds_requested_devices() {
    let bench = Bench::new();
    let take = bench.compiled("take.c");
    let ran = bench.dry_run(&["--card", "RTX 3090", "--devices", "2", "--", &take, "100"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "2 x emulated RTX 3090, 24258 MiB: 0\n"));
    let ran = bench.dry_run(&["--card", "h200", "--memory", "4GiB", "--", &take, "100"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "1 x emulated NVIDIA H200, 4096 MiB: 0\n"));
}

#[test]
fn driver_reports_peak_failures_and_counts() {
    let bench = Bench::new();
    let take = bench.compiled("take.c");
    let (ran, json) = bench.json(&["--card", "h200", "--", &take, "100"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let device = &json["cards"][0]["processes"][0]["devices"][0];
    // The memory in use is the context's measured size plus the bytes that the program took.
    assert_eq!(device["in_use"], 552_402_944_u64 + (100 << 20));
    assert_eq!(json["unknown"]["reads"], 1);
    assert_eq!(json["unknown"]["asked_for_free_memory"], 0);
    assert_eq!(json["unknown"]["libraries"], serde_json::json!(["cuLinkComplete was refused"]));
    let (ran, json) = bench.json(&["--card", "T4,L4,H200", "--", &take, "20000", "free"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let outcomes: Vec<_> =
        json["cards"].as_array().unwrap().iter().map(|card| &card["outcome"]).collect();
    assert_eq!(outcomes, ["does_not_fit", "fits", "fits"]);
    assert_eq!(json["unknown"]["asked_for_free_memory"], 1);
    let refused = "Out of memory on T4 16GB: cuMemAlloc_v2 of 19.53 GiB was refused at";
    assert!(ran.stderr.contains(refused), "{}", ran.stderr);
}

#[test]
fn largest_fitting_value_is_found() {
    let bench = Bench::new();
    let take = bench.compiled("take.c");
    let (ran, json) =
        bench.json(&["--card", "L4", "--find-batch", "MIB=1..100000", "--", &take, "{MIB}"]);
    // Usable memory is all memory except the context, in whole granules of the driver.
    let usable = json["cards"][0]["usable"].as_u64().unwrap();
    let found = &json["batch"]["found"][0];
    assert_eq!(found["card"], "L4 24GB");
    assert_eq!(found["largest"], usable >> 21 << 1);
    let total = json["cards"][0]["total"].as_u64().unwrap();
    // By default, 3 % of the card stay free, rounded down to whole MiB.
    assert_eq!(found["margin"], (total * 3 / 100) >> 20 << 20);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn only_first_run_shows_output() {
    let bench = Bench::new();
    let script = [crate::USES_A_GPU, "echo out; echo err >&2"].concat();
    let (ran, json) = bench.json(&["--card", "T4,L4,H200", "--", "sh", "-c", &script]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "out\n"));
    assert_eq!(ran.stderr.matches("err\n").count(), 1, "{}", ran.stderr);
    let cards: Vec<_> =
        json["cards"].as_array().unwrap().iter().map(|card| &card["card"]).collect();
    assert_eq!(cards, ["T4 16GB", "L4 24GB", "H200 141GB"]);
}

#[test]
fn variable_is_set_and_replaced() {
    let bench = Bench::new();
    let script = "test $B = $1 && echo $1 >>values
        echo '{\"devices\": [{\"peak_in_use\": 5}]}' >$GPUHEAP_EMULATED_REPORT/driver.$$.json
        test $B -lt 23 || {
        echo '{\"requests\": [{\"requested\": 5}]}' >$GPUHEAP_EMULATED_REPORT/driver.$$.json
        exit 1
    }";
    let (ran, json) = bench.json(&[
        "--card",
        "L4",
        "--find-batch",
        "B=8..64",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        "{B}",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(json["batch"]["found"][0]["largest"], 22);
    assert!(ran.stderr.contains("A margin of 3 % is left"), "{}", ran.stderr);
    let values = std::fs::read_to_string(bench.files.path().join("values")).unwrap();
    assert_eq!(values.split_whitespace().take(3).collect::<Vec<_>>(), ["64", "8", "36"]);
    let ran = bench.dry_run(&["--find-batch", "B=30..64", "--", "sh", "-c", script, "sh", "{B}"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("It does not fit on H200 141GB with B=30."), "{}", ran.stderr);
}

#[test]
fn python_loads_hook_and_own_sitecustomize() {
    let bench = Bench::new();
    bench.file("sitecustomize.py", "print('own')");
    // The file is a stand-in for PyTorch, with the members that the hook reads.
    bench.file("torch.py", "class version: cuda = None\n__version__ = '0'\nprint('torch')\n");
    let script = "import sys, torch; print([p for p in sys.path if 'gpuheap-dry-run' in p])";
    let mut command = bench.command();
    command.env("PYTHONPATH", bench.files.path()).args(["--", "python3", "-c", script]);
    let ran = crate::ran(&mut command);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "own\ntorch\n[]\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("this PyTorch has no CUDA"), "{}", ran.stderr);
    // If PyTorch is missing and the program has no sitecustomize, the hook prints nothing.
    std::fs::remove_file(bench.files.path().join("sitecustomize.py")).unwrap();
    let script = "import sys; print('sitecustomize' in sys.modules)";
    let ran = bench.dry_run(&["--", "python3", "-c", script]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "True\n"));
    assert!(ran.stderr.starts_with("\ngpuheap dry-run"), "{}", ran.stderr);
}

#[test]
fn unserved_module_is_named() {
    let bench = Bench::new();
    bench.file("cupy.py", "");
    let mut command = bench.command();
    command.env("PYTHONPATH", bench.files.path()).args(["--", "python3", "-c", "import cupy"]);
    let ran = crate::ran(&mut command);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let text = ran.stderr.replace("\n  ", " ");
    assert!(text.contains("imports cupy, which cannot be dry-run: its CUDA runtime"), "{text}");
}

/// Stand-ins for modules of JAX, with the members that the hook reads.
const JAX: [(&str, &str); 3] = [
    ("jax/_src/__init__.py", ""),
    ("jax/_src/hardware_utils.py", "has_visible_nvidia_gpu = lambda: False"),
    (
        "jax/__init__.py",
        "
import types
__version__ = '9.8.7'
def memory_stats():
    return dict(peak_bytes_in_use=3 << 30, pool_bytes=9 << 30, bytes_limit=9 << 30,
                peak_pool_bytes=9 << 30, num_allocs=7)
device = types.SimpleNamespace(platform='gpu', id=0, memory_stats=memory_stats)
local_devices = lambda: [device]
",
    ),
];

#[test]
fn jax_peaks_are_its_pools() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.files.path().join("jax/_src")).unwrap();
    for (name, text) in JAX {
        bench.file(name, text);
    }
    let script = "
import os, sys, jax._src.hardware_utils as utils
assert utils.has_visible_nvidia_gpu() and 'command_buffer=' in os.environ['XLA_FLAGS']
if len(sys.argv) > 1:
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate ' + sys.argv[1])
";
    let run = |more: &[&str]| {
        let file = bench.files.path().join("verdict.json");
        let mut command = bench.command();
        command.env("PYTHONPATH", bench.files.path()).arg("--json").arg(&file);
        let ran = crate::ran(command.args(["--", "python3", "-c", script]).args(more));
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        (ran, json["cards"][0]["processes"][0].clone())
    };
    let (ran, process) = run(&[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(process["devices"][0]["allocated"], 3_u64 << 30, "{process}");
    assert_eq!(process["devices"][0]["reserved"], 3_u64 << 30, "{process}");
    for (size, bytes) in [("13.5GiB with", 27_u64 << 29), ("1234 bytes.", 1234)] {
        let (ran, process) = run(&[size]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert_eq!(process["failures"][0]["requested"], bytes, "{process}");
    }
}

#[test]
fn signal_is_passed_to_the_program() {
    let bench = Bench::new();
    let script = "trap 'echo passed; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = bench.command();
    command.args(["--", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut stdout, &mut ready).unwrap();
    let sent = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    let rest = std::io::read_to_string(stdout).unwrap();
    assert_eq!((output.status.code(), rest.as_str()), (Some(3), "passed\n"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("No verdict") && stderr.contains("interrupted"), "{stderr}");
}

#[test]
fn time_limit_ends_program_without_steps() {
    let bench = Bench::new();
    let began = Instant::now();
    let (ran, json) = bench.json(&["--time-limit", "1ms", "--", "sleep", "600"]);
    assert!(began.elapsed() < Duration::from_secs(300));
    let card = &json["cards"][0];
    assert_eq!((&card["ended"], &card["reason"]), (&"time_limit".into(), &"no_step".into()));
    assert!(ran.stderr.contains("Give it more time"), "{}", ran.stderr);
    assert_eq!(ran.code, 3);
}

#[test]
fn block_written_by_kernel_reads_zero() {
    let bench = Bench::new();
    let program = bench.compiled("pool.c");
    let (ran, json) = bench.json(&["--card", "RTX 4090", "--", &program]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "0\n"), "{}", ran.stderr);
    assert_eq!(json["unknown"]["reads"], 1);
}

#[test]
fn several_variables_have_their_edge() {
    let bench = Bench::new();
    let take = bench.compiled("take.c");
    let script = format!("exec {take} $((B * L))");
    let options = ["--card", "L4", "--find-batch", "B=1..64", "--find-length", "L=1000..8000:1000"];
    let file = bench.files.path().join("table.md");
    let markdown = ["--markdown", file.to_str().unwrap(), "--margin", "5%"];
    let program = ["--", "sh", "-c", &script];
    let (ran, json) = bench.json(&[&options[..], &markdown, &program].concat());
    let usable = json["cards"][0]["usable"].as_u64().unwrap() >> 20;
    let found = json["batch"]["found"].as_array().unwrap();
    let edge = found.iter().map(|one| (one["with"]["L"].as_u64(), one["largest"].as_u64()));
    let expected = [1000, 2000, 4000, 8000].map(|l| (Some(l), Some(usable / l)));
    assert_eq!(edge.collect::<Vec<_>>(), expected, "{}", ran.stderr);
    let words = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let edge = "up to B=21 with L=1000, B=10 with L=2000, B=5 with L=4000, B=2 with L=8000.";
    assert!(words.contains(edge), "{words}");
    assert!(words.contains("A margin of 5 % is left"), "{words}");
    let table = std::fs::read_to_string(file).unwrap();
    let row = "| card | L | largest B |\n|---|---|---|\n| L4 24GB | 1000 |";
    assert!(table.contains(row), "{table}");
}
