//! G02: a little memory in use on an idle device.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G02",
    severity: Severity::Info,
    title: "a little memory in use on an idle device",
    explanation: "Driver, firmware and kernel clients keep some memory of a device for themselves, from a \
                  few to several hundred MiB by card and driver. It is no leak, and nothing gives it back.",
    look,
};

/// Returns a finding for each idle device with a little memory in use.
fn look(machine: &Machine) -> Vec<Finding> {
    accounts(machine)
        .filter(|(gpu, account)| gpu.failure.is_none() && account.processes.is_empty())
        .filter(|(_, account)| {
            (1..=evidence::unaccounted_limit(account)).contains(&account.unaccounted_bytes)
        })
        .map(|(gpu, account)| {
            RULE.found(
                format!(
                    "{}: {} in use with no process",
                    evidence::name(gpu),
                    mib(account.used_bytes)
                ),
                "The driver's own clients; no process can give it back.",
                format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
            )
        })
        .collect()
}
