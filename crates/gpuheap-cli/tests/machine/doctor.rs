//! `gpuheap doctor`, `wait` and `free`.

use crate::schema::{differences, schema_of};
use crate::{gpuheap, recorded};

/// Runs a command that reads the recording of the machine `name` instead of this machine.
pub(crate) fn on(name: &str, arguments: &[&str]) -> crate::Ran {
    let folder = tempfile::tempdir().unwrap();
    let file = recorded::write(name, folder.path());
    gpuheap(&[arguments, &["--machine", file.to_str().unwrap()]].concat())
}

#[test]
fn healthy_machine_gets_one_line() {
    let ran = on("h200_training", &["doctor"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout, "nothing found: 1 GPU, 56 rules\n");
}

#[test]
fn forked_child_is_found_and_ended() {
    let ran = on("fork", &["doctor"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    insta::assert_snapshot!(ran.stdout);
    let ran = on("fork", &["free"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("ending pid 4188"), "{}", ran.stdout);
}

#[test]
fn json_follows_the_schemas() {
    for (command, codes) in [("doctor", [0, 1]), ("free", [0, 0])] {
        for name in ["h200_idle", "several_users", "wsl2", "fork"] {
            let ran = on(name, &[command, "--json"]);
            assert!(codes.contains(&ran.code), "{}", ran.stderr);
            let json = ran.json();
            assert_eq!(differences(&schema_of(command), &json, "$"), [""; 0], "{name}");
        }
    }
}

#[test]
fn machine_without_gpu_is_environment_error() {
    let wait = ["wait", "--free", "1GiB"];
    for arguments in [&["doctor"][..], &["doctor", "-v"], &["free"], &["status"], &wait] {
        let texts = ["== /dev/null\n", NO_ANSWER, "== /proc/version\n== nvml !timeout\n"];
        let texts = texts.into_iter().map(|text| on_text(text, arguments));
        for ran in texts.chain([on("no_gpu", arguments)]) {
            assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{arguments:?}: {}", ran.stderr);
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        }
    }
    for arguments in [&["doctor", "--json"][..], &["doctor", "--report", "md"]] {
        let ran = on_text("== /dev/null\n", arguments);
        assert_eq!((ran.code, ran.stdout.is_empty()), (3, false), "{}", ran.stderr);
    }
}

#[test]
fn finding_about_driver_has_code_one() {
    let ran = on_text("== /dev/nvidia0\n", &["doctor"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    assert!(ran.stdout.contains("G07"), "{}", ran.stdout);
}

/// Machine under WSL2 whose only device has failed. No rule covers that failure.
const NO_ANSWER: &str = "== /dev/dxg\n== nvml\n{\"devices\": [{\"failure\": {\"code\": 999, \
                         \"text\": \"unknown error\"}}]}\n";

/// Runs a `gpuheap` command that examines the recorded machine `text` instead of this machine.
fn on_text(text: &str, arguments: &[&str]) -> crate::Ran {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bare.machine");
    std::fs::write(&file, text).unwrap();
    gpuheap(&[arguments, &["--machine", file.to_str().unwrap()]].concat())
}

#[test]
fn timeout_of_wait_names_holders() {
    let ran = on("several_users", &["wait", "--free", "10GiB", "--timeout", "0"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "GPU 0 has 112108 MiB free\n"));
    let ran = on("several_users", &["wait", "--free", "120GiB", "--timeout", "0"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn wait_without_size_is_wrong_use() {
    let ran = gpuheap(&["wait"]);
    assert_eq!(ran.code, 2);
    assert_eq!(ran.stderr, "error: --free <SIZE> is missing; see gpuheap wait --help\n");
}

#[test]
fn recorded_machine_gives_same_output() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("here.machine");
    let file = file.to_str().unwrap();
    let here = gpuheap(&["doctor", "-v", "--record", file]);
    let again = gpuheap(&["doctor", "-v", "--machine", file]);
    assert_eq!((again.code, &again.stdout), (here.code, &here.stdout));
    assert_eq!(again.stderr, here.stderr);
    assert_eq!(gpuheap(&["doctor", "--record", "/no/such/folder/file"]).code, 3);
}

#[test]
fn markdown_report_keeps_exit_code() {
    let ran = on("fork", &["doctor", "--report", "md"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("### gpuheap doctor\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("* **P01** (failure): GPU 0: 1542 MiB"), "{}", ran.stdout);
    assert_eq!(gpuheap(&["doctor", "--report", "html"]).code, 2);
}
