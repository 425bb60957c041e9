//! P15: processes that are hidden.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P15",
    severity: Severity::Info,
    title: "processes that are hidden",
    explanation: "With hidepid, /proc shows you your own processes alone. A process that is not shown \
                  cannot be told from one that has ended, so the rules about ended processes keep quiet.",
    look,
};

/// Returns a finding if `/proc` hides processes of other users.
fn look(machine: &Machine) -> Vec<Finding> {
    let host = &machine.host;
    if host.hidepid == 0 || host.uid == Some(0) {
        return Vec::new();
    }
    vec![RULE.found(
        format!("/proc hides processes of other users (hidepid={})", host.hidepid),
        "Ended processes cannot be told from hidden ones.",
        "sudo gpuheap doctor",
    )]
}
