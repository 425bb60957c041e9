//! Facts about a machine that several rules need.

use gpuheap_publish::Status;
use gpuheap_text::age;

use crate::machine::{Gpu, Machine, Process};
use crate::status::{Account, Place, Row, is_hidden};

/// Maximum number of processes that a list names. The list ends with the number of other processes.
const NAMED: usize = 3;

/// Returns each device that NVML can read, with the account of the device's memory.
pub(crate) fn accounts(machine: &Machine) -> impl Iterator<Item = (&Gpu, Account)> {
    let devices = machine.devices().iter().filter(|gpu| gpu.failure.is_none());
    devices.map(|gpu| (gpu, Account::new(machine, gpu)))
}

/// Returns the unaccounted bytes above which a device is suspect: 512 MiB, or 1 % of the device if
/// that is more. Idle cards show up to 400 MiB (reports of 2025 and 2026).
pub(crate) fn unaccounted_limit(account: &Account) -> i64 {
    i64::try_from((account.total_bytes / 100).max(512 << 20)).unwrap_or(i64::MAX)
}

/// Returns `true` if the driver's lists may lack processes. Then the sum of the listed memory
/// proves nothing.
pub(crate) fn cannot_list(machine: &Machine) -> bool {
    machine.host.is_container
        || machine.host.is_wsl
        || (machine.host.hidepid > 0 && machine.host.uid != Some(0))
}

/// Returns the bytes that the driver lists for a process, over all devices.
pub(crate) fn listed_bytes(machine: &Machine, pid: u32) -> Option<u64> {
    let listed = machine.devices().iter().flat_map(|gpu| &gpu.processes);
    let mut bytes = listed.filter(|listed| listed.pid == pid).filter_map(|listed| listed.bytes);
    bytes.next().map(|first| bytes.fold(first, u64::saturating_add))
}

/// Returns a process's heaps, if the process publishes them.
pub(crate) fn heaps(machine: &Machine, pid: u32) -> Option<&Status> {
    machine.programs.iter().find(|program| program.pid == Some(pid))?.status.as_ref()
}

/// Returns the processes that the driver lists or that have a device open.
pub(crate) fn with_memory(machine: &Machine) -> impl Iterator<Item = &Process> {
    let holds = |process: &&Process| !process.holds.is_empty() || machine.is_listed(process.pid);
    machine.processes.iter().filter(holds)
}

/// Returns the processes that have a device open but that the driver does not list.
pub(crate) fn unlisted_holders(machine: &Machine) -> impl Iterator<Item = &Process> {
    let is_wanted =
        |process: &&Process| !process.holds.is_empty() && !machine.is_listed(process.pid);
    machine.processes.iter().filter(is_wanted)
}

/// Returns `true` for a process that watches devices and has no context.
pub(crate) fn is_monitor(process: &Process) -> bool {
    process.comm.starts_with("nvidia-persist")
        || is_mps(process)
        || process.comm.starts_with("nv-fabricmanag")
        || process.only_watches()
}

/// Returns `true` for a server of MPS. Such a server holds the memory of its clients.
pub(crate) fn is_mps(process: &Process) -> bool {
    process.comm.starts_with("nvidia-cuda-mps")
}

/// Returns `true` if `process` may serve a live process that the driver lists, as a data loader
/// serves a training run. Then the listed process is an ancestor of `process`, or the two processes
/// share an open file of a device.
pub(crate) fn serves_living(machine: &Machine, process: &Process) -> bool {
    let mut ancestor = machine.process(process.parent);
    // A process table that changes while it is read may contain a cycle of parents.
    for _ in 0..32 {
        let Some(known) = ancestor else { break };
        if machine.is_listed(known.pid) {
            return true;
        }
        ancestor = machine.process(known.parent);
    }
    partners(machine, process.pid)
        .any(|pid| machine.is_listed(pid) && machine.process(pid).is_some())
}

/// Returns `true` if a live process that the driver lists is in the process group of `process`. The
/// listed process may have started `process`.
pub(crate) fn is_grouped_with_living(machine: &Machine, process: &Process) -> bool {
    machine
        .processes
        .iter()
        .any(|other| other.group == process.group && machine.is_listed(other.pid))
}

/// Returns the processes that share an open file of a device with `pid`.
pub(crate) fn partners(machine: &Machine, pid: u32) -> impl Iterator<Item = u32> {
    machine.shared.iter().filter_map(move |&(one, other)| {
        if one == pid { Some(other) } else { (other == pid).then_some(one) }
    })
}

/// Returns the processes that may hold the files of the ended process `pid`, and `true` if they
/// certainly hold these files. The first of these groups that is not empty decides:
///
/// * processes of its session or group, and its children: certain
/// * processes that share a descriptor: certain
/// * processes that have a device open and are not listed: certain if there is only one
pub(crate) fn heirs(machine: &Machine, pid: u32) -> (Vec<&Process>, bool) {
    let holders: Vec<&Process> = unlisted_holders(machine)
        .filter(|process| !is_monitor(process) && !serves_living(machine, process))
        .collect();
    let is_child = |process: &&&Process| was_led_by(process, pid) || process.parent == pid;
    let children: Vec<&Process> = holders.iter().filter(is_child).copied().collect();
    if !children.is_empty() {
        return (children, true);
    }
    let shares = |process: &&&Process| partners(machine, process.pid).next().is_some();
    let sharing: Vec<&Process> = holders.iter().filter(shares).copied().collect();
    if !sharing.is_empty() {
        return (sharing, true);
    }
    let is_sure = holders.len() == 1;
    (holders, is_sure)
}

fn was_led_by(process: &Process, pid: u32) -> bool {
    process.session == pid || process.group == pid
}

/// Certainty that a listed process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The process was in this PID namespace, and has ended.
    Proven,
    /// The process has probably ended, but may be a live process outside of this container.
    Likely,
}

/// Returns the certainty that a process has ended, if the driver lists it and `/proc` does not show
/// it; `None` without evidence.
///
/// In a container, an older driver also lists processes from outside, so a pid that `/proc` does
/// not show may be a live process. The process has likely ended in two cases. They concern its
/// [`heirs`], unlisted processes that have a device open:
///
/// * One of the heirs is in the session or process group of that pid. So the leader of that group
///   ran in this namespace.
/// * All heirs have higher pids and only inherited the device, and this namespace has used the pid
///   before.
pub(crate) fn ended(machine: &Machine, row: &Row) -> Option<Ended> {
    match row.place {
        Place::Ended => Some(Ended::Proven),
        Place::Hidden if !is_hidden(machine) => {
            let (heirs, _) = heirs(machine, row.pid);
            let was_given = machine.host.last_pid.is_none_or(|last| row.pid <= last);
            let all_inherited =
                || heirs.iter().all(|heir| heir.only_inherited() && heir.pid > row.pid);
            let is_likely = heirs.iter().any(|heir| was_led_by(heir, row.pid))
                || (!heirs.is_empty() && was_given && all_inherited());
            is_likely.then_some(Ended::Likely)
        }
        _ => None,
    }
}

/// Describes processes in a line: `4188 (python3 w.py, ann, 2 h)`.
pub(crate) fn name_processes(processes: &[&Process]) -> String {
    let named = processes.iter().take(NAMED).map(|process| {
        let old = age(process.age_seconds);
        format!("{} ({}, {}, {old})", process.pid, process.command(30), process.user)
    });
    let mut text = named.collect::<Vec<_>>().join(", ");
    if processes.len() > NAMED {
        text.push_str(&format!(" and {} more", processes.len() - NAMED));
    }
    text
}

/// Joins the pids of processes with `between`.
pub(crate) fn pids(processes: &[&Process], between: &str) -> String {
    processes.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(between)
}
