//! P16: container that sees no processes.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P16",
    severity: Severity::Warning,
    title: "container that sees no processes",
    explanation: "The driver lists the processes that your PID namespace can see. In a container these are \
                  the container's own, while memory in use is the whole device's.",
    look,
};

/// Returns a finding for each device in use on which a container sees no process.
fn look(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_container || machine.host.is_wsl {
        return Vec::new();
    }
    accounts(machine)
        .filter(|(_, account)| account.processes.is_empty())
        .filter(|(_, account)| {
            account.unaccounted_bytes > (account.total_bytes as i64 / 100).max(1 << 30)
        })
        .map(|(gpu, account)| {
            RULE.found(
                format!(
                    "{}: {} in use, and no process is listed in this container",
                    evidence::name(gpu),
                    mib(account.used_bytes)
                ),
                "Processes outside of it are not listed; look on the host.",
                "docker run --pid=host --gpus all IMAGE gpuheap doctor",
            )
        })
        .collect()
}
