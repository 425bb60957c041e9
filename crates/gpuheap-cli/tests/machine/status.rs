//! `gpuheap status`.

use crate::schema::{differences, schema_of};
use crate::{gpuheap, recorded};

#[test]
fn status_json_follows_schema() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["h200_idle", "several_users", "wsl2", "wsl2_windows"] {
        let file = recorded::write(name, folder.path());
        let ran = gpuheap(&["status", "--json", "--machine", file.to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let json = ran.json();
        assert_eq!(differences(&schema_of("status"), &json, "$"), [""; 0], "{name}");
    }
}

#[test]
fn emulated_device_is_its_own_account() {
    let ran = gpuheap(&["status", "--json", "--device", "emulated:16GiB"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json: serde_json::Value = ran.json();
    assert_eq!(differences(&schema_of("status"), &json, "$"), [""; 0]);
    assert_eq!(json["devices"][0]["total_bytes"], 16_u64 << 30);
}

#[test]
fn figures_of_windows_follow_the_accounts() {
    let folder = tempfile::tempdir().unwrap();
    let file = recorded::write("wsl2_windows", folder.path());
    let ran = gpuheap(&["status", "--machine", file.to_str().unwrap()]);
    let rows: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("GPU memory ")).collect();
    assert!(rows[0].contains("Dedicated GPU memory    1450 MiB"), "{}", ran.stdout);
    assert!(rows[1].contains("Shared GPU memory         96 MiB"), "{}", ran.stdout);
    let ran = gpuheap(&["status", "--json", "--machine", file.to_str().unwrap()]);
    let json: serde_json::Value = ran.json();
    assert_eq!(json["windows"]["wsl_dedicated_bytes"], 1000 << 20);
}

#[test]
fn missing_gpu_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bare.machine");
    std::fs::write(&file, "== /dev/null\n").unwrap();
    let ran = gpuheap(&["status", "--machine", file.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""));
    insta::assert_snapshot!(ran.stderr);
}

#[test]
fn driver_failure_is_shown_with_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mismatch.machine");
    let failure = "{\"failure\": {\"code\": 18, \"text\": \"version mismatch\"}}";
    std::fs::write(&file, format!("== /dev/nvidia0\n== nvml\n{failure}\n")).unwrap();
    let ran = gpuheap(&["status", "--machine", file.to_str().unwrap()]);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("version mismatch (NVML error 18)"), "{}", ran.stderr);
}

#[test]
fn surplus_argument_is_no_option() {
    let ran = gpuheap(&["status", "1"]);
    assert_eq!(ran.code, 2);
    assert_eq!(ran.stderr, "error: '1' is one argument too many; see gpuheap status --help\n");
}
