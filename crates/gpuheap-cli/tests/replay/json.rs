//! The shape of `--json`, which scripts rely on.

use serde_json::Value;

use crate::support::{POOLS, replay};

const TRACE_FIELDS: [&str; 13] = [
    "trace",
    "format",
    "events",
    "allocations",
    "frees",
    "unknown_frees",
    "left_live",
    "streams",
    "threads",
    "peak_live_bytes",
    "live_before_bytes",
    "device_memory_bytes",
    "results",
];
const POOL_FIELDS: [&str; 8] = [
    "pool",
    "peak_reserved_bytes",
    "utilisation",
    "driver_calls",
    "ns_per_event",
    "cold_ns_per_event",
    "minimum_device_bytes",
    "out_of_memory",
];
const OUT_OF_MEMORY_FIELDS: [&str; 7] = [
    "event",
    "requested_bytes",
    "live_bytes",
    "cached_bytes",
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

fn check_trace(trace: &Value) {
    for name in ["trace", "format"] {
        assert!(trace[name].is_string(), "{name}");
    }
    for name in &TRACE_FIELDS[2..12] {
        let is_unknown = *name == "threads" && trace["format"] == "pytorch-snapshot";
        assert!(trace[*name].is_u64() != is_unknown, "{name} of {}", trace["trace"]);
        assert!(trace[*name].is_null() == is_unknown, "{name} of {}", trace["trace"]);
    }
    let count = |name: &str| trace[name].as_u64().unwrap();
    assert_eq!(count("events"), count("allocations") + count("frees") + count("unknown_frees"));
}

fn check_pool(result: &Value, with_minimum: bool) {
    for name in ["peak_reserved_bytes", "driver_calls"] {
        assert!(result[name].is_u64(), "{name}: {result}");
    }
    assert!((0.0..=1.0).contains(&result["utilisation"].as_f64().unwrap()), "{result}");
    assert_eq!(result["minimum_device_bytes"].is_u64(), with_minimum, "{result}");
    let out_of_memory = &result["out_of_memory"];
    if out_of_memory.is_null() {
        for name in ["ns_per_event", "cold_ns_per_event"] {
            assert!(result[name].as_f64().unwrap() > 0.0, "{name}: {result}");
        }
        return;
    }
    for name in &OUT_OF_MEMORY_FIELDS[..6] {
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
        let ran = replay(&[arguments, &files].concat());
        assert_eq!(ran.code, code, "{}", ran.stderr);
        let json = ran.json();
        let traces = json.as_array().unwrap();
        assert_eq!(traces.len(), 2);
        for (trace, name) in traces.iter().zip(files) {
            assert_eq!(trace["trace"], name);
            check_trace(trace);
            let results = trace["results"].as_array().unwrap();
            let pools: Vec<_> = results.iter().map(|one| one["pool"].as_str().unwrap()).collect();
            assert_eq!(pools, POOLS);
            results.iter().for_each(|result| check_pool(result, with_minimum));
        }
        assert_eq!(printed_fields(&ran.stdout, 4), TRACE_FIELDS.repeat(2));
        assert_eq!(printed_fields(&ran.stdout, 8), POOL_FIELDS.repeat(10));
        let stopped = printed_fields(&ran.stdout, 10);
        let stops = if code == 1 { 10 } else { 0 };
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
