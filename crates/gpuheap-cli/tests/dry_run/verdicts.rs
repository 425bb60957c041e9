//! Tests the texts of verdicts. A script writes the reports that the verdicts are made from.

use crate::Bench;

/// Returns a script that writes the reports `driver` and `torch` of a process, and ends with the
/// exit code `code`. The script also copies the snapshot `trace`, unless `trace` is empty.
fn script(bench: &Bench, driver: &str, torch: &str, trace: &str, code: i32) -> String {
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces");
    let copy = match trace {
        "" => String::new(),
        name => format!("cp {traces}/{name} $to/torch.7.pickle\n"),
    };
    let text = format!(
        "to=$GPUHEAP_EMULATED_REPORT\n\
         cat >$to/driver.7.json <<'END'\n{driver}\nEND\n\
         cat >$to/torch.7.json <<'END'\n{torch}\nEND\n{copy}exit {code}\n"
    );
    bench.file("program.sh", &text)
}

const DRIVER: &str = r#"{
    "devices": [{"name": "x", "total": 25382879232, "peak_in_use": 6100000000}],
    "copies_to_host": 12, "launches_dropped": 741
}"#;

fn without_folder(bench: &Bench, text: &str) -> String {
    text.replace(bench.files.path().to_str().unwrap(), "FOLDER")
}

#[test]
fn program_that_fits() {
    let bench = Bench::new();
    let torch = r#"{
        "torch": "2.11.0+cu130", "cuda": "13.0", "steps": 3, "reads_watched": true, "reads": 12,
        "devices": [{"device": 0, "requested": 4683000000, "allocated": 4684000000,
            "reserved": 5176000000, "allocations": 2022, "step": 2}],
        "lines": [{"line": "train.py:31 in main", "times": 9}, {"line": "train.py:40 in log", "times": 3}]
    }"#;
    let script = script(&bench, DRIVER, torch, "gpt_train_short.snapshot.pickle.gz", 0);
    let trace = bench.files.path().join("out.pickle");
    let ran = bench.dry_run(&[
        "--card",
        "RTX 4090",
        "--trace",
        trace.to_str().unwrap(),
        "--",
        "sh",
        &script,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(std::fs::metadata(trace).unwrap().len() > 1000);
    insta::assert_snapshot!(without_folder(&bench, &ran.stderr));
    bench.json(&["--card", "RTX 4090", "--", "sh", &script]);
}

#[test]
fn program_out_of_memory() {
    let bench = Bench::new();
    let torch = r#"{
        "torch": "2.11.0+cu130", "cuda": "13.0", "steps": 0, "failed": 1,
        "devices": [{"device": 0, "requested": 4683000000, "allocated": 4684000000,
            "reserved": 5176000000, "allocations": 2022, "step": 1}],
        "failures": [{"device": 0, "requested": 123428864, "allocated": 4684000000,
            "reserved": 5176000000, "step": 1, "lines": ["train.py:12 in forward", "train.py:31 in main"]}]
    }"#;
    let script = script(&bench, DRIVER, torch, "varied_oom.snapshot.pickle.gz", 1);
    let ran = bench.dry_run(&["--card", "RTX 2060", "--", "sh", &script]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    insta::assert_snapshot!(without_folder(&bench, &ran.stderr));
}

#[test]
fn small_card_gets_needed_memory() {
    let bench = Bench::new();
    let torch = |failed| {
        format!(
            r#"{{"torch": "2", "cuda": "13.0", "steps": 1, "failed": {failed},
            "devices": [{{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}}]}}"#
        )
    };
    let trace = "gpt_train_short.snapshot.pickle.gz";
    let fits = script(&bench, DRIVER, &torch(0), trace, 0);
    std::fs::rename(&fits, bench.files.path().join("fits.sh")).unwrap();
    let fails = script(&bench, DRIVER, &torch(1), trace, 1);
    std::fs::rename(&fails, bench.files.path().join("fails.sh")).unwrap();
    // The program succeeds on an emulated device of 2 TiB, and fails on every smaller device.
    let program = bench.file(
        "program.sh",
        "case $GPUHEAP_EMULATED_DEVICE in *2199023255552*|*2TiB*|*2048GiB*) exec sh fits.sh;; esac\nexec sh fails.sh\n",
    );
    let options = ["--card", "GTX 1650", "--memory", "1GiB", "--", "sh", &program];
    let (ran, json) = bench.json(&options);
    assert_eq!((ran.code, &json["is_lower_bound"]), (1, &false.into()), "{}", ran.stderr);
    let smallest = json["needs"]["cards"][0].as_str().unwrap();
    let next = format!("gpuheap dry-run --card '{smallest}' -- sh");
    assert!(json["next"].as_str().unwrap().starts_with(&next), "{}", ran.stderr);
}

#[test]
fn early_failure_names_refusals_without_cards() {
    let bench = Bench::new();
    let driver = DRIVER.replacen('{', r#"{"refused": [{"function": "cuMystery", "times": 1}],"#, 1);
    let torch = r#"{"torch": "2", "cuda": "13.0",
        "devices": [{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}]}"#;
    let script = script(&bench, &driver, torch, "gpt_train_short.snapshot.pickle.gz", 1);
    let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "sh", &script]);
    assert_eq!((ran.code, &json["needs"]["cards"]), (3, &serde_json::json!([])));
    assert!(ran.stderr.contains("Calls were refused before"), "{}", ran.stderr);
    assert!(ran.stderr.contains("needs at least"), "{}", ran.stderr);
    // If the program fails although no call was refused, the report suspects another cause: the
    // program rejected a result that the dry run chose.
    let script = self::script(&bench, DRIVER, torch, "gpt_train_short.snapshot.pickle.gz", 1);
    let ran = bench.dry_run(&["--card", "RTX 4090", "--", "sh", &script]);
    assert!(ran.stderr.contains("Results are chosen"), "{}", ran.stderr);
}

#[test]
fn program_without_pytorch() {
    let bench = Bench::new();
    let driver = r#"{
        "devices": [{"total": 1, "peak_in_use": 6100000000}, {"total": 1, "peak_in_use": 7100000000}],
        "copies_to_host": 1, "launches_dropped": 1, "asked_for_free_memory": 2,
        "refused": [{"function": "cuIpcGetMemHandle", "times": 2}]
    }"#;
    let script = script(&bench, driver, "not a report", "", 0);
    let ran = bench.dry_run(&["--card", "L4,T4", "--devices", "2", "--", "sh", &script]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    insta::assert_snapshot!(without_folder(&bench, &ran.stderr));
}

#[test]
fn close_fit_is_noted() {
    let bench = Bench::new();
    // Of 25.38 GB.
    let noted = |peak: &str| {
        let script = script(&bench, &DRIVER.replace("6100000000", peak), "not a report", "", 0);
        let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "sh", &script]);
        assert_eq!((ran.code, &json["outcome"]), (0, &"fits".into()), "{}", ran.stderr);
        json["notes"].to_string().contains("RTX 4090 is nearly full: the program leaves")
    };
    assert_eq!((noted("24700000000"), noted("24500000000")), (true, false));
}

#[test]
fn static_runtime_has_no_verdict() {
    let bench = Bench::new();
    let driver = DRIVER.replacen('{', r#"{"export_tables": ["libcupy.so"],"#, 1);
    let script = script(&bench, &driver, "not a report", "", 0);
    let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "sh", &script]);
    assert_eq!((ran.code, &json["outcome"]), (3, &"no_verdict".into()));
    assert_eq!(json["cards"][0]["reason"], "static_runtime");
    assert!(ran.stderr.contains("nvcc -cudart shared"), "{}", ran.stderr);
    insta::assert_snapshot!(without_folder(&bench, &ran.stderr));
}

#[test]
fn size_from_result_has_own_code() {
    let bench = Bench::new();
    let torch = r#"{"torch": "2", "cuda": "13.0", "steps": 1,
        "sizes": [{"line": "/home/a/train.py:31 in mask", "operator": "nonzero", "times": 9}],
        "devices": [{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}]}"#;
    let script = script(&bench, DRIVER, torch, "gpt_train_short.snapshot.pickle.gz", 0);
    let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "sh", &script]);
    assert_eq!((ran.code, &json["outcome"]), (4, &"fits_as_far_as_known".into()));
    assert_eq!(json["unknown"]["sizes"][0]["times"], 9);
    assert!(ran.stderr.contains("train.py:31 in mask by nonzero (9 times)"), "{}", ran.stderr);
    // A size depends on a result that the dry run chose, so the figures are lower bounds. The
    // verdict then names no card that fits, and no next command.
    assert_eq!((&json["is_lower_bound"], &json["next"]), (&true.into(), &None::<()>.into()));
    assert_eq!(json["needs"]["cards"], serde_json::json!([]));
    assert!(ran.stderr.contains("needs at least"), "{}", ran.stderr);
}

#[test]
fn program_without_gpu_has_no_verdict() {
    let bench = Bench::new();
    let (ran, json) = bench.json(&["--card", "RTX 4090", "--", "true"]);
    assert_eq!((ran.code, &json["cards"][0]["reason"]), (3, &"no_gpu_used".into()));
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn caught_failure_fits() {
    let bench = Bench::new();
    let report =
        |went_on| format!(r#"{{"torch": "2", "cuda": "13.0", "failed": 2, "went_on": {went_on}}}"#);
    let script = script(&bench, DRIVER, &report(true), "", 0);
    assert_eq!(bench.dry_run(&["--", "sh", &script]).code, 0);
    let script = self::script(&bench, DRIVER, &report(false), "", 0);
    assert_eq!(bench.dry_run(&["--", "sh", &script]).code, 1);
}

#[test]
fn smallest_cards_are_of_runs_capability() {
    let bench = Bench::new();
    let torch = r#"{"torch": "2", "cuda": "13.0", "steps": 1,
        "devices": [{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}]}"#;
    let script = script(&bench, DRIVER, torch, "gpt_train_short.snapshot.pickle.gz", 0);
    let (ran, json) = bench.json(&["--card", "H200", "--", "sh", &script]);
    assert_eq!(json["needs"]["capability"], serde_json::json!([9, 0]), "{}", ran.stderr);
    let cards = json["needs"]["cards"].as_array().unwrap();
    let names = ["H100", "H200", "GH200"];
    let is_like = |card: &str| names.iter().any(|name| card.starts_with(name));
    assert!(cards.iter().all(|card| is_like(card.as_str().unwrap())), "{cards:?}");
    assert_eq!(json["needs"]["smaller"], "RTX 5060 8GB");
    assert!(ran.stderr.contains("By memory alone, RTX 5060 8GB is"), "{}", ran.stderr);
    let next = "gpuheap dry-run --card 'RTX 5060 8GB' -- sh";
    assert!(json["next"].as_str().unwrap().starts_with(next), "{}", ran.stderr);
    let (_, json) = bench.json(&["--card", "H200,RTX 5060 8GB", "--", "sh", &script]);
    assert!(json["needs"]["smaller"].is_null() && json["next"].is_null(), "{json}");
}

#[test]
fn quick_replays_cards_of_same_capability() {
    let bench = Bench::new();
    let torch = r#"{"torch": "2", "cuda": "13.0", "steps": 1,
        "devices": [{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}]}"#;
    let trace = "gpt_train_short.snapshot.pickle.gz";
    let script = script(&bench, DRIVER, torch, trace, 0);
    let arguments = ["--quick", "--card", "RTX 4090,RTX 4060,L40S,T4", "--", "sh", &script];
    let (_, json) = bench.json(&arguments);
    let cards = json["cards"].as_array().unwrap();
    let replayed: Vec<_> =
        cards.iter().map(|card| card["is_replayed"].as_bool().unwrap()).collect();
    assert_eq!(replayed, [false, true, true, false]);
    // A program that queries free memory may choose its sizes by it, so it is run on each card.
    let asks = DRIVER.replacen('{', r#"{"asked_for_free_memory": 1,"#, 1);
    let script = self::script(&bench, &asks, torch, trace, 0);
    let arguments = ["--quick", "--card", "RTX 4090,RTX 4060", "--", "sh", &script];
    let (_, json) = bench.json(&arguments);
    assert_eq!(json["cards"][1]["is_replayed"], false);
}

#[test]
fn each_device_has_own_verdict() {
    let bench = Bench::new();
    let report = |rank: u64, used: &str, failed: u64| {
        // The process of rank 1 sees only device 1 of the machine. It began later, but has the
        // smaller process id.
        format!(
            r#"cat >$to/driver.{pid}.json <<'END'
{{"began": {rank}, "devices": [{{"number": {rank}, "total": 25000000000, "peak_in_use": {used}}}]}}
END
cat >$to/torch.{pid}.json <<'END'
{{"torch": "2", "cuda": "13.0", "rank": "{rank}", "steps": 2, "failed": {failed}, "failures_watched": true,
  "devices": [{{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}}],
  "failures": [{failures}]}}
END
"#,
            pid = 100 - rank,
            failures = match failed {
                0 => String::new(),
                _ => r#"{"device": 0, "requested": 123428864, "allocated": 5, "reserved": 6, "step": 1}"#
                    .to_owned(),
            }
        )
    };
    let small = [report(0, "6100000000", 0), report(1, "23000000000", 1)].concat();
    let with_room = [report(0, "6200000000", 0), report(1, "31000000000", 0)].concat();
    let program = bench.file(
        "program.sh",
        &format!(
            "to=$GPUHEAP_EMULATED_REPORT\ncase $GPUHEAP_EMULATED_DEVICE in *2199023255552*)\n\
             {with_room}exit 0;; esac\n{small}exit 1\n"
        ),
    );
    let markdown = bench.files.path().join("verdict.md");
    let options = ["--card", "L4", "--devices", "2", "--remedies=never"];
    let options =
        [&options[..], &["--markdown", markdown.to_str().unwrap()], &["--", "sh", &program]];
    let (ran, json) = bench.json(&options.concat());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(json["cards"][0]["processes"][0]["pid"], 100);
    let devices = json["cards"][0]["devices"].as_array().unwrap();
    let verdicts: Vec<_> = devices
        .iter()
        .map(|one| {
            let user = one["users"][0]["rank"].as_str().unwrap();
            (one["number"].as_u64().unwrap(), one["outcome"].as_str().unwrap(), user)
        })
        .collect();
    assert_eq!(verdicts, [(0, "fits", "0"), (1, "does_not_fit", "1")]);
    assert_eq!(devices[0]["peak"], 6_100_000_000_u64);
    assert_eq!(devices[1]["with_room"], 31_000_000_000_u64);
    let markdown = std::fs::read_to_string(markdown).unwrap();
    insta::assert_snapshot!(without_folder(&bench, &[ran.stderr, markdown].concat()));
}

#[test]
fn benchmark_mode_names_smaller_card() {
    let bench = Bench::new();
    let report = |in_use: &str, allocated: &str, failed: u64| {
        format!(
            r#"echo '{{"timed_workspace": 3000000000}}' >$to/libraries.7.json
cat >$to/driver.7.json <<'END'
{{"devices": [{{"total": 25000000000, "peak_in_use": {in_use}}}]}}
END
cat >$to/torch.7.json <<'END'
{{"torch": "2", "cuda": "13.0", "steps": 2, "failed": {failed}, "went_on": true, "failures_watched": true,
  "devices": [{{"device": 0, "allocated": {allocated}, "reserved": {allocated}, "step": 1}}],
  "remedies": {{"benchmark_off": ""}}}}
END
"#
        )
    };
    // On 8 GB, the program catches a failure, and completes a step with a smaller batch.
    let program = format!(
        "to=$GPUHEAP_EMULATED_REPORT\ncase $GPUHEAP_DRY_RUN_REMEDY in benchmark_off)\n{}exit;; esac\n\
         case $GPUHEAP_EMULATED_DEVICE in *4060*|*4070*) case $GPUHEAP_EMULATED_DEVICE in *Ti*) ;; *)\n\
         {}exit;; esac;; esac\n{}",
        report("6000000000", "5000000000", 0),
        report("7000000000", "6000000000", 1),
        report("20000000000", "19000000000", 0),
    );
    let program = bench.file("program.sh", &program);
    let (ran, json) = bench.json(&["--card", "RTX 4090", "--remedies", "--", "sh", &program]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let benchmark = &json["benchmark"];
    assert_eq!(benchmark["without"], 5_000_000_000_u64, "{}", ran.stderr);
    let tried: Vec<_> = benchmark["tried"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["card"].as_str().unwrap(), run["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(tried, [("RTX 4070", "does_not_fit"), ("RTX 4060 Ti 16GB", "fits")]);
    let text = "it raised the peak by 13.04 GiB, from 4.66 GiB to 17.70\n  GiB allocated.";
    assert!(ran.stderr.contains(text), "{}", ran.stderr);
    assert!(ran.stderr.contains("fits on RTX 4060 Ti 16GB too"), "{}", ran.stderr);
}

#[test]
fn failed_fsdp_run_is_estimated() {
    let bench = Bench::new();
    let torch = r#"{"torch": "2", "cuda": "13.0", "steps": 1, "remedies": {"fsdp": ""},
        "devices": [{"device": 0, "allocated": 4684000000, "reserved": 5176000000, "step": 1}]}"#;
    let trace = "gpt_train_short.snapshot.pickle.gz";
    let script = script(&bench, DRIVER, torch, trace, 0);
    let owners = r#"[{"device": 0, "kinds": [{"kind": "parameters", "bytes": 1000000000},
        {"kind": "gradients", "bytes": 1000000000}]}]"#;
    let program = bench.file(
        "shards.sh",
        &format!(
            "echo '{owners}' >$GPUHEAP_EMULATED_REPORT/owners.7.json\n\
             case $GPUHEAP_DRY_RUN_REMEDY in fsdp_4) exit 1;; esac\n. {script}\n"
        ),
    );
    let (ran, json) = bench.json(&["--card", "L4", "--remedies", "--", "sh", &program]);
    let trials: Vec<_> = json["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trial| (trial["remedy"].as_str().unwrap(), trial["is_estimate"].as_bool().unwrap()))
        .collect();
    assert_eq!(trials, [("fsdp_2", false), ("fsdp_4", true), ("fsdp_8", false)], "{}", ran.stderr);
}
