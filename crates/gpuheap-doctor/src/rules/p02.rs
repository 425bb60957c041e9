//! P02: workers whose program has ended.

use super::p01;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::age;

pub(super) const RULE: Rule = Rule {
    id: "P02",
    severity: Severity::Fail,
    title: "workers whose program has ended",
    explanation: "Workers of multiprocessing and of data loaders wait for their parent. If it is killed, \
                  they may wait for ever, with the device open. The session that they belong to has no \
                  leader any more, and their parent is the first process of the machine.",
    look,
};

/// Returns a finding for each worker process that lives on after its program.
fn look(machine: &Machine) -> Vec<Finding> {
    const WORKERS: [&str; 5] =
        ["pt_data_worker", "multiprocessing", "resource_tracker", "spawn_main", "loky"];
    let explained: Vec<u32> =
        p01::RULE.look(machine).into_iter().flat_map(|finding| finding.pids).collect();
    machine
        .processes
        .iter()
        .filter(|process| {
            process.parent == 1 && process.session != process.pid && !process.holds.is_empty()
        })
        .filter(|process| !machine.visible.contains_key(&process.session))
        .filter(|process| WORKERS.iter().any(|name| process.runs(name)))
        .filter(|process| !explained.contains(&process.pid))
        .map(|process| {
            RULE.found(
                format!(
                    "pid {} ({}, {}) is a worker whose program has ended",
                    process.pid,
                    process.command(30),
                    age(process.age_seconds)
                ),
                format!("Its session {} has no leader, and it has a device open.", process.session),
                format!("kill {}", process.pid),
            )
            .with_pids([process.pid])
        })
        .collect()
}
