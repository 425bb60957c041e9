//! G13: virtual GPU.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G13",
    severity: Severity::Info,
    title: "virtual GPU",
    explanation: "A virtual GPU has a fixed part of the card's memory. What other machines hold of the \
                  card cannot be seen from here.",
    look,
};

/// Returns a finding for each device that is shared with virtual machines.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .devices()
        .iter()
        .filter(|gpu| {
            gpu.virtualization.as_deref().is_some_and(|mode| mode.to_lowercase().contains("vgpu"))
        })
        .map(|gpu| {
            RULE.found(
                format!(
                    "{}: {} of a card that virtual machines share",
                    evidence::name(gpu),
                    mib(gpu.total)
                ),
                "The profile of the virtual GPU sets its memory; the host knows the rest.",
                "nvidia-smi -q | grep -A3 Virtualization",
            )
        })
        .collect()
}
