//! P17: process of a container that is gone.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P17",
    severity: Severity::Warning,
    title: "process of a container that is gone",
    explanation: "docker rm -f and a crash of the container's runtime can leave processes behind. They \
                  keep their memory.",
    look,
};

/// Returns a finding for each process whose container no longer runs.
fn look(machine: &Machine) -> Vec<Finding> {
    let Some(running) = &machine.running_containers else { return Vec::new() };
    evidence::with_memory(machine)
        .filter(|process| process.cgroup.contains("docker"))
        .filter_map(|process| Some((process, process.container.as_deref()?)))
        .filter(|(_, container)| !running.iter().any(|id| id.starts_with(container)))
        .map(|(process, container)| {
            RULE.found(
                format!(
                    "pid {} ({}) belongs to container {container}, which does not run",
                    process.pid,
                    process.command(30)
                ),
                "The container was removed and its process stayed.",
                format!("sudo kill {}", process.pid),
            )
            .with_pids([process.pid])
        })
        .collect()
}
