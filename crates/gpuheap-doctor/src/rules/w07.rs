//! W07: broken channel to Windows.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "W07",
    severity: Severity::Fail,
    title: "broken channel to Windows",
    explanation: "WSL2 speaks to the Windows driver through a channel. After several hundred contexts it \
                  can break: every call fails with \"GPU access blocked by the operating system\". Only a \
                  restart of WSL2 or of Windows repairs it.",
    look,
};

/// Returns a finding if WSL2's channel to the GPU is broken.
fn look(machine: &Machine) -> Vec<Finding> {
    let is_blocked = machine
        .nvml
        .iter()
        .any(|nvml| nvml.failure.as_ref().is_some_and(|failure| failure.code == 17));
    let logged = evidence::logged(machine, "create_process failed -75");
    if !machine.host.is_wsl || (!is_blocked && logged.is_none()) {
        return Vec::new();
    }
    vec![RULE.found(
        "the channel from WSL2 to the Windows driver is broken",
        "It breaks after several hundred contexts; only a restart of WSL2 repairs it.",
        "wsl.exe --shutdown",
    )]
}
