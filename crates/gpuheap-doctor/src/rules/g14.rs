//! G14: confidential computing.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G14",
    severity: Severity::Warning,
    title: "confidential computing",
    explanation: "With confidential computing a part of the device's memory is set aside, and copies go \
                  through buffers of their own. What is missing then is not leaked.",
    look,
};

/// Returns a finding for each device in confidential mode whose memory does not add up.
fn look(machine: &Machine) -> Vec<Finding> {
    accounts(machine)
        .filter(|(gpu, account)| {
            gpu.confidential == Some(true) && account.unaccounted_bytes > 512 << 20
        })
        .map(|(gpu, account)| {
            RULE.found(
                format!(
                    "{}: {} unaccounted, with confidential computing on",
                    evidence::name(gpu),
                    mib(account.unaccounted_bytes as u64)
                ),
                "Confidential computing sets memory aside.",
                "nvidia-smi conf-compute -q",
            )
        })
        .collect()
}
