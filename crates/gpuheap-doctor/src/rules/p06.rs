//! P06: stopped process.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P06",
    severity: Severity::Warning,
    title: "stopped process",
    explanation: "A process that Ctrl-Z, SIGSTOP or a debugger stopped keeps its memory. It goes on with \
                  SIGCONT, or when the debugger detaches.",
    look,
};

/// Returns a finding for each process with memory that is stopped.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::with_memory(machine)
        .filter(|process| matches!(process.state, 'T' | 't'))
        .map(|process| {
            let size = evidence::bytes_of(machine, process.pid)
                .map_or_else(|| "a device open".to_owned(), mib);
            let (cause, command) = match process.tracer {
                0 => (
                    "Ctrl-Z or SIGSTOP stopped it.".to_owned(),
                    format!("kill -CONT {}", process.pid),
                ),
                tracer => (
                    format!("The debugger of pid {tracer} stopped it."),
                    format!("ps -fp {tracer}"),
                ),
            };
            let fact =
                format!("pid {} ({}) is stopped, with {size}", process.pid, process.command(30));
            RULE.found(fact, cause, command).with_pids([process.pid])
        })
        .collect()
}
