//! P12: Multi-Process Service.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P12",
    severity: Severity::Warning,
    title: "Multi-Process Service",
    explanation: "With MPS, programs compute through a server, which has the context, and its memory shows \
                  as the server's. If a client dies in a fault, the server may keep a part until it is \
                  restarted.",
    look,
};

/// Returns a finding for each server of the Multi-Process Service.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .processes
        .iter()
        .filter(|process| process.comm.starts_with("nvidia-cuda-mps") && process.runs("mps-server"))
        .map(|process| {
            let size = evidence::bytes_of(machine, process.pid)
                .map_or_else(String::new, |bytes| format!(", with {}", mib(bytes)));
            RULE.found(
                format!("pid {} is a server of MPS{size}", process.pid),
                "Programs compute through it; after a fault it may keep their memory.",
                "echo quit | nvidia-cuda-mps-control",
            )
        })
        .collect()
}
