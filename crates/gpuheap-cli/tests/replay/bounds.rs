//! Tests memory limits and devices that are given as arguments, and verdicts for devices that have
//! just enough memory or slightly too little.

use crate::support::{Ran, replay};

const FAILED: &str = "varied_oom.snapshot.pickle.gz";

/// Returns the text before the table, with one space between words.
fn words(ran: &Ran) -> String {
    let verdict = ran.stdout.split("\n\npool ").next().unwrap();
    verdict.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The recorded run failed because it had only 4.85 GiB. The program needs 4.94 GiB.
#[test]
fn limit_replaces_memory_of_failed_run() {
    for (limit, code) in [("4.94GiB", 0), ("4.8GiB", 1)] {
        let ran = replay(&["--limit", limit, FAILED]);
        assert_eq!(ran.code, code, "{}", ran.stdout);
        let words = words(&ran);
        assert!(words.contains(&format!(", limited to {limit} ")), "{words}");
        assert!(!words.contains("the memory that the run had"), "{words}");
        // `--limit` is not the limit that stopped the recorded run.
        assert!(!words.contains("your own limit"), "{words}");
        assert_eq!(words.contains("a higher limit: 4.94 GiB"), code == 1, "{words}");
    }
    let ran = replay(&["--tune", "--limit", "4.94GiB", FAILED]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
}

#[test]
fn fraction_is_advised_if_device_suffices() {
    let advised = |arguments: &[&str]| words(&replay(&[arguments, &[FAILED]].concat()));
    let on_small = advised(&["--card", "GTX 1650 4GB"]);
    assert!(on_small.contains("more memory: 4.94 GiB needed"), "{on_small}");
    assert!(!on_small.contains("set_per_process_memory_fraction"), "{on_small}");
    let pool = ["--pool", "torch:per_process_memory_fraction:0.6", "--card"];
    let on_small = advised(&[&pool[..], &["GTX 1650 4GB"]].concat());
    assert!(on_small.contains("more memory: 4.94 GiB needed"), "{on_small}");
    let on_large = advised(&[&pool[..], &["GTX 1060 6GB"]].concat());
    assert!(on_large.contains("set_per_process_memory_fraction(0.831)"), "{on_large}");
    assert!(advised(&[]).contains("set_per_process_memory_fraction(4.94 * 2**30"));
}

/// If the streams run at the recorded speed, 1.81 GiB is enough. At other speeds of the streams,
/// the program needs up to 1.94 GiB.
#[test]
fn range_beyond_device_may_fail() {
    let run = "two_streams.snapshot.pickle.gz";
    let pool = ["--pool", "torch:expandable_segments:True", run];
    let on = |memory: &str| replay(&[&["--json", "--device-memory", memory], &pool[..]].concat());
    for (memory, code) in [("1.81GiB", 1), ("1.95GiB", 0)] {
        let ran = on(memory);
        let json = ran.json();
        let (verdict, result) = (&json[0]["verdict"], &json[0]["results"][0]);
        assert_eq!((ran.code, &verdict["may_fail"]), (code, &(code == 1).into()), "{memory}");
        assert!(result["out_of_memory"].is_null(), "{result}");
        // No pool holds more than the device.
        let high = result["peak_reserved_bytes"].as_u64().unwrap();
        assert!(high <= json[0]["device_memory_bytes"].as_u64().unwrap(), "{result}");
    }
    let shown = words(&replay(&[&["--device-memory", "1.81GiB"], &pool[..]].concat()));
    assert!(shown.contains("may run out of memory here, or get through"), "{shown}");
    assert!(shown.contains("1.94 GiB of usable memory is enough"), "{shown}");
}

/// The report does not advise a pool that needs as many bytes and driver calls as the program's own
/// pool.
#[test]
fn advice_for_successful_run_takes_less() {
    let run = "two_streams.snapshot.pickle.gz";
    let json = replay(&["--json", "--pool", "torch:expandable_segments:True", run]).json();
    let now = json[0]["results"][0]["peak_reserved_bytes"].as_u64().unwrap();
    let remedies = json[0]["verdict"]["remedies"].as_array().unwrap();
    assert!(
        remedies.iter().all(|one| one["reserved_bytes"].as_u64().unwrap() < now),
        "{remedies:?}"
    );
}
