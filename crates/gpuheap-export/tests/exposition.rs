//! Tests expositions of recorded machines.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../../gpuheap-doctor/tests/recorded/mod.rs"]
mod recorded;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gpuheap_doctor::{Machine, Recording};
use gpuheap_export::{Exposition, Format, Metric, Reading};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recording(name: &str) -> Recording {
    Recording::parse(&recorded::text_of(name)).unwrap()
}

fn exposition(recording: Recording, top_lines: usize) -> Exposition {
    let mut machine = Machine::read(recording);
    machine.examine();
    let start = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_856_400_250);
    let reading = Reading { start, duration: Duration::from_millis(20) };
    Exposition::new(&machine, reading, top_lines)
}

fn text(recording: Recording, top_lines: usize) -> String {
    exposition(recording, top_lines).text(Format::OpenMetrics).to_owned()
}

/// Returns the published data of a program with one heap. Each source line in `lines` holds 1 GiB.
fn program(pid: u32, name: &str, lines: &[&str]) -> Value {
    let site = |line: &&str| {
        json!({"line": line, "function": "step", "device": "cuda:0", "kind": "device",
               "allocations": 2, "bytes": GIB})
    };
    json!({
        "pid": pid, "uid": 1000, "failure": null,
        "status": {
            "program": name, "access": "read", "left_out": 0,
            "heaps": [{
                "device": "cuda:0", "uuid": "GPU-1", "pool": "stitched", "live": 3 * GIB,
                "live_peak": 4 * GIB, "cached": GIB, "reserved": 4 * GIB, "allocations": 70,
                "frees": 64, "soft_limit": null, "hard_limit": 8 * GIB, "access": "read",
            }],
        },
        "leaks": {
            "is_tracked": true, "left_out": 0, "sites": lines.iter().map(site).collect::<Value>(),
        },
    })
}

/// Returns a machine without a GPU, on which `programs` publish the status of their heaps.
fn published(programs: &[Value]) -> Recording {
    let lines: String = programs.iter().map(|program| format!("{program}\n")).collect();
    recording("no_gpu").with("programs", &lines)
}

/// Returns the names of the samples.
fn names(text: &str) -> BTreeSet<&str> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap()).collect()
}

#[test]
fn process_holds_devices_that_list_it() {
    let text = text(recording("two_h200_reordered"), 0);
    let holders = text.lines().filter(|line| line.starts_with("gpuheap_holders{"));
    let counted: Vec<&str> = holders.filter(|line| !line.ends_with(" 0")).collect();
    assert_eq!(counted.len(), 2, "{counted:?}");
    assert!(counted.iter().all(|line| line.contains("class=\"compute\"")), "{counted:?}");
}

#[test]
fn orphan_on_two_devices_snapshot() {
    let programs = program(1801, "python3 /home/a/train.py --key 1", &["train.py:41"]);
    let recording = recording("two_h200_orphan").with("programs", &format!("{programs}\n"));
    insta::assert_snapshot!(text(recording, 10));
}

#[test]
fn formats_have_the_same_samples() {
    let exposition = exposition(recording("two_h200_orphan"), 10);
    let samples = |format| {
        let lines = exposition.text(format).lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(Format::OpenMetrics), samples(Format::Prometheus));
    assert!(exposition.text(Format::OpenMetrics).ends_with("\n# EOF\n"));
    assert!(!exposition.text(Format::Prometheus).contains("# EOF"));
}

#[test]
fn arguments_are_left_out() {
    for (command, name) in [
        ("python3.11 /home/a/train.py --key 1", "python3.11 train.py"),
        ("python -m train --key 1", "python"),
        ("program --key 1", "program"),
        ("", ""),
    ] {
        let text = text(published(&[program(7, command, &[])]), 10);
        assert!(text.contains(&format!("program=\"{name}\"")), "{text}");
        assert!(!text.contains("key"), "{text}");
    }
}

#[test]
fn hostile_texts_stay_in_their_label() {
    let line = "a\"} 1\ngpuheap_driver_up 7\\\u{1b}[31m";
    let text = text(published(&[program(7, "x\" y", &[line])]), 10);
    assert!(text.contains("line=\"a\\\"} 1 gpuheap_driver_up 7\\\\ [31m\""), "{text}");
    assert!(text.contains("program=\"x\\\"\""), "{text}");
    assert!(!text.contains("\ngpuheap_driver_up 7"), "{text}");
    let long = text_of_line(&"é".repeat(5000));
    assert!(long.lines().all(|line| line.chars().count() < 400), "{long}");
}

fn text_of_line(line: &str) -> String {
    text(published(&[program(7, "x", &[line])]), 10)
}

#[test]
fn equal_lines_are_summed() {
    let text = text(published(&[program(7, "x", &["a.py:1", "a.py:1"])]), 10);
    let samples: Vec<&str> =
        text.lines().filter(|line| line.starts_with("gpuheap_line_bytes{")).collect();
    assert_eq!(samples.len(), 1, "{text}");
    assert!(samples[0].ends_with(&format!(" {}", 2 * GIB)), "{text}");
}

#[test]
fn programs_without_pid_have_samples() {
    let mut program = program(7, "python train.py", &[]);
    program["pid"] = Value::Null;
    let text = text(published(&[program.clone(), program]), 10);
    for number in [1, 2] {
        let labels = format!("pid=\"unknown-{number}\",program=\"python train.py\",uid=\"1000\"");
        assert!(text.contains(&format!("gpuheap_program_up{{{labels}}} 1\n")), "{text}");
    }
}

#[test]
fn series_are_bounded() {
    let lines: Vec<String> = (0..100).map(|line| format!("a.py:{line}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let programs: Vec<Value> = (1..=80).map(|pid| program(pid, "x", &lines)).collect();
    let text = text(published(&programs), 7);
    let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(count("gpuheap_program_up{"), 64);
    assert_eq!(count("gpuheap_line_bytes{"), 64 * 7);
    assert!(text.contains("gpuheap_left_out{kind=\"lines\"} 5952\n"), "{text}");
    assert!(text.contains("gpuheap_left_out{kind=\"programs\"} 16\n"), "{text}");
}

#[test]
fn small_processes_are_joined() {
    let listed = |pid: u64| json!({"pid": pid, "bytes": pid << 20, "kind": "compute"});
    let nvml = json!({"driver": "580.95", "devices": [{
        "name": "NVIDIA T4", "total": 64 * GIB, "used": 32 * GIB, "free": 32 * GIB,
        "processes": (1..=40).map(listed).collect::<Value>(),
    }]});
    let text = text(recording("no_gpu").with("nvml", &nvml.to_string()), 10);
    let samples: Vec<&str> =
        text.lines().filter(|line| line.starts_with("gpuheap_process_memory_bytes{")).collect();
    assert_eq!(samples.len(), 33, "{text}");
    // The eight smallest processes have 1 to 8 MiB. `other` is their sum.
    let other = samples.iter().find(|line| line.contains("pid=\"other\"")).unwrap();
    assert!(other.ends_with(&format!(" {}", 36 << 20)), "{other}");
}

#[test]
fn device_without_answer_is_down() {
    let nvml = json!({"driver": "580.95", "devices": [
        {"name": "NVIDIA T4", "uuid": "GPU-1", "failure": {"code": 15, "text": "lost"}},
    ]});
    let text = text(recording("no_gpu").with("nvml", &nvml.to_string()), 10);
    assert!(text.contains("\ngpuheap_driver_up 1\n"), "{text}");
    assert!(text.contains("\ngpuheap_device_up{gpu=\"0\",uuid=\"GPU-1\"} 0\n"), "{text}");
    assert!(!names(&text).contains("gpuheap_device_memory_bytes"), "{text}");
}

/// Returns all names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_of_name(c)).filter(|word| word.starts_with("gpuheap_"));
    words.map(str::to_owned).collect()
}

#[test]
fn alerts_and_dashboard_name_metrics() {
    let known: BTreeSet<String> = Metric::ALL.iter().map(|metric| metric.sample_name()).collect();
    for file in ["gpuheap.rules.yml", "gpuheap-dashboard.json"] {
        let path = repository().join("packaging/monitoring").join(file);
        let named = named(&std::fs::read_to_string(path).unwrap());
        assert!(!named.is_empty() && named.is_subset(&known), "{file}: {named:?}");
    }
    let page = std::fs::read_to_string(repository().join("docs/export.md")).unwrap();
    assert_eq!(named(&page), known);
}
