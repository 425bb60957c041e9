//! G04: error correction that takes memory.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G04",
    severity: Severity::Info,
    title: "error correction that takes memory",
    explanation: "Cards with GDDR memory keep the bits for error correction in the same memory, some 6 % \
                  of it. Cards with HBM have room of their own for them. Without correction, a flipped bit \
                  goes unnoticed.",
    look,
};

/// Returns a finding for each device whose error correction takes some of its memory.
fn look(machine: &Machine) -> Vec<Finding> {
    const GDDR: [&str; 8] = ["T4", "L4", "A10", "A40", "A16", "A2", "RTX", "Quadro"];
    machine
        .devices()
        .iter()
        .filter(|gpu| gpu.ecc == Some(true))
        .filter(|gpu| {
            gpu.name.split([' ', '-']).any(|word| GDDR.iter().any(|&card| word.starts_with(card)))
        })
        .filter(|gpu| !gpu.name.contains("A100"))
        .map(|gpu| {
            RULE.found(
                format!(
                    "{}: {} in all, with error correction on",
                    evidence::name(gpu),
                    mib(gpu.total)
                ),
                "Error correction takes some 6 % of a card with GDDR memory.",
                format!("sudo nvidia-smi -i {} -e 0", gpu.index),
            )
        })
        .collect()
}
