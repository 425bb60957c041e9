//! Figures that are known without a replay, or that hold for all policies.

use serde_json::Value;

use crate::support::{SHORT, log, own_pools, pools, replay, replay_in, traces};

/// Parses a number of the traces' README, `1,234` or `1234`.
fn number(cell: &str) -> u64 {
    cell.replace(',', "").parse().unwrap()
}

#[test]
fn counts_and_peaks_match_readme() {
    let readme = std::fs::read_to_string(traces().join("README.md")).unwrap();
    let rows: Vec<Vec<&str>> = readme
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| file"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 7);
    let files: Vec<String> = rows.iter().map(|row| format!("{}.csv.gz", row[1])).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let ran = replay(&[&["--json", "--pool", "binned"], &files[..]].concat());
    for (row, found) in rows.iter().zip(ran.json().as_array().unwrap()) {
        assert_eq!(found["trace"], format!("{}.csv.gz", row[1]));
        assert_eq!(found["events"], number(row[2]), "{}", row[1]);
        assert_eq!(found["streams"], number(row[3]), "{}", row[1]);
        assert_eq!(found["peak_live_bytes"], number(row[4]), "{}", row[1]);
    }
    assert_eq!(ran.code, 0);
}

#[test]
fn recorded_only_omits_earlier_blocks() {
    let peaks = |arguments: &[&str]| -> Vec<(u64, u64)> {
        let files = ["two_streams.snapshot.pickle.gz", "gpt_train_short.snapshot.pickle.gz"];
        let ran = replay(&[arguments, &["--json", "--pool", "simple"], &files].concat());
        let json = ran.json();
        let figure = |trace: &Value, name: &str| trace[name].as_u64().unwrap();
        json.as_array()
            .unwrap()
            .iter()
            .map(|trace| (figure(trace, "peak_live_bytes"), figure(trace, "live_before_bytes")))
            .collect()
    };
    assert_eq!(peaks(&[]), [(1_910_530_056, 68_157_440), (671_893_152, 0)]);
    assert_eq!(peaks(&["--recorded-only"]), [(1_842_372_616, 0), (671_893_152, 0)]);
}

/// Pools with segments as small as a request. A separate test runs them, in parallel with the test
/// of the other pools.
const SMALL_SEGMENTS: [&str; 2] = ["simple", "binned"];

/// Replays on devices that have from far too little to more than enough memory.
fn reserves_what_is_live_at_least_and_the_device_at_most(pools: &[&str]) {
    let pools: Vec<&str> = pools.iter().flat_map(|pool| ["--pool", *pool]).collect();
    for trace in SHORT {
        let whole = replay(&["--json", "--pool", "simple", trace]).json();
        let peak_live = whole[0]["peak_live_bytes"].as_u64().unwrap();
        for percent in [50, 90, 101, 106, 115, 140, 300] {
            // A device's size need not be a multiple of the pools' granules.
            let memory = peak_live / 100 * percent + 1001;
            let device = ["--json", "--device-memory", &memory.to_string(), trace];
            let found = &replay(&[&pools[..], &device].concat()).json()[0];
            assert_eq!(found["device_memory_bytes"], memory);
            for result in found["results"].as_array().unwrap() {
                let reserved = result["peak_reserved_bytes"].as_u64().unwrap();
                assert!(reserved <= memory, "{trace} on {memory} bytes: {result}");
                if result["out_of_memory"].is_null() {
                    assert!(reserved >= peak_live, "{trace} on {memory} bytes: {result}");
                    let expected = peak_live as f64 / reserved as f64;
                    let utilisation = result["utilisation"].as_f64().unwrap();
                    assert!((utilisation - expected).abs() < 1e-12, "{result}");
                }
            }
        }
    }
}

#[test]
fn reserved_lies_between_live_and_device() {
    let others: Vec<_> =
        pools().into_iter().filter(|pool| !SMALL_SEGMENTS.contains(pool)).collect();
    reserves_what_is_live_at_least_and_the_device_at_most(&others);
}

#[test]
fn small_segments_lie_between_too() {
    reserves_what_is_live_at_least_and_the_device_at_most(&SMALL_SEGMENTS);
}

#[test]
fn limit_holds_for_every_policy() {
    for (limit, bytes) in [("1GiB", 1 << 30), ("2.5GiB", 5 << 29), ("1%", 150_109_880_320 / 100)] {
        let limited = ["--json", "--limit", limit, "two_streams.csv.gz"];
        let json = replay(&[&own_pools()[..], &limited].concat()).json();
        let results = json[0]["results"].as_array().unwrap();
        assert_eq!(results.len(), pools().len());
        for result in results {
            assert!(result["peak_reserved_bytes"].as_u64().unwrap() <= bytes, "{limit}: {result}");
            let cause = result["out_of_memory"]["cause"].as_str();
            assert!(
                !matches!(cause, Some("device_full" | "larger_than_device")),
                "{limit}: {result}"
            );
        }
    }
}

#[test]
fn longer_delay_reserves_more() {
    let reserved = |arguments: &[&str]| {
        let own = ["--json", "--pool", "binned", "two_streams.csv.gz"];
        let json = replay(&[arguments, &own].concat()).json();
        json[0]["results"][0]["peak_reserved_bytes"].as_u64().unwrap()
    };
    // The trace is 4 s long. If the replay ignored the trace's times, all delays would act alike.
    let delays = [&[][..], &["--delay", "100us"], &["--delay", "5ms"], &["--delay", "1.5s"]];
    let peaks = delays.map(reserved);
    assert!(peaks.is_sorted_by(|shorter, longer| shorter < longer), "{peaks:?}");
    assert_eq!(delays.map(reserved), peaks, "virtual time has no luck in it");
}

#[test]
fn event_number_is_log_row() {
    const MIB: u64 = 1 << 20;
    let plain = [
        ("allocate", 0x1000, 4 * MIB),
        ("allocate", 0x2000, 4 * MIB),
        ("free", 0x1000, 4 * MIB),
        ("allocate", 0x3000, 7 * MIB),
    ];
    let lost_frees = [
        ("allocate", 0x1000, MIB),
        ("allocate", 0x1000, 2 * MIB),
        ("allocate", 0x1000, 4 * MIB),
        ("allocate", 0x3000, 7 * MIB),
    ];
    let unknown_frees = [
        ("free", 0x1000, MIB),
        ("free", 0x2000, MIB),
        ("free", 0x3000, MIB),
        ("allocate", 0x4000, 11 * MIB),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (rows, left_live) in [(plain, 2), (lost_frees, 2), (unknown_frees, 1)] {
        std::fs::write(folder.path().join("log.csv"), log(&rows)).unwrap();
        let arguments = [&own_pools()[..], &["--device-memory", "10MiB", "log.csv"]].concat();
        let ran = replay_in(folder.path(), &[&["--json"], &arguments[..]].concat());
        assert_eq!(ran.code, 1);
        let json = ran.json();
        assert_eq!((&json[0]["events"], &json[0]["left_live"]), (&4.into(), &left_live.into()));
        let results = json[0]["results"].as_array().unwrap();
        assert_eq!(results.len(), pools().len());
        for result in results {
            let out_of_memory = &result["out_of_memory"];
            assert_eq!(out_of_memory["event"], 4, "{result}");
            assert_eq!(out_of_memory["requested_bytes"], rows[3].2, "{result}");
            assert_eq!(out_of_memory["live_bytes"], (left_live - 1) * 4 * MIB, "{result}");
            let cause = if left_live == 1 { "larger_than_device" } else { "device_full" };
            assert_eq!(out_of_memory["cause"], cause, "{result}");
            assert!(result["ns_per_event"].is_null() && result["cold_ns_per_event"].is_null());
        }
        let text = replay_in(folder.path(), &arguments).stdout.replace('\n', " ");
        assert_eq!(text.matches(" fails at event 4: ").count(), pools().len(), "{text}");
    }
}

#[test]
fn zero_bytes_need_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [("allocate", 0, 0), ("allocate", 0, 0), ("free", 0, 0)];
    std::fs::write(folder.path().join("log.csv"), log(&rows)).unwrap();
    let arguments = ["--json", "--find-minimum", "--pool", "split", "--pool", "binned", "log.csv"];
    let ran = replay_in(folder.path(), &arguments);
    let json = ran.json();
    assert_eq!((ran.code, &json[0]["peak_live_bytes"]), (0, &Value::from(0)));
    for result in json[0]["results"].as_array().unwrap() {
        assert_eq!(result["peak_reserved_bytes"], 0);
        assert_eq!(result["minimum_device_bytes"], 0);
        assert!(result["utilisation"].is_null(), "nothing is no share of nothing: {result}");
    }
}
