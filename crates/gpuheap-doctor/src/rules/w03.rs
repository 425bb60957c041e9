//! W03: memory that Windows holds.

use crate::evidence::{self, accounts};
use crate::machine::{Machine, Windows};
use crate::rule::{Finding, Rule, Severity};
use crate::words::{cut, mib};

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

/// Returns the memory of Windows programs that is reported: 1.5 GiB, or 10 % of the card. The
/// desktop alone reached 1.8 GB.
fn limit(total: u64) -> u64 {
    (total / 10).max(3 << 29)
}

/// Returns a finding if Windows programs hold much, or if the card is in use by no process of this
/// distribution.
fn look(machine: &Machine) -> Vec<Finding> {
    if !machine.host.is_wsl {
        return Vec::new();
    }
    if let Some(windows) = &machine.windows {
        return told(machine, windows).into_iter().collect();
    }
    if machine.unreadable != Some(0) {
        return Vec::new();
    }
    if machine.processes.iter().any(|process| !process.holds.is_empty()) {
        return Vec::new();
    }
    accounts(machine)
        .filter(|(_, account)| account.used_bytes > limit(account.total_bytes))
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

/// Returns the finding by Windows' own counters.
fn told(machine: &Machine, windows: &Windows) -> Option<Finding> {
    let total = machine.devices().iter().map(|gpu| gpu.total).max()?;
    let held = windows.of_others();
    if held <= limit(total) {
        return None;
    }
    let others = windows.processes.iter().filter(|process| !process.is_wsl());
    let named = others
        .take(3)
        .map(|process| format!("{} {}", cut(&process.name, 20), mib(process.dedicated)));
    let fact = format!("Windows programs hold {} of the card's {}", mib(held), mib(total));
    let cause =
        format!("Nothing inside WSL2 can free it: {}.", named.collect::<Vec<_>>().join(", "));
    Some(RULE.found(fact, cause, "taskmgr.exe").with_bytes(held))
}
