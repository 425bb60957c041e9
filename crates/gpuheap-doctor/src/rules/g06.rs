//! G06: errors that the driver logged.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::age;

pub(super) const RULE: Rule = Rule {
    id: "G06",
    severity: Severity::Fail,
    title: "errors that the driver logged",
    explanation: "The driver logs a failure of a GPU as an Xid with a number. Numbers 13, 31, 43 and 45 \
                  are mistakes of a program: its context is lost, and its memory comes back when the \
                  process ends. They are shown if they are at most an hour old. 48, 63, 64, 94, 95, 140, \
                  171 and 172 are of the memory, 74, 121 and 173 of the link, 79, 119, 120, 143 and 158 of \
                  a device or firmware that does not answer: these want a reset, and until then memory may \
                  stay in use.",
    look,
};

/// Returns a finding for each kind of Xid in the kernel's log.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut seen: Vec<(u32, &str, usize, f64)> = Vec::new();
    for message in &machine.log {
        let Some((xid, device)) = evidence::xid(&message.text) else { continue };
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
                    "sudo dmesg | grep Xid".to_owned(),
                ),
                48 | 63 | 64 | 94 | 95 | 140 | 171 | 172 => {
                    ("Errors of the device's memory; it wants a reset.", "nvidia-smi -q -d ECC".to_owned())
                }
                74 | 121 | 173 => {
                    ("Errors of the link to the device.", "nvidia-smi nvlink --errorcounters".to_owned())
                }
                79 | 119 | 120 | 143 | 158 => (
                    "The device or its firmware does not answer; memory stays in use until a reset.",
                    "sudo nvidia-smi -r".to_owned(),
                ),
                _ => return None,
            };
            let times = if count == 1 { String::new() } else { format!(" {count} times, last") };
            let fact = format!("GPU at {device}: Xid {xid} was logged{times} {} ago", age(ago));
            Some(RULE.found(fact, cause, command))
        })
        .collect()
}
