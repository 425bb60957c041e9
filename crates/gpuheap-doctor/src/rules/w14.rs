//! W14: harmless messages of WSL2.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "W14",
    severity: Severity::Info,
    title: "harmless messages of WSL2",
    explanation: "At its start WSL2 asks for adapters that are not there. The kernel logs each as a \
                  failure of dxgkio_query_adapter_info or dxgkio_is_feature_enabled. They mean nothing.",
    look,
};

/// Returns a finding if the kernel's log has alarming but harmless messages of WSL2.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::logged(machine, "dxgkio_query_adapter_info: Ioctl failed")
        .or_else(|| evidence::logged(machine, "dxgkio_is_feature_enabled: Ioctl failed"))
        .map(|(count, _)| {
            RULE.found(
                format!("{count} messages \"dxgkio_query_adapter_info: Ioctl failed\" in the kernel's log"),
                "WSL2 logs them at its start; they mean nothing.",
                "sudo dmesg | grep dxg",
            )
        })
        .into_iter()
        .collect()
}
