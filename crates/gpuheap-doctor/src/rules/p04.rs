//! P04: ended main thread of a process with other threads.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P04",
    severity: Severity::Warning,
    title: "ended main thread, living others",
    explanation: "A process shows as a zombie once its main thread has ended. If other threads run on, it \
                  keeps all of its memory.",
    look,
};

/// Returns a finding for each process whose main thread has ended and whose other threads live.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::with_memory(machine)
        .filter(|process| process.state == 'Z' && process.threads > 1)
        .map(|process| {
            RULE.found(
                format!(
                    "pid {} ({}) is a zombie with {} threads",
                    process.pid,
                    process.command(30),
                    process.threads
                ),
                "Its main thread has ended and the others keep the memory.",
                format!("kill -9 {}", process.pid),
            )
            .with_pids([process.pid])
        })
        .collect()
}
