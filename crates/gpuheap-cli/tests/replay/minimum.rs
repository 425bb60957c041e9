//! Tests that replays succeed on devices of the minimum size, and fail with 2 MiB less.

use serde_json::Value;

use crate::support::{SHORT, own_pools, replay, traces};

const STEP: u64 = 2 << 20;

fn minima(arguments: &[&str]) -> Vec<(String, u64)> {
    let json = replay(&[arguments, &["--json", "--find-minimum"]].concat()).json();
    let results = json[0]["results"].as_array().unwrap();
    let minimum = |one: &Value| one["minimum_device_bytes"].as_u64().unwrap();
    results.iter().map(|one| (one["pool"].as_str().unwrap().to_owned(), minimum(one))).collect()
}

fn gets_through(trace: &str, pool: &str, memory: u64, arguments: &[&str]) -> bool {
    let memory = memory.to_string();
    let own = ["--pool", pool, "--device-memory", &memory, trace];
    match replay(&[&own, arguments].concat()).code {
        0 => true,
        1 => false,
        code => panic!("exit code {code} for {trace}, {pool}, {memory}"),
    }
}

#[test]
fn minimum_is_the_smallest_enough() {
    for trace in SHORT {
        for (pool, minimum) in minima(&[trace]) {
            assert_eq!(minimum % STEP, 0);
            assert!(gets_through(trace, &pool, minimum, &[]), "{trace}, {pool}: {minimum}");
            assert!(!gets_through(trace, &pool, minimum - STEP, &[]), "{trace}, {pool}: {minimum}");
        }
    }
}

/// The default pool needs at most a twentieth more than the live bytes, plus 64 MiB.
#[test]
fn stitched_needs_little_beyond_live() {
    let names = traces().read_dir().unwrap().map(|file| file.unwrap().file_name());
    let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    let logs: Vec<_> = names.iter().filter(|name| name.ends_with(".csv.gz")).collect();
    assert_eq!(logs.len(), 7);
    let mut arguments = vec!["--json", "--find-minimum", "--pool", "stitched"];
    arguments.extend(logs.iter().map(|name| name.as_str()));
    for found in replay(&arguments).json().as_array().unwrap() {
        let peak_live = found["peak_live_bytes"].as_u64().unwrap();
        let minimum = found["results"][0]["minimum_device_bytes"].as_u64().unwrap();
        let most = peak_live + peak_live / 20 + (64 << 20);
        assert!(minimum <= most, "{}: {minimum} for {peak_live} live", found["trace"]);
    }
}

#[test]
fn minimum_is_found_from_below() {
    let trace = "gpt_train_short.csv.gz";
    for (pool, minimum) in minima(&["--device-memory", "500M", trace]) {
        assert!(gets_through(trace, &pool, minimum, &[]), "{pool}: {minimum}");
        assert!(!gets_through(trace, &pool, minimum - STEP, &[]), "{pool}: {minimum}");
    }
}

#[test]
fn minimum_respects_delay_and_limit() {
    let trace = "two_streams.csv.gz";
    // A limit of 80 % is a share of each device that the search tries, not of one fixed device.
    for arguments in [["--delay", "5ms"], ["--limit", "80%"]] {
        for (pool, minimum) in minima(&[&own_pools()[..], &arguments, &[trace]].concat()) {
            let enough = gets_through(trace, &pool, minimum, &arguments);
            let less = gets_through(trace, &pool, minimum - STEP, &arguments);
            assert!(enough && !less, "{arguments:?}, {pool}: {minimum}, {enough}, {less}");
        }
    }
}

#[test]
fn too_low_limit_has_no_minimum() {
    let arguments = ["--find-minimum", "--limit", "1GiB", "--pool", "split", "two_streams.csv.gz"];
    let ran = replay(&[&arguments[..], &["--json"]].concat());
    assert_eq!(ran.code, 1);
    assert!(ran.json()[0]["results"][0]["minimum_device_bytes"].is_null());
    let shown = replay(&arguments).stdout;
    assert!(shown.contains("- no smallest device: the limit of 1 GiB is too low"), "{shown}");
    assert!(shown.contains("None of these pools lets it through within 1 GiB"), "{shown}");
}
