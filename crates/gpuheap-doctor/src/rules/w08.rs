//! W08: too little memory for WSL2.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::{Amount, count};

pub(super) const RULE: Rule = Rule {
    id: "W08",
    severity: Severity::Warning,
    title: "too little memory for WSL2",
    explanation: "WSL2 gets half of the host's memory unless .wslconfig says otherwise. If it runs out, \
                  the kernel ends processes (\"Killed\"). That is memory of the host, not of the GPU. Set \
                  memory= and swap= under [wsl2] in .wslconfig, then run wsl.exe --shutdown.",
    look,
};

/// Returns a finding if WSL2's own memory ran out.
fn look(machine: &Machine) -> Vec<Finding> {
    let host = &machine.host;
    if !host.is_wsl || (host.oom_kills == 0 && host.available >= host.memory / 20) {
        return Vec::new();
    }
    vec![RULE.found(
        format!(
            "WSL2 has {} of memory, {} left; {} ended for it",
            Amount(host.memory),
            Amount(host.available),
            count(host.oom_kills as usize, "process")
        ),
        "Its default is half of the host's; set memory= in .wslconfig.",
        "gpuheap explain wslconfig",
    )]
}
