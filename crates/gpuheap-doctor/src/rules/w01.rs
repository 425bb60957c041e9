//! W01: WSL2 without a GPU.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "W01",
    severity: Severity::Fail,
    title: "WSL2 without a GPU",
    explanation: "WSL2 offers the GPU as /dev/dxg. It is missing if gpuSupport=false or safeMode=true \
                  stands in .wslconfig, if enabled=false stands under [gpu] in /etc/wsl.conf, or if WSL or \
                  the Windows driver is too old.",
    look,
};

/// Returns a finding if WSL2 offers no GPU.
fn look(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_wsl || !machine.host.has_no_device {
        return Vec::new();
    }
    vec![RULE.found(
        "WSL2 offers no GPU: there is no /dev/dxg",
        "It is switched off in .wslconfig or wsl.conf, or WSL is too old.",
        "wsl.exe --update",
    )]
}
