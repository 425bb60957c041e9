//! The shape of `--json`, which scripts rely on.

use serde_json::Value;

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

/// The fields in the order in which they are printed, of all objects that begin with `first`.
fn printed_fields(text: &str, indent: usize) -> Vec<&str> {
    let prefix = " ".repeat(indent) + "\"";
    text.lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .filter_map(|line| Some(line.split_once("\":")?.0))
        .collect()
}

/// The lines between `results` and `recorded`.
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
fn every_field_is_there_in_its_order_and_of_its_type() {
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
fn pools_come_in_the_order_asked_for_and_once() {
    let pools = ["--pool", "split", "--pool", "none", "--pool", "split"];
    let json = replay(&[&pools[..], &["--json", "two_streams.csv.gz"]].concat()).json();
    let results = json[0]["results"].as_array().unwrap();
    let pools: Vec<_> = results.iter().map(|result| result["pool"].as_str().unwrap()).collect();
    assert_eq!(pools, ["split", "none"]);
}

/// A snapshot in which each device has allocated once, so many bytes; none at all for 0.
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
fn devices_of_a_snapshot_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("three.pickle"), snapshot(&[70, 0, 90])).unwrap();
    let json = replay_in(folder.path(), &["--json", "--pool", "split", "three.pickle"]).json();
    let traces = json.as_array().unwrap().iter();
    let found: Vec<_> = traces.map(|trace| (&trace["device"], &trace["peak_live_bytes"])).collect();
    assert_eq!(found, [(&0.into(), &70.into()), (&2.into(), &90.into())]);
}
