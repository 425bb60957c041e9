//! Runs commands on the emulated NVML, which they load like the real NVML.

use std::path::Path;

use serde_json::Value;

use crate::schema::{differences, schema_of};
use crate::{Ran, library};

/// Runs the command with the emulated NVML on the loader's path.
fn on(variable: (&str, &str), arguments: &[&str]) -> Ran {
    let folder = library::folder(&[&library::NVML]);
    let program = Path::new(env!("CARGO_BIN_EXE_gpuheap"));
    crate::ran(library::command(program, &folder, &[variable]).args(arguments))
}

/// Runs `doctor --probe-cuda` with the emulated NVML and the emulated driver.
fn probed(device: &str, arguments: &[&str]) -> Ran {
    let folder = library::folder(&[&library::NVML, &library::LIBCUDA]);
    let program = Path::new(env!("CARGO_BIN_EXE_gpuheap"));
    let variables = [("GPUHEAP_EMULATED_DEVICE", device)];
    crate::ran(
        library::command(program, &folder, &variables)
            .args(["doctor", "--probe-cuda"])
            .args(arguments),
    )
}

#[test]
fn cuda_probes_run_in_child_process() {
    let ran = probed("h200", &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    insta::assert_snapshot!(ran.stdout);
    let ran = probed("h200,t4", &["--json"]);
    let json: Value = ran.json();
    assert_eq!(differences(&schema_of("doctor"), &json, "$"), [""; 0]);
    let probes = json["cuda"].as_array().unwrap();
    let outcomes: Vec<_> = probes.iter().map(|probe| &probe["outcome"]).collect();
    assert_eq!(outcomes, vec!["ok"; 10], "{probes:#?}");
    assert_eq!((&probes[1]["gpu"], &probes[1]["bytes"]), (&0.into(), &552_402_944.into()));
    assert_eq!((&probes[6]["gpu"], &probes[6]["probe"]), (&1.into(), &"context".into()));
}

#[test]
fn refused_pinned_memory_is_a_finding() {
    let ran = probed("wsl2-rtx4060", &["--json"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let json: Value = ran.json();
    let findings = json["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["rule"] == "G16").unwrap();
    assert!(found["fact"].as_str().unwrap().starts_with("pinned memory: refused after"), "{found}");
    assert_eq!(found["severity"], "warning");
}

#[test]
fn missing_cuda_is_a_skipped_probe() {
    let ran = on(("GPUHEAP_EMULATED_DEVICE", "t4"), &["doctor", "--probe-cuda"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(
        ran.stdout.contains("driver                   skipped: no CUDA driver"),
        "{}",
        ran.stdout
    );
}

/// Describes a device whose listed processes are this test and a pid that cannot exist. Another 1
/// GiB in use belongs to no listed process.
fn description() -> String {
    let own = std::process::id();
    format!(
        r#"{{"driver": "580.1", "devices": [
            {{"profile": "16GiB", "name": "Test A", "uuid": "GPU-a",
              "memory": {{"reserved": 536870912, "unaccounted": 1073741824}},
              "processes": [{{"pid": {own}, "bytes": 3221225472}},
                            {{"pid": 4194304, "bytes": 2147483648}}]}},
            {{"profile": "t4", "failures": {{"nvmlDeviceGetMemoryInfo_v2": "GPU_IS_LOST"}}}}]}}"#
    )
}

#[test]
fn status_accounts_for_listed_processes() {
    let description = description();
    let ran = on(("GPUHEAP_EMULATED_NVML", &description), &["status", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json: Value = ran.json();
    assert_eq!(differences(&schema_of("status"), &json, "$"), [""; 0]);
    assert_eq!(json["driver"], "580.1");
    let device = &json["devices"][0];
    assert_eq!((&device["name"], &device["uuid"]), (&"Test A".into(), &"GPU-a".into()));
    let bytes = |field: &str| device[field].as_u64().unwrap();
    assert_eq!((bytes("total_bytes"), bytes("reserved_bytes")), (16 << 30, 1 << 29));
    // The two processes have 3 GiB and 2 GiB, and 1 GiB is unaccounted.
    assert_eq!((bytes("used_bytes"), bytes("unaccounted_bytes")), (6 << 30, 1 << 30));
    assert_eq!(bytes("free_bytes"), (10 << 30) - (1 << 29));
    let [own, gone] = device["processes"].as_array().unwrap().as_slice() else {
        panic!("{device}")
    };
    assert_eq!(
        (own["pid"].as_u64(), &own["place"]),
        (Some(std::process::id().into()), &"own".into())
    );
    assert!(own["command"].as_str().unwrap().starts_with("machine-"), "{own}");
    assert_eq!((&gone["pid"], &gone["command"]), (&4_194_304.into(), &Value::Null));
    assert_eq!(json["devices"][1]["failure"]["code"], 15);

    let ran = on(("GPUHEAP_EMULATED_NVML", &description), &["status"]);
    assert!(ran.stdout.contains("Test A") && ran.stdout.contains("4194304"), "{}", ran.stdout);
}

#[test]
fn doctor_names_the_lost_device() {
    let ran = on(("GPUHEAP_EMULATED_NVML", &description()), &["doctor", "--json"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let json: Value = ran.json();
    assert_eq!(differences(&schema_of("doctor"), &json, "$"), [""; 0]);
    assert_eq!((&json["driver"], &json["devices"]), (&"580.1".into(), &2.into()));
    let findings = json["findings"].as_array().unwrap();
    let names = |finding: &&Value| finding["fact"].as_str().unwrap().contains("GPU 1");
    assert!(findings.iter().any(|finding| names(&finding)), "{findings:?}");
}

#[test]
fn version_mismatch_is_shown_with_code() {
    let description = r#"{"failures": {"nvmlInit_v2": "LIB_RM_VERSION_MISMATCH"}}"#;
    let ran = on(("GPUHEAP_EMULATED_NVML", description), &["status"]);
    assert_eq!(ran.code, 3, "{}", ran.stdout);
    assert!(ran.stderr.contains("(NVML error 18)"), "{}", ran.stderr);
}

#[test]
fn idle_emulated_device_uses_no_memory() {
    let ran = on(("GPUHEAP_EMULATED_DEVICE", "t4"), &["status", "--json"]);
    let json: Value = ran.json();
    assert_eq!(json["devices"][0]["used_bytes"], 0, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(json["devices"][0]["name"], "emulated Tesla T4");
}

#[test]
fn free_names_live_holders() {
    let own = std::process::id();
    let description = format!(
        r#"{{"driver": "580.1", "devices": [{{"profile": "t4",
            "processes": [{{"pid": {own}, "bytes": 1073741824}}]}}]}}"#
    );
    let ran = on(("GPUHEAP_EMULATED_NVML", &description), &["free"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let line = format!("1024 MiB  pid {own} machine-");
    assert!(ran.stdout.contains(&line), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("$ kill {own}\n")), "{}", ran.stdout);
    // The program is not an orphan, so it is not ended, and no memory becomes free.
    let ran = on(("GPUHEAP_EMULATED_NVML", &description), &["free", "--yes"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("nothing was ended: no process is a proven"), "{}", ran.stdout);
    assert!(ran.stdout.contains(&line), "{}", ran.stdout);
}

#[test]
fn pause_without_yes_changes_nothing() {
    let own = std::process::id();
    let description = format!(
        r#"{{"driver": "580.1", "devices": [{{"profile": "t4",
            "processes": [{{"pid": {own}, "bytes": 1073741824}}]}}]}}"#
    );
    let folder = library::folder(&[&library::NVML, &library::LIBCUDA]);
    let state = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_gpuheap"));
    let run = |arguments: &[&str]| {
        let variables = [("GPUHEAP_EMULATED_NVML", description.as_str())];
        let mut command = library::command(program, &folder, &variables);
        let output = command.env("XDG_STATE_HOME", state.path()).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let pid = own.to_string();
    let (code, text) = run(&["pause", &pid]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("$ gpuheap pause {pid} --yes")), "{text}");
    assert!(text.replace('\n', " ").contains("1024 MiB of GPU 0"), "{text}");
    assert!(!state.path().join("gpuheap").exists());
    let (code, text) = run(&["resume", &pid]);
    assert!(code == 3 && text.contains("no record of a pause"), "{text}");
    // The emulated driver cannot checkpoint other processes.
    let (code, text) = run(&["pause", &pid, "--yes"]);
    assert!(code == 3 && text.contains("cuCheckpointProcessGetState failed"), "{text}");
    let (code, text) = run(&["resume", &pid]);
    assert!(code == 0 && text.contains(&format!("$ gpuheap resume {pid} --yes")), "{text}");
    let (code, text) = run(&["resume", &pid, "--yes"]);
    assert!(code == 3 && text.contains("cuCheckpointProcessGetState failed"), "{text}");
    let (code, text) = run(&["pause", "4194304"]);
    assert!(code == 3 && text.contains("no memory of a device"), "{text}");
    assert_eq!(run(&["pause"]).0, 2);
}
