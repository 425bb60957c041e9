//! Fields of `--json`, on which scripts rely.

use serde_json::Value;

use crate::schema::{differences, schema_of};
use crate::support::{self, replay, replay_in};

const TRACE_FIELDS: [&str; 18] = [
    "schema",
    "trace",
    "format",
    "device",
    "events",
    "allocations",
    "frees",
    "unknown_frees",
    "failures",
    "left_live",
    "streams",
    "threads",
    "peak_live_bytes",
    "live_before_bytes",
    "device_memory_bytes",
    "results",
    "recorded",
    "verdict",
];
const POOL_FIELDS: [&str; 11] = [
    "pool",
    "settings",
    "peak_reserved_bytes",
    "peak_reserved_low_bytes",
    "utilisation",
    "driver_calls",
    "ns_per_event",
    "cold_ns_per_event",
    "minimum_device_bytes",
    "out_of_memory",
    "fallback",
];
const OUT_OF_MEMORY_FIELDS: [&str; 9] = [
    "event",
    "requested_bytes",
    "live_bytes",
    "rounding_bytes",
    "cached_bytes",
    "pending_bytes",
    "largest_cached_block_bytes",
    "short_by_bytes",
    "cause",
];

/// Returns the names of the fields that are indented by `indent` spaces, in printed order.
fn printed_fields(text: &str, indent: usize) -> Vec<&str> {
    let prefix = " ".repeat(indent) + "\"";
    text.lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .filter_map(|line| Some(line.split_once("\":")?.0))
        .collect()
}

/// Returns the lines between `results` and `recorded`.
fn results_alone(text: &str) -> String {
    let mut is_inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        is_inside = match line {
            _ if line.starts_with("    \"results\":") => true,
            _ if line.starts_with("    \"recorded\":") => false,
            _ => is_inside,
        };
        if is_inside {
            lines.push(line);
        }
    }
    lines.join("\n")
}

fn check_trace(trace: &Value) {
    for name in ["trace", "format"] {
        assert!(trace[name].is_string(), "{name}");
    }
    let unknown = if trace["format"] == "pytorch-snapshot" { "threads" } else { "device" };
    for name in &TRACE_FIELDS[3..14] {
        let is_unknown = *name == unknown;
        assert!(trace[*name].is_u64() != is_unknown, "{name} of {}", trace["trace"]);
        assert!(trace[*name].is_null() == is_unknown, "{name} of {}", trace["trace"]);
    }
    let count = |name: &str| trace[name].as_u64().unwrap();
    assert_eq!(
        count("events"),
        count("allocations") + count("frees") + count("unknown_frees") + count("failures")
    );
}

fn check_pool(result: &Value, with_minimum: bool) {
    for name in ["peak_reserved_bytes", "driver_calls"] {
        assert!(result[name].is_u64(), "{name}: {result}");
    }
    assert!((0.0..=1.0).contains(&result["utilisation"].as_f64().unwrap()), "{result}");
    assert_eq!(result["minimum_device_bytes"].is_u64(), with_minimum, "{result}");
    assert!(result["fallback"].is_null(), "{result}");
    let out_of_memory = &result["out_of_memory"];
    if out_of_memory.is_null() {
        for name in ["ns_per_event", "cold_ns_per_event"] {
            assert!(result[name].as_f64().unwrap() > 0.0, "{name}: {result}");
        }
        return;
    }
    for name in &OUT_OF_MEMORY_FIELDS[..8] {
        assert!(out_of_memory[*name].is_u64(), "{name}: {result}");
    }
    assert!(out_of_memory["cause"].is_string(), "{result}");
    assert!(out_of_memory["short_by_bytes"] != 0, "{result}");
}

#[test]
fn fields_have_order_and_type() {
    let files = ["gpt_train_short.csv.gz", "two_streams.snapshot.pickle.gz"];
    for (arguments, with_minimum, code) in [
        (&["--json"][..], false, 0),
        (&["--json", "--find-minimum"], true, 0),
        (&["--json", "--device-memory", "300M"], false, 1),
    ] {
        let ran = replay(&[arguments, &support::own_pools(), &files].concat());
        assert_eq!(ran.code, code, "{}", ran.stderr);
        let json = ran.json();
        let traces = json.as_array().unwrap();
        assert_eq!(traces.len(), 2);
        for (trace, name) in traces.iter().zip(files) {
            assert_eq!(trace["trace"], name);
            check_trace(trace);
            let results = trace["results"].as_array().unwrap();
            let pools: Vec<_> = results.iter().map(|one| one["pool"].as_str().unwrap()).collect();
            assert_eq!(pools, support::pools());
            results.iter().for_each(|result| check_pool(result, with_minimum));
        }
        assert_eq!(printed_fields(&ran.stdout, 4), TRACE_FIELDS.repeat(2));
        let results = results_alone(&ran.stdout);
        assert_eq!(printed_fields(&results, 8), POOL_FIELDS.repeat(2 * support::pools().len()));
        let stopped = printed_fields(&results, 10);
        let stops = if code == 1 { 2 * support::pools().len() } else { 0 };
        assert_eq!(stopped, OUT_OF_MEMORY_FIELDS.repeat(stops));
    }
}

#[test]
fn pools_keep_requested_order_without_repeats() {
    let pools = ["--pool", "split", "--pool", "none", "--pool", "split"];
    let json = replay(&[&pools[..], &["--json", "two_streams.csv.gz"]].concat()).json();
    let results = json[0]["results"].as_array().unwrap();
    let pools: Vec<_> = results.iter().map(|result| result["pool"].as_str().unwrap()).collect();
    assert_eq!(pools, ["split", "none"]);
}

/// Returns a snapshot of devices. `devices` has the size of each device's only allocation, or 0 for
/// no allocation.
fn snapshot(devices: &[u8]) -> Vec<u8> {
    let text =
        |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let entries = |bytes: &u8| match *bytes {
        0 => b"]".to_vec(),
        bytes => [
            &b"]}("[..],
            &text("action"),
            &text("alloc"),
            &text("addr"),
            b"K\x10",
            &text("size"),
            &[b'K', bytes],
            &text("stream"),
            b"K\0ua",
        ]
        .concat(),
    };
    let devices: Vec<u8> = devices.iter().flat_map(entries).collect();
    let (segments, traces) = (text("segments"), text("device_traces"));
    [b"\x80\x02}(", &segments[..], b"]", &traces, b"](", &devices, b"eu."].concat()
}

#[test]
fn snapshot_has_one_trace_per_device() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("three.pickle"), snapshot(&[70, 0, 90])).unwrap();
    let json = replay_in(folder.path(), &["--json", "--pool", "split", "three.pickle"]).json();
    let traces = json.as_array().unwrap().iter();
    let found: Vec<_> = traces.map(|trace| (&trace["device"], &trace["peak_live_bytes"])).collect();
    assert_eq!(found, [(&0.into(), &70.into()), (&2.into(), &90.into())]);
}

#[test]
fn printed_json_follows_schema() {
    let schema = schema_of("replay");
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 1, 1 << 30), ("allocate failure", 0, 8 << 30)];
    let log = folder.path().join("log.csv");
    std::fs::write(&log, crate::support::log(&rows)).unwrap();
    for arguments in [
        &["two_streams.snapshot.pickle.gz", "gpt_train_short.csv.gz"][..],
        &["varied_oom.snapshot.pickle.gz"],
        &["--card", "A100 40GB", "--check", "split", "varied_oom.snapshot.pickle.gz"],
        &["--limit", "1GiB", "--find-minimum", "--pool", "rmm:pool", "two_streams.csv.gz"],
        &["--profile", "wsl2-rtx4060", "--pool", "stitched", log.to_str().unwrap()],
        &["--tune", "varied_oom.snapshot.pickle.gz", "gpt_train_short.csv.gz"],
        &["--tune", "cupy", log.to_str().unwrap()],
    ] {
        let json = replay(&[&["--json"], arguments].concat()).json();
        assert_eq!(differences(&schema, &json, "$"), [""; 0], "{arguments:?}");
    }
}

#[test]
fn search_json_matches_text() {
    let arguments = ["--tune", "rmm", "gpt_train_short.csv.gz"];
    let json = replay(&[&["--json"], &arguments[..]].concat()).json();
    let search = &json[0];
    assert_eq!((&search["framework"], &search["gets_through"]), (&"rmm".into(), &true.into()));
    let text = replay(&arguments).stdout;
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(&format!("{} settings of RMM tried", search["tried"])), "{text}");
    let settings = search["settings"].as_array().unwrap();
    assert!(!settings.is_empty());
    for setting in settings {
        assert!(flat.contains(setting["line"].as_str().unwrap()), "{setting}\n{text}");
        let pool = setting["pool"].as_str().unwrap();
        let ran = replay(&["--json", "--pool", pool, "gpt_train_short.csv.gz"]).json();
        assert_eq!(ran[0]["results"][0]["peak_reserved_bytes"], setting["peak_reserved_bytes"]);
    }
    // The log of this failed run does not name its device. Without `--card`, no device is known on
    // which a setting could be enough, so `gets_through` is `false`.
    let folder = support::recordings().join("rmm-logs");
    let log = "cudf_oom.dev0.csv.gz";
    for (device, code) in [(&[][..], 1), (&["--card", "T4 16GB"], 0)] {
        let ran = replay_in(&folder, &[device, &["--json", "--tune", "rmm", log]].concat());
        assert_eq!((ran.code, &ran.json()[0]["gets_through"]), (code, &(code == 0).into()));
    }
}

#[test]
fn verdict_json_matches_text() {
    let run = "varied_oom.snapshot.pickle.gz";
    let (json, text) = (replay(&["--json", run]).json(), replay(&[run]).stdout);
    let verdict = &json[0]["verdict"];
    assert_eq!(verdict["gets_through"], false);
    assert_eq!(verdict["checked"], serde_json::json!(["torch"]));
    assert_eq!(verdict["recommended_pool"], "torch:expandable_segments:True");
    let line = verdict["recommended_setting"].as_str().unwrap();
    assert_eq!(line, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    assert!(text.contains(line), "{text}");
    assert_eq!(verdict["failure"]["event"], 3405);
    assert_eq!(verdict["failure"]["cause"], "fragmentation");
    assert_eq!(json[0]["recorded"]["failed_requests"][0]["requested_bytes"], 123_432_960);
    // PyTorch's limit in bytes, from the README of the recordings.
    let allowed = 5_253_845_811;
    let bound = |name: &str| json[0]["recorded"][name].as_u64().unwrap();
    let bounds = bound("memory_at_least_bytes")..bound("memory_below_bytes");
    assert!(bounds.contains(&allowed), "{bounds:?}");
}
