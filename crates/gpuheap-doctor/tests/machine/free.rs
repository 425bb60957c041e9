//! Tests plans of steps that would free memory.

use gpuheap_doctor::free::{self, Plan};
use gpuheap_doctor::{Machine, Recording, Why};

use crate::support::{machines, named, recording};

fn plan(recording: Recording) -> Plan {
    let mut machine = Machine::read(recording);
    machine.examine();
    free::plan(&machine)
}

#[test]
fn child_of_ended_parent_is_orphan() {
    let plan = plan(named("fork"));
    let [orphan] = plan.orphans.as_slice() else { panic!("{plan:?}") };
    assert_eq!((orphan.pid, orphan.listed_pid, orphan.bytes), (4188, 4120, 1542 << 20));
    insta::assert_snapshot!(plan.render(80));
}

#[test]
fn orphan_of_second_device_is_found() {
    let plan = plan(named("two_h200_orphan"));
    let [orphan] = plan.orphans.as_slice() else { panic!("{plan:?}") };
    assert_eq!((orphan.pid, orphan.listed_pid, orphan.bytes), (1801, 1779, 2566 << 20));
    assert!(plan.render(80).contains("GPU 1"), "{}", plan.render(80));
}

#[test]
fn unreadable_process_prevents_proof() {
    let plan = plan(named("fork").without("/proc/1/fd", Why::Denied));
    assert!(plan.orphans.is_empty());
    assert!(plan.unproven.as_ref().unwrap().contains("1 processes"), "{plan:?}");
}

#[test]
fn holder_without_shared_file_survives() {
    let stat = "4300 (python3) S 1 4300 4300 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 99 0 0\n";
    let other = named("fork").with("/proc/4300/stat", stat);
    let other = Recording::parse("== /proc/4300/fd/9 -> /dev/nvidia0\n").unwrap().on_base(other);
    assert!(plan(other.clone()).orphans.is_empty());
    let shared = other.with("same 4188:9 4300:9", "");
    assert_eq!(plan(shared).orphans.len(), 2);
}

#[test]
fn listed_process_is_never_ended() {
    let nvml = named("fork").text("nvml").unwrap().replace("\"pid\": 4120", "\"pid\": 4188");
    assert!(plan(named("fork").with("nvml", &nvml)).orphans.is_empty());
}

#[test]
fn idle_device_has_no_step() {
    let text = plan(named("h200_idle")).render(80);
    assert!(text.starts_with("GPU 0: ") && text.contains(" in use, by no process"), "{text}");
    assert!(text.ends_with("no process holds memory: nothing to give back\n"), "{text}");
}

/// Returns a GPU on which two live programs of this user together hold 3.8 GiB. No rule of the
/// doctor has a finding about them.
fn two_programs() -> Recording {
    let process = |pid: u32, program: &str| {
        format!(
            "== /proc/{pid}/stat\n{pid} ({program}) S 1 {pid} {pid} 0 -1 0 0 0 0 0 90 1 0 0 20 0 1 0 \
             9280000 0 0\n== /proc/{pid}/status\nUid:\t1000\t1000\t1000\t1000\n== /proc/{pid}/cmdline\n\
             {program}\\0run\\0\n== /proc/{pid}/fd/9 -> /dev/nvidia0\n"
        )
    };
    let nvml = "{\"driver\": \"580.95.05\", \"devices\": [{\"index\": 0, \"name\": \"NVIDIA H200\", \
                \"minor\": 0, \"total\": 150754820096, \"used\": 4733495296, \"free\": 146021324800, \
                \"reserved\": 653262848, \"processes\": [{\"pid\": 4000, \"bytes\": 2147483648}, \
                {\"pid\": 4100, \"bytes\": 1932735283}]}]}";
    let both = process(4000, "solver") + &process(4100, "viewer");
    Recording::parse(&both).unwrap().on_base(named("h200_idle").with("nvml", nvml))
}

#[test]
fn live_programs_are_named_with_steps() {
    let plan = plan(two_programs());
    let text = plan.render(80);
    assert!(!text.contains("nothing to give back"), "{text}");
    for words in ["pid 4000 solver run", "pid 4100 viewer run", "$ kill 4000", "$ kill 4100"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(plan.steps.iter().map(|step| step.bytes).sum::<u64>(), 4_080_218_931);
    insta::assert_snapshot!(text);
}

#[test]
fn every_holder_has_a_step() {
    for name in ["h200_training", "several_users", "fork", "wsl2", "wsl2_windows"] {
        let plan = plan(named(name));
        let text = plan.render(80);
        let said: String = plan.steps.iter().map(|step| step.reason.as_str()).collect();
        for holder in plan.devices.iter().flat_map(|held| &held.holders) {
            let pid = holder.pid.unwrap();
            let is_orphans = plan.orphans.iter().any(|orphan| orphan.listed_pid == pid);
            assert!(is_orphans || said.contains(&format!("pid {pid}")), "{name}: {pid}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{name}: {text}");
    }
}

#[test]
fn windows_programs_are_named_under_wsl2() {
    let text = plan(named("wsl2_windows")).render(80);
    assert!(text.contains("310 MiB  dwm, of Windows"), "{text}");
    assert!(text.contains("1000 MiB  all of WSL2"), "{text}");
    assert!(text.contains("$ taskmgr.exe"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn unknown_share_of_windows_is_stated() {
    let text = plan(named("wsl2")).render(80);
    assert!(!text.contains("nothing to give back"), "{text}");
    assert!(text.contains("pid 4000 python3 train.py"), "{text}");
    assert!(text.contains("Windows gave no figures"), "{text}");
    let empty = named("wsl2").without("/proc/4000/stat", Why::Missing);
    let text = plan(empty).render(80);
    assert!(text.contains("Windows gave no figures"), "{text}");
}

/// Returns the recording named `fork`, changed to a container and to this version of the driver. In
/// `fork`, a child holds the memory of its ended parent.
fn in_a_container(driver: &str) -> Recording {
    let nvml = named("fork").text("nvml").unwrap().replace("580.95.05", driver);
    let container = "== /proc/self/ns/pid -> pid:[4026533333]\n== /.dockerenv\n";
    Recording::parse(container).unwrap().on_base(named("fork").with("nvml", &nvml))
}

#[test]
fn translated_pids_prove_orphan_in_container() {
    assert_eq!(plan(in_a_container("580.95.05")).orphans.len(), 1);
    assert_eq!(plan(in_a_container("535.113.01")).orphans.len(), 1);
}

#[test]
fn likely_orphan_in_container_survives() {
    for driver in ["535.104.05", "525.147.05", ""] {
        let plan = plan(in_a_container(driver));
        assert!(plan.orphans.is_empty(), "{driver}: {plan:?}");
        let step = plan.steps.iter().find(|step| step.reason.starts_with("P01")).unwrap();
        assert!(step.reason.contains("may have ended"), "{step:?}");
        assert!(step.command.starts_with("ps "), "{step:?}");
    }
}

/// An older driver also lists processes outside of the container. Pid 4120 may be such a process.
#[test]
fn process_group_under_older_driver_survives() {
    let stat = "4188 (python3) S 1 4120 3900 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 9280000 0 0\n";
    let plan = plan(in_a_container("525.147.05").with("/proc/4188/stat", stat));
    assert!(plan.orphans.is_empty(), "{plan:?}");
    assert!(plan.steps.iter().any(|step| step.reason.contains("may have ended")), "{plan:?}");
}

/// Returns the recording `fork` with a live process, 4300, that NVML lists and that has device
/// `minor` open. The orphan, 4188, gets the parent `parent` and the process group `group`.
fn beside_a_training(parent: u32, group: u32, minor: u32) -> Recording {
    let stat = |pid, parent, group| {
        format!("{pid} (python3) S {parent} {group} 3900 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 99 0 0\n")
    };
    let nvml = named("fork").text("nvml").unwrap().to_owned();
    let both =
        nvml.replace("{\"pid\": 4120,", "{\"pid\": 4300, \"bytes\": 1048576}, {\"pid\": 4120,");
    assert_ne!(nvml, both);
    let machine = named("fork")
        .with("nvml", &both)
        .with("/proc/4300/stat", &stat(4300, 1, 4300))
        .with("/proc/4188/stat", &stat(4188, parent, group));
    let link = format!("== /proc/4300/fd/9 -> /dev/nvidia{minor}\n");
    Recording::parse(&link).unwrap().on_base(machine)
}

#[test]
fn workers_of_live_training_survive() {
    assert_eq!(plan(beside_a_training(1, 4188, 1)).orphans.len(), 1);
    for worker in [
        beside_a_training(4300, 4188, 1),
        beside_a_training(1, 4300, 1),
        beside_a_training(1, 4188, 0).with("same 4188:9 4300:9", ""),
    ] {
        let plan = plan(worker);
        assert!(plan.orphans.is_empty(), "{plan:?}");
    }
}

#[test]
fn mps_server_prevents_proof() {
    let stat = "4400 (nvidia-cuda-mps) S 1 4400 4400 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 99 0 0\n";
    let link = Recording::parse("== /proc/4400/fd/9 -> /dev/nvidiactl\n").unwrap();
    let plan = plan(link.on_base(named("fork").with("/proc/4400/stat", stat)));
    assert!(plan.orphans.is_empty(), "{plan:?}");
    assert!(plan.unproven.unwrap().contains("MPS"));
}

#[test]
fn unconfirmed_orphan_is_dropped() {
    let mut first = plan(named("fork"));
    first.confirm(&plan(named("fork")));
    assert_eq!(first.orphans.len(), 1);
    first.confirm(&plan(named("h200_idle")));
    assert!(first.orphans.is_empty());
}

#[test]
fn server_request_is_the_first_step() {
    let command = "/usr/local/bin/ollama\\0runner\\0";
    let plan = plan(named("h200_training").with("/proc/4000/cmdline", command));
    assert!(plan.steps[0].command.ends_with("ollama stop"), "{plan:?}");
    assert_eq!(plan.steps[0].bytes, 106_151_542_784);
}

#[test]
fn uncompared_files_prevent_proof() {
    let mut recording = named("fork");
    let mut holders = String::new();
    for pid in 5000..5300 {
        let stat =
            format!("{pid} (python3) S 1 {pid} {pid} 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 99 0 0\n");
        recording = recording.with(&format!("/proc/{pid}/stat"), &stat);
        holders.push_str(&format!("== /proc/{pid}/fd/9 -> /dev/nvidia0\n"));
    }
    let recording = Recording::parse(&holders).unwrap().on_base(recording);
    let shared = recording.with("same 4188:9 5000:9", "");
    let plan = plan(shared);
    assert!(plan.orphans.is_empty(), "{plan:?}");
    assert!(plan.unproven.as_ref().unwrap().contains("256 of 301 processes"), "{plan:?}");
}

#[test]
fn published_cache_is_flushed_on_request() {
    let fixture = |name: &str| recording(&machines().join("../rules/p25").join(name));
    let mine = |name| fixture(name).with("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n");
    let own = plan(mine("fires.machine"));
    assert_eq!((own.caches[0].pid, own.caches[0].bytes), (4000, 12 << 30));
    insta::assert_snapshot!(own.render(80));
    // This program allows no flush, so the plan has a step for the user and no cache to flush.
    let read = plan(mine("fires_info.machine"));
    assert!(read.caches.is_empty());
    let step = read.steps.iter().find(|step| step.reason.starts_with("P25")).unwrap();
    assert_eq!(step.bytes, 2 << 30);
    // Adds a second heap that does not allow a flush: only the first heap's cache counts.
    let programs = mine("fires.machine").text("programs").unwrap().to_owned();
    let (heap, rest) = programs.split_once("\"heaps\": [").unwrap().1.split_once('}').unwrap();
    let closed = heap.replace("control", "read");
    let both = programs.replace(&format!("{heap}}}{rest}"), &format!("{heap}}}, {closed}}}{rest}"));
    let mixed = plan(mine("fires.machine").with("programs", &both));
    assert_eq!(mixed.caches[0].bytes, 12 << 30, "{both}");
    let others = fixture("fires.machine").with("/proc/self/status", "Uid:\t1\t1\t1\t1\n");
    assert!(plan(others).caches.is_empty());
}
