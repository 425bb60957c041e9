//! P14: device that other users fill.

use crate::evidence::{self, accounts};
use crate::machine::{Kind, Machine};
use crate::rule::{Finding, Rule, Severity};
use crate::status::Place;
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P14",
    severity: Severity::Warning,
    title: "memory of other users",
    explanation: "Memory of another user's processes is not yours to take. If they hold more than half of \
                  a device, look for another one, or ask them.",
    look,
};

/// Returns a finding for each device on which other users have memory. It warns from half of the
/// device.
fn look(machine: &Machine) -> Vec<Finding> {
    if machine.host.uid == Some(0) {
        return Vec::new();
    }
    accounts(machine)
        .filter_map(|(gpu, account)| {
            let rows: Vec<_> = account
                .processes
                .iter()
                .filter(|row| row.place == Place::OtherUser && row.kind != Kind::Graphics)
                .collect();
            let sum = rows.iter().filter_map(|row| row.bytes).fold(0, u64::saturating_add);
            if rows.is_empty() {
                return None;
            }
            let mut users: Vec<&str> = rows.iter().filter_map(|row| row.user.as_deref()).collect();
            users.sort_unstable();
            users.dedup();
            let mut finding = RULE.found(
                format!(
                    "{}: {} of {} belong to {}",
                    evidence::name(gpu),
                    mib(sum),
                    mib(account.total_bytes),
                    users.join(", ")
                ),
                "Processes of other users; they are not yours to end.",
                format!("gpuheap status --device {}", gpu.index),
            );
            if sum <= account.total_bytes / 2 {
                finding.severity = Severity::Info;
            }
            Some(finding.with_bytes(sum))
        })
        .collect()
}
