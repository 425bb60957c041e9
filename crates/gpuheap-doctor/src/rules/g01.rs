//! G01: memory that no process is listed with.

use crate::evidence::{self, accounts};
use crate::machine::{Machine, Process};
use crate::rule::{Finding, Rule, Severity};
use crate::status::Account;
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G01",
    severity: Severity::Warning,
    title: "memory that no process is listed with",
    explanation: "The driver says how much memory of a device is in use, and which process has how much. \
                  If the sum of the processes is far below what is in use, something holds memory that the \
                  driver lists under no process you can see: a process in another namespace, a process \
                  whose descriptor a child inherited, or the kernel's own clients. A few hundred MiB are \
                  normal. The limit is 512 MiB or 1 % of the device, whichever is more, in each of three \
                  samples.",
    look,
};

/// Returns a finding for each device with much more memory in use than its processes have.
fn look(machine: &Machine) -> Vec<Finding> {
    if evidence::cannot_list(machine) {
        return Vec::new();
    }
    let held = |account: &Account| {
        let limit = evidence::unaccounted_limit(account);
        (account.processes_without_figure == 0 && account.unaccounted_bytes > limit)
            .then_some(account.unaccounted_bytes as u64)
    };
    accounts(machine)
        .filter(|(gpu, _)| gpu.mig != Some(true))
        .filter_map(|(gpu, account)| {
            let bytes = held(&account)?;
            let holders: Vec<&Process> = evidence::unlisted_holders(machine)
                .filter(|process| !evidence::is_monitor(process))
                .collect();
            let fact = format!(
                "{}: {} in use, {} of it by no process that is listed",
                evidence::name(gpu),
                mib(account.used_bytes),
                mib(bytes)
            );
            let (cause, command) = match (holders.as_slice(), machine.unreadable) {
                ([], Some(0)) => (
                    "No process has the device open: kernel clients or a driver that leaks."
                        .to_owned(),
                    format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
                ),
                ([], _) => (
                    "Some processes are not yours to read, so that their holder is not seen."
                        .to_owned(),
                    "sudo gpuheap doctor".to_owned(),
                ),
                (holders, _) => (
                    format!(
                        "Processes have the device open and are not listed: {}.",
                        evidence::list(holders)
                    ),
                    format!("ps -fp {}", evidence::pids(holders, ",")),
                ),
            };
            Some(RULE.found(fact, cause, command).with_bytes(bytes))
        })
        .collect()
}
