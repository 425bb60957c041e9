//! P03: process that cannot be ended.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P03",
    severity: Severity::Fail,
    title: "process that cannot be ended",
    explanation: "A thread that waits inside the kernel, for a file server that does not answer or for the \
                  driver, cannot be ended, not even by SIGKILL. Its memory stays until the wait is over. \
                  The thread was seen so in each of three samples over two seconds.",
    look,
};

/// Returns a finding for each process that sleeps uninterruptibly.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::with_memory(machine)
        .filter(|process| process.is_stuck)
        .map(|process| {
            let place = process.waits_in.as_deref().unwrap_or("the kernel");
            RULE.found(
                format!(
                    "pid {} ({}) cannot be ended: a thread waits in {place}",
                    process.pid,
                    process.command(30)
                ),
                "A file server or a driver does not answer; the memory stays until it does.",
                format!("sudo cat /proc/{}/stack", process.pid),
            )
            .with_pids([process.pid])
        })
        .collect()
}
