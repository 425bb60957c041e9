//! P01: memory of a process that has ended.

use crate::evidence::{self, Ended, accounts};
use crate::machine::{Gpu, Machine};
use crate::rule::{Finding, Rule, Severity};
use crate::status::Row;
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P01",
    severity: Severity::Fail,
    title: "memory of a process that has ended",
    explanation: "The driver frees memory when the last descriptor of its device file is closed, and lists \
                  it under the process that opened it. A child inherits the descriptor when its parent \
                  forks: workers of a data loader or of multiprocessing do. If the parent dies and a child \
                  lives on, the memory stays, under the pid of a process that is gone. Ending the children \
                  frees it. Programs avoid it by starting workers with spawn in place of fork. In a container, \
                  a driver older than 535.113 also lists processes outside of it; there the rule says \
                  \"may have ended\".",
    look,
};

/// Returns a finding for each process that is listed with memory and has ended.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine) {
        for row in &account.processes {
            let finding = match evidence::ended(machine, row) {
                Some(Ended::Proven) => proven(machine, gpu, row),
                Some(Ended::Likely) => likely(machine, gpu, row),
                None => continue,
            };
            found.push(finding.with_bytes(row.bytes.unwrap_or(0)));
        }
    }
    found
}

/// Returns the finding for a process that has ended.
fn proven(machine: &Machine, gpu: &Gpu, row: &Row) -> Finding {
    let fact = format!("{}, which has ended", listed(gpu, row));
    let (heirs, is_sure) = evidence::heirs(machine, row.pid);
    let (cause, command) = match (heirs.as_slice(), machine.unreadable) {
        ([], Some(0)) => (
            "No process has the device open; the driver may still be cleaning up.".to_owned(),
            "gpuheap status".to_owned(),
        ),
        ([], _) => (
            "A child inherited its device file, among processes that you may not read.".to_owned(),
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
    RULE.found(fact, cause, command).with_pids(heirs.iter().map(|heir| heir.pid))
}

/// Returns the warning for a process that has ended or is outside of this container.
fn likely(machine: &Machine, gpu: &Gpu, row: &Row) -> Finding {
    let (heirs, _) = evidence::heirs(machine, row.pid);
    let fact = format!("{}, which may have ended", listed(gpu, row));
    let cause = format!(
        "Or it is outside of this container. Look whether these are its children: {}.",
        evidence::list(&heirs)
    );
    let command = format!("ps -o pid,ppid,pgid,sid,lstart,args -p {}", evidence::pids(&heirs, ","));
    let mut finding = RULE.found(fact, cause, command).with_pids(heirs.iter().map(|heir| heir.pid));
    finding.severity = Severity::Warning;
    finding
}

fn listed(gpu: &Gpu, row: &Row) -> String {
    let size = row.bytes.map_or_else(|| "memory".to_owned(), mib);
    format!("{}: {size} is listed under pid {}", evidence::name(gpu), row.pid)
}
