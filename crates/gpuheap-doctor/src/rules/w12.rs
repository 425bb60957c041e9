//! W12: no figures by process.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::count;

pub(super) const RULE: Rule = Rule {
    id: "W12",
    severity: Severity::Info,
    title: "no figures by process",
    explanation: "Under Windows' driver model, Windows manages the memory of the card and the NVIDIA \
                  driver has no figure by process. The figure of the whole card is right.",
    look,
};

/// Returns a finding if the driver gives no figure for each process.
fn look(machine: &Machine) -> Vec<Finding> {
    accounts(machine)
        .filter(|(_, account)| machine.host.is_wsl && account.processes_without_figure > 0)
        .map(|(gpu, account)| {
            RULE.found(
                format!(
                    "{}: {} without a figure",
                    evidence::name(gpu),
                    count(account.processes_without_figure, "process")
                ),
                "Windows manages the card's memory and does not give figures by process.",
                "tasklist.exe",
            )
        })
        .collect()
}
