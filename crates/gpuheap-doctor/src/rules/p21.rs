//! P21: forgotten job.

use crate::evidence::{self, accounts};
use crate::machine::{Kind, Machine};
use crate::rule::{Finding, Rule, Severity};
use crate::words::{age, mib};

pub(super) const RULE: Rule = Rule {
    id: "P21",
    severity: Severity::Info,
    title: "forgotten job",
    explanation: "A process of tmux, nohup or a user's service can be forgotten. This one is older than a \
                  day, has no terminal, and no kernel ran on its device in the driver's last sample. It \
                  may only be waiting.",
    look,
};

/// Returns a finding for each old process without a terminal on an idle device.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine).filter(|(gpu, _)| gpu.utilization == Some(0)) {
        for row in account.processes.iter().filter(|row| row.kind == Kind::Compute) {
            let Some(process) = machine.process(row.pid) else { continue };
            if process.age_seconds > 86_400 && process.terminal == 0 && process.container.is_none()
            {
                let size = row.bytes.map_or_else(|| "memory".to_owned(), mib);
                found.push(RULE.found(
                    format!(
                        "{}: pid {} of {} has {size} and may be idle, {} old",
                        evidence::name(gpu),
                        row.pid,
                        process.user,
                        age(process.age_seconds)
                    ),
                    format!("No terminal, and no kernel ran just now: {}.", process.command(30)),
                    format!("ps -fp {}", row.pid),
                ));
            }
        }
    }
    found
}
