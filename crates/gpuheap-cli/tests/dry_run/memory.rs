//! Verdicts on compiled programs of the CUDA runtime, by the memory that they request.

use crate::{Bench, Ran};
use serde_json::{Value, json};

/// Runs `refused.cpp` on a card, in one of its ways.
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
        assert_eq!(
            (&first["function"], &first["requested"]),
            (&function.into(), &(60_u64 << 30).into())
        );
        assert_eq!((&first["library"], &first["is_decisive"]), (&"refused".into(), &true.into()));
        let line = first["lines"][0].as_str().unwrap();
        assert!(line.contains("refused.cpp:") && line.contains("ignore"), "{line}");
        let (ran, json) = self::ran(way, "H200", &[]);
        assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
    }
}

#[test]
fn unchecked_refusal_is_told() {
    insta::assert_snapshot!(ran("ignored", "RTX 4090", &[]).0.stderr);
}

#[test]
fn checked_refusal_is_out_of_memory() {
    let (ran, _) = ran("checked", "RTX 4090", &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(!ran.stderr.contains("did not check"), "{}", ran.stderr);
}

#[test]
fn refusal_that_is_made_good_fits() {
    for (way, then) in [("repeated", "repeated"), ("halved", "less")] {
        let (ran, json) = ran(way, "RTX 4090", &[]);
        assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
        let refused = refusals(&json);
        assert!(
            !refused.is_empty() && refused.iter().all(|one| one["then"] == then),
            "{refused:?}"
        );
    }
    insta::assert_snapshot!(ran("halved", "RTX 4090", &[]).0.stderr);
}

#[test]
fn refusal_is_not_made_good_elsewhere() {
    let (ran, json) = ran("three", "RTX 4090", &[]);
    assert_eq!((ran.code, &json["outcome"]), (1, &"does_not_fit".into()), "{}", ran.stderr);
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
    assert_eq!(self::ran("managed little", "RTX 4090", &[]).0.code, 0);
}

#[test]
fn killed_program_leaves_its_figures() {
    let (ran, json) = ran("waits", "RTX 4090", &["--time-limit", "2s"]);
    assert_eq!((ran.code, &json["cards"][0]["reason"]), (3, &"no_step".into()), "{}", ran.stderr);
    assert_eq!(json["cards"][0]["processes"][0]["devices"][0]["managed"], 1 << 30);
}
