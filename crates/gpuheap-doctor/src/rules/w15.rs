//! W15: data read from a Windows drive.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "W15",
    severity: Severity::Info,
    title: "data read from a Windows drive",
    explanation: "A file on a Windows drive (/mnt/c) passes the file systems of both systems at each access, and a device \
                  that waits for it is idle. Copy the data into the Linux file system once, and read it there. The \
                  difference was reported by users (microsoft/WSL issues 4197 and 9430) and not measured here.",
    look,
};

/// Returns a finding for each process that uses a GPU and has files of a Windows drive open.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::with_memory(machine)
        .filter(|_| machine.host.is_wsl)
        .filter_map(|process| {
            let drive = process.drives.first()?;
            let fact =
                format!("pid {} ({}) reads files of {drive}", process.pid, process.command(30));
            let cause = "A Windows drive is slow from inside WSL2; copy the data once.";
            Some(RULE.found(fact, cause, format!("cp -r {drive}/DATA ~/")).with_pids([process.pid]))
        })
        .collect()
}
