//! P05: zombie, which holds nothing.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P05",
    severity: Severity::Info,
    title: "zombie, which holds nothing",
    explanation: "A zombie of one thread has closed all of its files already. It holds no memory of a \
                  device; its parent has only not read its exit code.",
    look,
};

/// Returns a finding for each ended process that its parent has not waited for.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .processes
        .iter()
        .filter(|process| process.state == 'Z' && process.threads <= 1)
        .map(|process| {
            RULE.found(
                format!("pid {} ({}) is a zombie", process.pid, process.comm),
                format!(
                    "It holds no memory; its parent {} has not read its exit code.",
                    process.parent
                ),
                format!("ps -fp {}", process.parent),
            )
        })
        .collect()
}
