//! G09: memory that is retired at the next reset.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "G09",
    severity: Severity::Info,
    title: "memory that is retired at the next reset",
    explanation: "Pages of memory that had errors are taken out of use at the next reset. Until then a \
                  program may meet them.",
    look,
};

/// Returns a finding for each device with pages to be retired.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .devices()
        .iter()
        .filter(|gpu| gpu.pages_pending == Some(true))
        .map(|gpu| {
            RULE.found(
                format!(
                    "{}: pages wait to be retired, {} are already",
                    evidence::name(gpu),
                    gpu.retired_pages.unwrap_or(0)
                ),
                "They had errors; a reset takes them out of use.",
                format!("sudo nvidia-smi -r -i {}", gpu.index),
            )
        })
        .collect()
}
