//! W04: memory that Windows moved to the host.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "W04",
    severity: Severity::Warning,
    title: "memory that Windows moved to the host",
    explanation: "If programs request more than the card has, Windows does one of two things, and does not announce which. \
                  It moves a part of their memory to the host and calls it \"Shared GPU memory\": no call fails, and each \
                  access goes through PCIe and is slow. Or it refuses: see W06. Dedicated memory near its limit and \
                  shared memory that grows are the sign of the first. Pinned memory counts as shared too.",
    look,
};

/// Normal amount of shared memory: queues and staging of the driver.
const LEAST: u64 = 256 << 20;

/// Returns a finding if the card is full, and WSL2 uses memory of the host instead.
fn look(machine: &Machine) -> Vec<Finding> {
    let Some(windows) = &machine.windows else { return Vec::new() };
    let total = machine.devices().iter().map(|gpu| gpu.total).max().unwrap_or(0);
    let (_, spilled) = windows.of_wsl();
    let is_full = total > 0 && windows.dedicated >= total - total / 10;
    if !is_full || spilled <= LEAST.saturating_add(machine.host.pinned) {
        return Vec::new();
    }
    let fact = format!(
        "{} of WSL2's memory are \"Shared GPU memory\", with {} of {} dedicated in use",
        mib(spilled),
        mib(windows.dedicated),
        mib(total)
    );
    let cause = "The card is full, and Windows moved a part to the host: slow; it may refuse the next \
                 request.";
    vec![RULE.found(fact, cause, "gpuheap explain dedicated").with_bytes(spilled)]
}
