//! Tests the Markdown report to paste into an issue.

use gpuheap_doctor::{Machine, Recording, markdown};

use crate::support::{machines, named, recording};

fn report(recording: Recording) -> String {
    let mut machine = Machine::read(recording);
    machine.examine();
    markdown(&machine, "1.2.3")
}

/// Returns a machine with names of its host, users and folders, and with a token.
fn private() -> Recording {
    named("several_users")
        .with("/proc/sys/kernel/hostname", "gandalf\n")
        .with("environment", "HOME=/home/ann\nUSER=ann\n")
        .with("/proc/4000/cmdline", "/home/ann/venv/bin/python3\\0train.py\\0--token\\0hunter2\\0")
}

#[test]
fn report_omits_names_and_paths() {
    let text = report(private());
    for name in ["ann", "ben", "gandalf", "/home", "hunter2", "train.py", "solve.jl", "GPU-5f1c"] {
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        let is_path = name.contains(['/', '.', '-']);
        let is_there = if is_path { text.contains(name) } else { words.any(|word| word == name) };
        assert!(!is_there, "{name}: {text}");
    }
    for word in ["python3", "julia", "self", "user2", "P01", "143771 MiB"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn published_program_shows_no_arguments() {
    let source = recording(&machines().join("../rules/p25/fires.machine"));
    let programs = source.text("programs").unwrap();
    let programs = programs.replace("train.py\", \"access", "train.py --token hunter2\", \"access");
    let text = report(source.with("programs", &programs));
    assert!(text.contains("pid 4000 (python3) keeps 12288 MiB"), "{text}");
    assert!(!text.contains("train.py") && !text.contains("hunter2"), "{text}");
}

#[test]
fn names_in_reasons_are_replaced_too() {
    let secret = private().without("nvml", gpuheap_doctor::Why::Failed);
    let driver = "{\"failure\": {\"code\": 9, \"text\": \"see /home/ann/log on gandalf\"}}";
    let text = report(secret.with("nvml", driver));
    assert!(text.contains("see ~/log on HOST"), "{text}");
}
