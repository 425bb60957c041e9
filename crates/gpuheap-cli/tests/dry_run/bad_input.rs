//! Wrong use, and programs that fail.

use crate::Bench;

#[test]
fn wrong_use_is_one_line() {
    let bench = Bench::new();
    let unwritable = "/proc/gpuheap/file";
    let mut lines = String::new();
    for arguments in [
        &["--", "no-such-program"][..],
        &["--", "/etc/passwd"],
        &[],
        &["true"],
        &["--card", "A101", "--", "true"],
        &["--card", "T4,T4", "--", "true"],
        &["--card", "A100,A100 40GB", "--", "true"],
        &["--card", "", "--", "true"],
        &["--devices", "0", "--", "true"],
        &["--devices", "17", "--", "true"],
        &["--memory", "80%", "--", "true"],
        &["--steps", "0", "--", "true"],
        &["--time-limit", "5", "--", "true"],
        &["--find-batch", "B", "--", "true"],
        &["--find-batch", "B=1..4", "--quick", "--", "true"],
        &["--find-batch", "B=1..4", "--find-batch", "B=2..3", "--", "true"],
        &[
            "--find-batch",
            "A=1..4",
            "--find-batch",
            "B=1..999",
            "--find-batch",
            "C=1..999",
            "--",
            "true",
        ],
        &["--margin", "60%", "--", "true"],
        &["--markdown", unwritable, "--", "true"],
        &["--frames", "--", "true"],
        &["--json", unwritable, "--", "true"],
        &["--trace", unwritable, "--", "true"],
    ] {
        let ran = bench.dry_run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{arguments:?}: {}", ran.stderr);
        lines += &format!("{}\n  {}", arguments.join(" "), ran.stderr);
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn folder_without_driver_is_named() {
    let bench = Bench::new();
    let mut command = bench.command();
    command.env("GPUHEAP_STAND_INS", "/usr").args(["--", "true"]);
    let ran = crate::ran(&mut command);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("/usr has no emulated driver"), "{}", ran.stderr);
    let mut command = bench.command();
    let blank = bench.files.path().join("a b");
    std::fs::create_dir(&blank).unwrap();
    command.env("TMPDIR", &blank).args(["--", "true"]);
    let ran = crate::ran(&mut command);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("a b") && ran.stderr.contains("set TMPDIR"), "{}", ran.stderr);
}

#[test]
fn failed_program_keeps_its_status() {
    let bench = Bench::new();
    let (ran, json) = bench.json(&["--", "sh", "-c", "echo why >&2; exit 42"]);
    assert_eq!(ran.code, 3);
    assert_eq!(json["cards"][0]["ended"], serde_json::json!({"exit": 42}));
    let is_shown = ran.stderr.starts_with("why\n") && ran.stderr.contains("exit code 42");
    assert!(is_shown, "{}", ran.stderr);
    let (ran, json) = bench.json(&["--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(ran.code, 3);
    assert_eq!(json["cards"][0]["ended"], serde_json::json!({"signal": 9}));
    assert!(ran.stderr.contains("signal 9 (SIGKILL"), "{}", ran.stderr);
    // Without a report, nothing is known.
    assert!(!ran.stderr.contains("0 results"), "{}", ran.stderr);
    // The program's output is shown only for the first card. If the run on another card fails, the
    // last lines of that run's output are shown.
    let script = [
        crate::USES_A_GPU,
        "case $GPUHEAP_EMULATED_DEVICE in *L4*) echo wrong card >&2; exit 5;; esac",
    ]
    .concat();
    let (ran, json) = bench.json(&["--card", "T4,L4", "--", "sh", "-c", &script]);
    assert_eq!((ran.code, &json["cards"][0]["outcome"]), (3, &"fits".into()));
    assert!(ran.stderr.contains("  | wrong card\n"), "{}", ran.stderr);
}
