//! P13: display.

use crate::evidence::{self, accounts};
use crate::machine::{Kind, Machine};
use crate::rule::{Finding, Rule, Severity};
use crate::words::{count, mib};

pub(super) const RULE: Rule = Rule {
    id: "P13",
    severity: Severity::Info,
    title: "display",
    explanation: "A compositor, browsers and editors keep textures on the device that draws the screen. A \
                  processor's own graphics can draw it instead.",
    look,
};

/// Returns a finding for each device that a display uses.
fn look(machine: &Machine) -> Vec<Finding> {
    accounts(machine)
        .filter_map(|(gpu, account)| {
            let rows: Vec<_> =
                account.processes.iter().filter(|row| row.kind == Kind::Graphics).collect();
            let sum = rows.iter().filter_map(|row| row.bytes).fold(0, u64::saturating_add);
            if rows.is_empty() {
                return None;
            }
            Some(RULE.found(
                format!(
                    "{}: {} for drawing: {}",
                    evidence::name(gpu),
                    count(rows.len(), "process"),
                    mib(sum)
                ),
                "Compositor, browser and editors keep their textures there.",
                format!("nvidia-smi -i {}", gpu.index),
            ))
        })
        .collect()
}
