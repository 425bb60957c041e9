//! W10: memory of WSL2 without a holder in it.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "W10",
    severity: Severity::Warning,
    title: "memory of WSL2 that nothing in it holds",
    explanation: "Windows counts all of WSL2 as one process, vmmem. If that has dedicated memory and nothing in the only \
                  distribution that runs has /dev/dxg open, a program ended and Windows did not take its memory \
                  back. It goes with the virtual machine.",
    look,
};

/// Memory that an idle WSL2 may use for its window system.
const LEAST: u64 = 500 << 20;

/// Returns a finding if Windows counts memory for WSL2, and no process in it uses the GPU.
fn look(machine: &Machine) -> Vec<Finding> {
    let Some(windows) = &machine.windows else { return Vec::new() };
    let (held, _) = windows.of_wsl();
    let has_holder = machine.processes.iter().any(|process| !process.holds.is_empty());
    let is_alone = windows.distributions.len() == 1 && machine.unreadable == Some(0);
    if held <= LEAST || has_holder || !is_alone || machine.host.is_container {
        return Vec::new();
    }
    let fact = format!("Windows counts {} of the card for WSL2, where nothing uses it", mib(held));
    let cause = "If it stays for a minute, an ended program's memory was not taken back.";
    vec![RULE.found(fact, cause, "wsl.exe --shutdown").with_bytes(held)]
}
