//! P01: memory of a process that has ended.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P01",
    severity: Severity::Fail,
    title: "memory of a process that has ended",
    explanation: "The driver frees memory when the last descriptor of its device file is closed, and lists \
                  it under the process that opened it. A child inherits the descriptor when its parent \
                  forks: workers of a data loader or of multiprocessing do. If the parent dies and a child \
                  lives on, the memory stays, under the pid of a process that is gone. Ending the children \
                  frees it. Programs avoid it by starting workers with spawn in place of fork.",
    look,
};

/// Returns a finding for each process that is listed with memory and has ended.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine) {
        for row in account.processes.iter().filter(|row| evidence::has_ended(machine, row)) {
            let size = row.bytes.map_or_else(|| "memory".to_owned(), mib);
            let fact = format!(
                "{}: {size} is listed under pid {}, which has ended",
                evidence::name(gpu),
                row.pid
            );
            let (heirs, is_sure) = evidence::heirs(machine, row.pid);
            let (cause, command) = match (heirs.as_slice(), machine.unreadable) {
                ([], Some(0)) => (
                    "No process has the device open; the driver may still be cleaning up."
                        .to_owned(),
                    "gpuheap status".to_owned(),
                ),
                ([], _) => (
                    "A child inherited its device file, among processes that you may not read."
                        .to_owned(),
                    "sudo gpuheap doctor".to_owned(),
                ),
                (heirs, _) if is_sure => (
                    format!(
                        "A child inherited its device file and keeps it open: {}.",
                        evidence::list(heirs)
                    ),
                    format!("kill {}", evidence::pids(heirs, " ")),
                ),
                (heirs, _) => (
                    format!("One of these inherited its device file: {}.", evidence::list(heirs)),
                    format!("ps -fp {}", evidence::pids(heirs, ",")),
                ),
            };
            let finding =
                RULE.found(fact, cause, command).with_pids(heirs.iter().map(|heir| heir.pid));
            found.push(finding.with_bytes(row.bytes.unwrap_or(0)));
        }
    }
    found
}
