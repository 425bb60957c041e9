//! W02: Linux driver inside WSL2.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "W02",
    severity: Severity::Fail,
    title: "Linux driver inside WSL2",
    explanation: "Under WSL2 the driver is Windows' own, and its library lies in /usr/lib/wsl/lib. A \
                  driver package for Linux brings another libcuda.so.1, which finds no device. Install \
                  cuda-toolkit packages only, never cuda, cuda-drivers or nvidia-driver.",
    look,
};

/// Returns a finding if the library of a Linux driver hides the one of Windows.
fn look(machine: &Machine) -> Vec<Finding> {
    let first = machine.libcuda.first().filter(|path| !path.starts_with("/usr/lib/wsl/"));
    let Some(path) = first.filter(|_| machine.host.is_wsl) else { return Vec::new() };
    vec![RULE.found(
        format!("programs load {path} and not the library of WSL2"),
        "A Linux driver is installed inside WSL2 and hides the one of Windows.",
        format!("dpkg -S {path}"),
    )]
}
