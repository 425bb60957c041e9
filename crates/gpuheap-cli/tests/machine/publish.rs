//! Runs commands on a program that publishes its heaps' state: the test `program` of this file.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use gpuheap::{Access, Device, Heap, PoolKind, Tracking};

use crate::library;
use crate::publisher::{Program, gpuheap};
use crate::schema::{differences, schema_of};

const MIB: u64 = 1 << 20;

/// Holds 4 MiB and caches 8 MiB until its stdin ends.
#[test]
#[ignore = "the other tests start it"]
fn program() {
    let device = std::env::var("TEST_DEVICE").unwrap_or_else(|_| "emulated:1GiB".to_owned());
    let device = Device::open(&device).unwrap();
    let builder = Heap::builder(&device).pool(PoolKind::Binned).hard_limit(64 * MIB);
    let heap = builder.track(Tracking::Counts);
    let heap = heap.publish(Access::Control).build().unwrap();
    let stream = device.stream().unwrap();
    let live = heap.allocate(4 * MIB, &stream).unwrap();
    // The scope stays open until stdin ends, so that the tests can list it. It has no arrays.
    let ((), _) = heap.scope(|_| {
        heap.allocate(8 * MIB, &stream).unwrap().free().unwrap();
        println!("ready");
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read(&mut [0]);
    });
    drop(live);
}

pub(crate) fn start(folder: &Path) -> Program {
    Program::start("publish::program", folder)
}

#[test]
fn status_shows_published_heap() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(folder.path());
    let ran = gpuheap(folder.path(), &["status"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let pid = program.0.id().to_string();
    let from = ran.stdout.find(&format!("  pid {pid}")).unwrap();
    let lines: Vec<&str> = ran.stdout[from..].lines().take(3).collect();
    assert!(lines[0].starts_with(&format!("  pid {pid}  machine-")), "{}", ran.stdout);
    assert_eq!(
        lines[1],
        "    emulated:1GiB  binned  4 MiB live, 8 MiB cached, peak 12 MiB, limit 64 MiB"
    );
    assert!(lines[2].starts_with("           4 MiB  "), "{}", ran.stdout);
    assert!(lines[2].contains("tests/machine/publish.rs:"), "{}", ran.stdout);
    let ran = gpuheap(folder.path(), &["status", "--json"]);
    assert_eq!(differences(&schema_of("status"), &ran.json(), "$"), [""; 0]);
}

#[test]
fn status_of_pid_shows_scopes() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(folder.path());
    let pid = program.0.id().to_string();
    let ran = gpuheap(folder.path(), &["status", "--pid", &pid]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let text = ran.stdout.replace(&pid, "PID");
    // Drops the program's name and the line numbers.
    let shown: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split("  machine-").next()?.split(".rs:").next())
        .collect();
    insta::assert_snapshot!(shown.join("\n"));
    let json = gpuheap(folder.path(), &["status", "--pid", &pid, "--json"]).json();
    assert_eq!(differences(&schema_of("status"), &json, "$"), [""; 0]);
    assert_eq!(json["programs"][0]["scopes"][0]["live"], 0, "{json}");
    let ran = gpuheap(folder.path(), &["status", "--pid", "4194305"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("start it with GPUHEAP_PUBLISH=1"), "{}", ran.stderr);
}

#[test]
fn record_starts_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(folder.path());
    let pid = program.0.id().to_string();
    let file = folder.path().join(format!("gpuheap-{pid}.gph"));
    let ran = gpuheap(folder.path(), &["record", &pid]);
    let started =
        format!("recording into {}\ngpuheap record {pid} --stop # ends it\n", file.display());
    assert_eq!((ran.code, ran.stdout), (0, started), "{}", ran.stderr);
    let again = gpuheap(folder.path(), &["record", &pid]);
    assert_eq!(again.code, 3, "{}", again.stdout);
    assert!(again.stderr.contains("the heap is recorded already"), "{}", again.stderr);
    let ran = gpuheap(folder.path(), &["record", &pid, "--stop"]);
    assert_eq!((ran.code, ran.stdout), (0, format!("gpuheap report {}\n", file.display())));
    assert!(file.metadata().unwrap().len() > 0);
    assert_eq!(gpuheap(folder.path(), &["record", &pid, "--stop"]).code, 3);
}

#[test]
fn free_flushes_before_it_ends_anything() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = start(folder.path());
    let pid = program.0.id();
    let ran = gpuheap(folder.path(), &["free"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("- pid {pid} (machine-")), "{text}");
    assert!(text.contains("gives back 8 MiB that it keeps for later, and"), "{text}");
    let ran = gpuheap(folder.path(), &["free", "--json"]);
    let json = ran.json();
    assert_eq!(differences(&schema_of("free"), &json, "$"), [""; 0]);
    let caches = json["caches"].as_array().unwrap();
    assert!(caches.iter().any(|cache| cache["pid"] == pid && cache["bytes"] == 8 * MIB), "{json}");
    let ran = gpuheap(folder.path(), &["free", "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains(" gave back 8 MiB\n"), "{}", ran.stdout);
    assert_eq!(program.0.try_wait().unwrap(), None);
}

#[test]
fn program_in_pid_namespace_is_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rp", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let Some(_program) = Program::spawned(command, "publish::program", folder.path()) else {
        eprintln!("skipped: this system allows no user namespaces");
        return;
    };
    let ran = gpuheap(folder.path(), &["free", "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains(" gave back 8 MiB\n"), "{}", ran.stdout);
}

#[test]
fn stopped_program_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(folder.path());
    // SAFETY: the process was started by this test and is not yet waited for.
    assert_eq!(unsafe { libc::kill(program.0.id() as i32, libc::SIGSTOP) }, 0);
    let ran = gpuheap(folder.path(), &["status"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("no answer within 2 s; the program may be stopped"),
        "{}",
        ran.stdout
    );
}

#[test]
fn programs_on_one_account_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let driver = library::folder(&[&library::NVML, &library::LIBCUDA]);
    let account = folder.path().join("account");
    let variables = [
        ("GPUHEAP_EMULATED_DEVICE", "4GiB"),
        ("GPUHEAP_EMULATED_ACCOUNT", account.to_str().unwrap()),
        ("TEST_DEVICE", "cuda:0"),
    ];
    let start = || {
        let test = std::env::current_exe().unwrap();
        let command = library::command(&test, &driver, &variables);
        Program::spawned(command, "publish::program", folder.path()).unwrap()
    };
    let status = || {
        let program = Path::new(env!("CARGO_BIN_EXE_gpuheap"));
        let mut command = library::command(program, &driver, &variables);
        let json =
            crate::ran(command.env("XDG_RUNTIME_DIR", folder.path()).args(["status", "--json"]));
        json.json()
    };
    let mut programs = [start(), start(), start()];
    for living in [3, 2] {
        let json = status();
        let device = &json["devices"][0];
        let listed = device["processes"].as_array().unwrap();
        let sum: u64 = listed.iter().map(|process| process["bytes"].as_u64().unwrap()).sum();
        assert_eq!(listed.len(), living, "{json:#}");
        assert_eq!(sum + device["unaccounted_bytes"].as_u64().unwrap(), device["used_bytes"]);
        let published = json["programs"].as_array().unwrap();
        assert_eq!(published.len(), living, "{json:#}");
        for program in published {
            assert!(listed.iter().any(|process| process["pid"] == program["pid"]), "{json:#}");
            assert_eq!(program["status"]["heaps"][0]["live"], 4 * MIB, "{json:#}");
        }
        // The memory of a killed process becomes free, and its socket is removed.
        programs[0].0.kill().unwrap();
        programs[0].0.wait().unwrap();
    }
}
