//! P18: monitor, which uses no memory.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P18",
    severity: Severity::Info,
    title: "monitor, which uses no memory",
    explanation: "Monitors open device files to ask the driver. They have no context and use no memory of \
                  a device.",
    look,
};

/// Returns a finding for each process that only watches devices.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::unlisted_holders(machine)
        .filter(|process| {
            process.has_loaded("libnvidia-ml.so") && !process.has_loaded("libcuda.so")
        })
        .map(|process| {
            RULE.found(
                format!("pid {} ({}) watches devices", process.pid, process.command(30)),
                "It has device files open and uses no memory of a device.",
                format!("ps -fp {}", process.pid),
            )
        })
        .collect()
}
