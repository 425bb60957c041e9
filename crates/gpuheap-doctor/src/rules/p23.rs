//! P23: checkpointed process.

use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P23",
    severity: Severity::Info,
    title: "checkpointed process",
    explanation: "A checkpoint (gpuheap pause, cuda-checkpoint) moves all memory of a process from the \
                  device to the host, and the process waits in its next call of CUDA. It has no device open \
                  then. A restore needs as much free memory of the device as was saved; one that fails leaves the \
                  process as it is.",
    look,
};

/// Returns a finding for each process whose memory a checkpoint moved to the host.
fn look(machine: &Machine) -> Vec<Finding> {
    let found = machine.checkpointed.iter();
    found
        .map(|(pid, name)| {
            let fact = format!("pid {pid} ({name}) is checkpointed: it has no memory of a device");
            let cause = "Its memory is on the host; a restore wants it free on the device again.";
            RULE.found(fact, cause, format!("cuda-checkpoint --toggle --pid {pid}"))
                .with_pids([*pid])
        })
        .collect()
}
