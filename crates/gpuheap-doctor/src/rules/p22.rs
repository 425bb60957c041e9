//! P22: memory shared with an ended process.

use std::collections::BTreeSet;

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::status::is_hidden;

pub(super) const RULE: Rule = Rule {
    id: "P22",
    severity: Severity::Warning,
    title: "memory shared with an ended process",
    explanation: "A tensor of a device that one process sends to another stays in use until the receiver closes it, and \
                  its memory then counts for the receiver. PyTorch marks such tensors by files torch_PID_… in \
                  /dev/shm, of the sender; it marks tensors of the host in the same way, so the file alone proves \
                  nothing. The warning is shown if the receiver is listed with more memory than the device has \
                  accounted; else it only informs. del and torch.cuda.ipc_collect() in the receiver free it.",
    look,
};

/// Shared memory from which on a device counts as listed twice, bytes.
const NOISE: i64 = 64 << 20;

/// Returns a finding for each process that has memory shared with an ended one.
fn look(machine: &Machine) -> Vec<Finding> {
    if is_hidden(machine) {
        return Vec::new();
    }
    let is_listed_twice = accounts(machine).any(|(_, account)| account.unaccounted_bytes < -NOISE);
    evidence::with_memory(machine)
        .filter(|process| process.has_loaded("libtorch_cuda"))
        .filter_map(|process| {
            let shared =
                process.maps.iter().filter_map(|path| path.strip_prefix("/dev/shm/torch_"));
            let senders: BTreeSet<u32> = shared
                .filter_map(|name| name.split('_').next()?.parse().ok())
                .filter(|pid| *pid != process.pid && !machine.visible.contains_key(pid))
                .collect();
            let sender = senders.first()?;
            let fact = format!(
                "pid {} ({}) maps tensors of pid {sender}, which has ended",
                process.pid,
                process.command(30)
            );
            let cause = "Device memory that it received stays until it closes the tensors.";
            let mut finding = RULE.found(fact, cause, format!("ps -fp {}", process.pid));
            if !is_listed_twice {
                finding.severity = Severity::Info;
            }
            Some(finding.with_pids([process.pid]))
        })
        .collect()
}
