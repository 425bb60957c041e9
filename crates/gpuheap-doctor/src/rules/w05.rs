//! W05: little left to pin.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "W05",
    severity: Severity::Warning,
    title: "little left to pin",
    explanation: "WSL2 limits memory that is pinned for a device: calls were seen to fail from 0.5 to 1 GiB in all, on \
                  hosts with 62 GiB, and later calls may fail too. The error is \"out of memory\", with memory \
                  of the host and of the card left. The kernel counts pinned pages (nr_foll_pin_acquired in \
                  /proc/vmstat). Not compared with a real WSL2 yet.",
    look,
};

/// Pinned memory from which on calls failed in Docker on WSL2.
const NOTED: u64 = 512 << 20;

/// Pinned memory from which on calls failed on a host with 62 GiB.
const WARNED: u64 = 768 << 20;

/// Returns a finding if pinned memory is close to the amounts at which calls failed.
fn look(machine: &Machine) -> Vec<Finding> {
    let pinned = machine.host.pinned;
    if !machine.host.is_wsl || pinned < NOTED {
        return Vec::new();
    }
    let fact = format!("{} are pinned; WSL2 was seen to refuse from 512 to 1024 MiB", mib(pinned));
    let cause = "Pinning fails with \"out of memory\"; use pin_memory=False, or fewer workers.";
    let mut finding = RULE.found(fact, cause, "grep foll_pin /proc/vmstat").with_bytes(pinned);
    if pinned < WARNED {
        finding.severity = Severity::Info;
    }
    vec![finding]
}
