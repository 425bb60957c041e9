//! G08: reset that holders would refuse.

use crate::evidence;
use crate::machine::{Gpu, Machine, Process};
use crate::rule::{Finding, Rule, Severity};
use crate::words::count;

pub(super) const RULE: Rule = Rule {
    id: "G08",
    severity: Severity::Warning,
    title: "reset that holders would refuse",
    explanation: "A reset is refused while anything has the device open: programs, and services such as \
                  DCGM, the fabric manager, the persistence daemon and a display. They are stopped first, \
                  in this order: programs, DCGM, display, fabric manager, persistence mode. This rule \
                  shows only if a reset is due.",
    look,
};

/// Returns a finding for each device that needs a reset while processes hold it.
fn look(machine: &Machine) -> Vec<Finding> {
    let is_due = |gpu: &&Gpu| {
        gpu.pages_pending == Some(true)
            || gpu.failure.as_ref().is_some_and(|failure| failure.code == 16)
            || machine.log.iter().filter_map(|message| evidence::xid(&message.text)).any(
                |(xid, device)| {
                    matches!(xid, 79 | 95 | 119 | 120 | 143)
                        && gpu.pci.to_lowercase().ends_with(&format!("{}.0", device.to_lowercase()))
                },
            )
    };
    let holders: Vec<&Process> =
        machine.processes.iter().filter(|process| !process.holds.is_empty()).collect();
    if holders.is_empty() {
        return Vec::new();
    }
    machine
        .devices()
        .iter()
        .filter(is_due)
        .map(|gpu| {
            RULE.found(
                format!(
                    "{} wants a reset, and {} may hold it",
                    evidence::name(gpu),
                    count(holders.len(), "process")
                ),
                format!("A reset is refused until these have ended: {}.", evidence::list(&holders)),
                "sudo systemctl stop nvidia-dcgm nvidia-persistenced",
            )
        })
        .collect()
}
