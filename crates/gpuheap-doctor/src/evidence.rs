//! Questions that several rules ask of a machine.

use crate::machine::{Gpu, Machine, Process};
use crate::status::{Account, Place, Row, is_hidden};
use crate::words::age;

/// Processes of a list that are named; of the rest the number is.
const NAMED: usize = 3;

/// Returns each device that answers, with its account.
pub(crate) fn accounts(machine: &Machine) -> impl Iterator<Item = (&Gpu, Account)> {
    let devices = machine.devices().iter().filter(|gpu| gpu.failure.is_none());
    devices.map(|gpu| (gpu, Account::of(machine, gpu)))
}

/// Returns the name of a device in a finding.
pub(crate) fn name(gpu: &Gpu) -> String {
    format!("GPU {}", gpu.index)
}

/// Returns the unaccounted memory from which a device is suspect: 512 MiB or 1 % of it. Idle cards
/// show up to some 400 MiB (reports of 2025 and 2026).
pub(crate) fn unaccounted_limit(account: &Account) -> i64 {
    i64::try_from((account.total_bytes / 100).max(512 << 20)).unwrap_or(i64::MAX)
}

/// Returns `true` if processes may be left out of the driver's lists, so that a sum proves nothing.
pub(crate) fn cannot_list(machine: &Machine) -> bool {
    machine.host.is_container
        || machine.host.is_wsl
        || (machine.host.hidepid > 0 && machine.host.uid != Some(0))
}

/// Returns the bytes that the driver lists for a process, on all devices.
pub(crate) fn bytes_of(machine: &Machine, pid: u32) -> Option<u64> {
    let listed = machine.devices().iter().flat_map(|gpu| &gpu.processes);
    let mut bytes = listed.filter(|listed| listed.pid == pid).filter_map(|listed| listed.bytes);
    bytes.next().map(|first| bytes.fold(first, u64::saturating_add))
}

fn is_listed(machine: &Machine, pid: u32) -> bool {
    machine.devices().iter().flat_map(|gpu| &gpu.processes).any(|listed| listed.pid == pid)
}

/// Returns the processes that are listed or have a device open.
pub(crate) fn with_memory(machine: &Machine) -> impl Iterator<Item = &Process> {
    let holds = |process: &&Process| !process.holds.is_empty() || is_listed(machine, process.pid);
    machine.processes.iter().filter(holds)
}

/// Returns the processes that have a device open and are not listed.
pub(crate) fn unlisted_holders(machine: &Machine) -> impl Iterator<Item = &Process> {
    let is_wanted =
        |process: &&Process| !process.holds.is_empty() && !is_listed(machine, process.pid);
    machine.processes.iter().filter(is_wanted)
}

/// Returns `true` for a process that watches devices and has no context.
pub(crate) fn is_monitor(process: &Process) -> bool {
    process.comm.starts_with("nvidia-persist")
        || process.comm.starts_with("nv-fabricmanag")
        || (process.has_loaded("libnvidia-ml.so") && !process.has_loaded("libcuda.so"))
}

/// Returns the processes that may keep what the ended process `pid` opened, and whether they do for
/// sure: those of its session or whose parent it was, or those that share a descriptor, or the only
/// one that has a device open without being listed; else all of these.
pub(crate) fn heirs(machine: &Machine, pid: u32) -> (Vec<&Process>, bool) {
    let holders: Vec<&Process> =
        unlisted_holders(machine).filter(|process| !is_monitor(process)).collect();
    let is_child = |process: &&&Process| process.session == pid || process.parent == pid;
    let children: Vec<&Process> = holders.iter().filter(is_child).copied().collect();
    if !children.is_empty() {
        return (children, true);
    }
    let shares = |process: &&&Process| {
        machine.shared.iter().any(|&(one, other)| one == process.pid || other == process.pid)
    };
    let sharing: Vec<&Process> = holders.iter().filter(shares).copied().collect();
    if !sharing.is_empty() {
        return (sharing, true);
    }
    let is_sure = holders.len() == 1;
    (holders, is_sure)
}

/// Returns `true` if a listed process that cannot be seen is known to have ended. In a container it
/// may be a process outside, unless a process here can only have inherited what it holds.
pub(crate) fn has_ended(machine: &Machine, row: &Row) -> bool {
    match row.place {
        Place::Ended => true,
        Place::Hidden if !is_hidden(machine) => {
            let (heirs, _) = heirs(machine, row.pid);
            !heirs.is_empty() && heirs.iter().all(|heir| heir.only_inherited())
        }
        _ => false,
    }
}

/// Returns processes as people name them: `4188 (python3 w.py, ann, 2 h)`.
pub(crate) fn list(processes: &[&Process]) -> String {
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

/// Returns the pids of processes with `between` between them.
pub(crate) fn pids(processes: &[&Process], between: &str) -> String {
    processes.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>().join(between)
}

/// Returns the number and the device's bus address of a message `NVRM: Xid (PCI:0000:19:00): 79,
/// …`.
pub(crate) fn xid(message: &str) -> Option<(u32, &str)> {
    let (_, rest) = message.split_once("NVRM: Xid (PCI:")?;
    let (device, rest) = rest.split_once("): ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..digits].parse().ok()?, device))
}

/// Returns how often the kernel logged a text, and how many seconds ago it did last.
pub(crate) fn logged(machine: &Machine, text: &str) -> Option<(usize, u64)> {
    let mut messages = machine.log.iter().filter(|message| message.text.contains(text));
    let first = messages.next()?;
    let (count, last) =
        messages.fold((1, first.seconds), |(count, _), message| (count + 1, message.seconds));
    Some((count, (machine.host.uptime_seconds - last).max(0.0) as u64))
}
