//! W11: reset of the card by Windows.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::age;

pub(super) const RULE: Rule = Rule {
    id: "W11",
    severity: Severity::Fail,
    title: "reset of the card by Windows",
    explanation: "Windows resets a card whose kernel runs longer than TdrDelay, 2 seconds. Every context on it is lost \
                  at once: programs fail with error 702, 719 or 999 and have to start anew. Windows logs it as \
                  event 4101 of its System log. Shorter kernels avoid it; TdrDelay is raised in the registry.",
    look,
};

/// Returns a finding if Windows reset the display driver within the last hour.
fn look(machine: &Machine) -> Vec<Finding> {
    let Some(ago) = machine.windows.as_ref().and_then(|windows| windows.reset_ago) else {
        return Vec::new();
    };
    vec![RULE.found(
        format!("Windows reset the card {} ago", age(ago)),
        "A kernel ran longer than TdrDelay, 2 s by default; every context was lost.",
        "powershell.exe Get-WinEvent System -MaxEvents 200",
    )]
}
