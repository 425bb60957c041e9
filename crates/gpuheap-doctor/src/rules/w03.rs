//! W03: memory that Windows holds.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "W03",
    severity: Severity::Warning,
    title: "memory that Windows holds",
    explanation: "The figure of the device is of the whole card, Windows included. If no process in this \
                  distribution has /dev/dxg open, Windows programs, another distribution or Docker Desktop \
                  hold the memory. Nothing inside WSL2 can free it. Task Manager shows it by process, as \
                  \"Dedicated GPU memory\".",
    look,
};

/// Returns a finding for each device that is in use with no process of this distribution.
fn look(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_wsl || machine.unreadable != Some(0) {
        return Vec::new();
    }
    if machine.processes.iter().any(|process| !process.holds.is_empty()) {
        return Vec::new();
    }
    accounts(machine)
        .filter(|(_, account)| account.used_bytes > (account.total_bytes / 10).max(3 << 29))
        .map(|(gpu, account)| {
            RULE.found(
                format!(
                    "{}: {} in use, none of it by this distribution",
                    evidence::name(gpu),
                    mib(account.used_bytes)
                ),
                "Windows programs, another distribution or Docker Desktop hold it.",
                "tasklist.exe",
            )
            .with_bytes(account.used_bytes)
        })
        .collect()
}
