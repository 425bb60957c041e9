//! Rules about messages in the kernel's log.

use gpuheap_text::age;

use crate::machine::Machine;
use crate::rule::Check::Machines;
use crate::rule::{Finding, Rule, Severity};

pub(super) const G06: Rule =
    Rule::new("G06", Severity::Fail, "errors that the driver logged", Machines(logged_errors));

/// Returns a finding for each kind of Xid in the kernel's log.
fn logged_errors(machine: &Machine) -> Vec<Finding> {
    let mut seen: Vec<(u32, &str, usize, f64)> = Vec::new();
    for message in &machine.log {
        let Some((xid, device)) = xid(&message.text) else { continue };
        match seen.iter_mut().find(|(number, name, ..)| (*number, *name) == (xid, device)) {
            Some((_, _, count, last)) => (*count, *last) = (*count + 1, message.seconds),
            None => seen.push((xid, device, 1, message.seconds)),
        }
    }
    seen.into_iter()
        .filter_map(|(xid, device, count, last)| {
            let ago = (machine.host.uptime_seconds - last).max(0.0) as u64;
            let (cause, command) = match xid {
                13 | 31 | 43 | 45 if ago < 3600 => (
                    "A program's mistake; its memory comes back when the process ends.",
                    "sudo dmesg | grep Xid",
                ),
                48 | 63 | 64 | 94 | 95 | 140 | 171 | 172 => {
                    ("Errors of the device's memory; it needs a reset.", "nvidia-smi -q -d ECC")
                }
                74 | 121 | 173 => {
                    ("Errors of the link to the device.", "nvidia-smi nvlink --errorcounters")
                }
                79 | 119 | 120 | 143 | 158 => (
                    "The device or its firmware does not answer; memory stays used until a reset.",
                    "sudo nvidia-smi -r",
                ),
                _ => return None,
            };
            let times = if count == 1 { String::new() } else { format!(" {count} times, last") };
            let fact = format!("GPU at {device}: Xid {xid} was logged{times} {} ago", age(ago));
            Some(G06.finding(fact, cause, command))
        })
        .collect()
}

/// Parses a message `NVRM: Xid (PCI:0000:19:00): 79, …`. Returns the Xid's number and the device's
/// bus address.
pub(super) fn xid(message: &str) -> Option<(u32, &str)> {
    let (_, rest) = message.split_once("NVRM: Xid (PCI:")?;
    let (device, rest) = rest.split_once("): ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..digits].parse().ok()?, device))
}

pub(super) const G15: Rule = Rule::new(
    "G15",
    Severity::Info,
    "device memory lost in the machine's sleep",
    Machines(memory_lost_in_sleep),
);

/// Returns a finding if the machine slept since its start, and the driver saves no memory then.
fn memory_lost_in_sleep(machine: &Machine) -> Vec<Finding> {
    let slept = logged(machine, "PM: suspend exit").filter(|_| machine.host.loses_memory_asleep);
    let finding = |(_, ago)| {
        G15.finding(
            format!("the machine slept until {} ago; device memory was not saved", age(ago)),
            "Programs started before have lost theirs; calls can fail with error 999.",
            "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
        )
    };
    slept.map(finding).into_iter().collect()
}

/// Returns how often the kernel logged a text, and the seconds since the last time.
pub(super) fn logged(machine: &Machine, text: &str) -> Option<(u64, u64)> {
    let mut messages = machine.log.iter().filter(|message| message.text.contains(text));
    let first = messages.next()?;
    let (count, last) =
        messages.fold((1, first.seconds), |(count, _), message| (count + 1, message.seconds));
    Some((count, (machine.host.uptime_seconds - last).max(0.0) as u64))
}
