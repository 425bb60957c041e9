//! P24: much pinned memory.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P24",
    severity: Severity::Info,
    title: "much pinned memory",
    explanation: "Pinned memory is memory of the host that a device copies from and to by itself. The kernel \
                  cannot swap it out or move it, and counts its pages (nr_foll_pin_acquired in /proc/vmstat). \
                  Programs pin buffers for copies, and mostly keep them until they end. With driver 580, memory \
                  of cuMemHostAlloc is mapped as shared anonymous memory, by which its owner is told here.",
    look,
};

/// Pinned memory from which it is told.
const NOTED: u64 = 1 << 30;

/// Returns a finding if much memory of the host is pinned. W05 looks at WSL2.
fn look(machine: &Machine) -> Vec<Finding> {
    let pinned = machine.host.pinned;
    if machine.host.is_wsl || pinned < NOTED {
        return Vec::new();
    }
    let mut owners: Vec<_> = evidence::with_memory(machine)
        .filter(|process| process.shared_anonymous >= NOTED / 4)
        .collect();
    owners.sort_by_key(|process| std::cmp::Reverse(process.shared_anonymous));
    let cause = match owners.first() {
        Some(owner) => format!(
            "pid {} ({}) maps {} of such memory; it comes back when the program frees it or ends.",
            owner.pid,
            owner.command(30),
            mib(owner.shared_anonymous)
        ),
        None => "It comes back when the programs that pinned it free it or end.".to_owned(),
    };
    let fact = format!("{} of the host's {} are pinned", mib(pinned), mib(machine.host.memory));
    let mut finding = RULE
        .found(fact, cause, "grep foll_pin /proc/vmstat")
        .with_pids(owners.iter().map(|process| process.pid));
    if pinned > machine.host.memory / 2 {
        finding.severity = Severity::Warning;
    }
    vec![finding]
}
