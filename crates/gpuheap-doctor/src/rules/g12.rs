//! G12: device divided into instances.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G12",
    severity: Severity::Info,
    title: "device divided into instances",
    explanation: "With MIG, processes belong to an instance of the device. The device as a whole lists \
                  them only for root, so that its memory seems to be nobody's.",
    look,
};

/// Returns a finding for each device that is divided into instances.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .devices()
        .iter()
        .filter(|gpu| gpu.mig == Some(true))
        .map(|gpu| {
            RULE.found(
                format!(
                    "{}: {} in use, divided into instances (MIG)",
                    evidence::name(gpu),
                    mib(gpu.used)
                ),
                "Processes are listed by instance, and those of other users for root alone.",
                "sudo nvidia-smi",
            )
        })
        .collect()
}
