//! G10: persistence mode, which holds no memory.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "G10",
    severity: Severity::Info,
    title: "persistence mode, which holds no memory",
    explanation: "Persistence mode keeps the driver initialised while no program runs. It keeps no memory \
                  of programs, although the daemon has the device open and monitors name it.",
    look,
};

/// Returns a finding if the persistence daemon has devices open.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .processes
        .iter()
        .filter(|process| process.comm.starts_with("nvidia-persist") && !process.holds.is_empty())
        .map(|process| {
            RULE.found(
                format!(
                    "pid {} ({}) has {} device files open",
                    process.pid,
                    process.comm,
                    process.holds.len()
                ),
                "It keeps the driver initialised and holds no memory of programs.",
                "nvidia-smi -q | grep Persistence",
            )
        })
        .collect()
}
