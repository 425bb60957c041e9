//! P07: idle notebook.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::{age, mib};

pub(super) const RULE: Rule = Rule {
    id: "P07",
    severity: Severity::Info,
    title: "idle notebook",
    explanation: "A notebook's kernel keeps every object that a variable names, and the last results and \
                  traceback besides (Out, _, sys.last_traceback). It was idle for a second when it was \
                  looked at.",
    look,
};

/// Returns a finding for each kernel of a notebook that holds memory and does nothing.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::with_memory(machine)
        .filter(|process| process.runs("ipykernel") && process.busy_lately == Some(0))
        .filter_map(|process| Some((process, evidence::bytes_of(machine, process.pid)?)))
        .map(|(process, bytes)| {
            RULE.found(
                format!(
                    "pid {} is an idle notebook with {}, started {} ago",
                    process.pid,
                    mib(bytes),
                    age(process.age_seconds)
                ),
                "Its variables, and Out and _, keep what they name.",
                format!("kill {}", process.pid),
            )
        })
        .collect()
}
