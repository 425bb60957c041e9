//! W09: page cache that Windows lacks.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::Amount;

pub(super) const RULE: Rule = Rule {
    id: "W09",
    severity: Severity::Info,
    title: "page cache that Windows misses",
    explanation: "Windows sees WSL2's page cache as memory in use (vmmem). autoMemoryReclaim=gradual under \
                  [experimental] in .wslconfig gives it back.",
    look,
};

/// Returns a finding if WSL2 keeps much page cache.
fn look(machine: &Machine) -> Vec<Finding> {
    let host = &machine.host;
    if !host.is_wsl || host.cached <= host.memory / 4 {
        return Vec::new();
    }
    vec![RULE.found(
        format!("{} of WSL2's {} are page cache", Amount(host.cached), Amount(host.memory)),
        "Windows counts it as in use by vmmem.",
        "echo 1 | sudo tee /proc/sys/vm/drop_caches",
    )]
}
