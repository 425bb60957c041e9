//! G15: driver that is half suspended.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "G15",
    severity: Severity::Info,
    title: "driver that is half suspended",
    explanation: "While a machine suspends, the driver saves the memory of its devices. If the machine \
                  woke up only in part, the driver stays suspended, and calls hang or fail.",
    look,
};

/// Returns a finding if the driver is in suspension.
fn look(machine: &Machine) -> Vec<Finding> {
    if machine.host.suspend_depth == 0 {
        return Vec::new();
    }
    vec![RULE.found(
        format!("the driver is suspended (depth {})", machine.host.suspend_depth),
        "The machine went to sleep and did not wake up in full.",
        "echo resume | sudo tee /proc/driver/nvidia/suspend",
    )]
}
