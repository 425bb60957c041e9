//! P08: memory that PyTorch may keep.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P08",
    severity: Severity::Info,
    title: "memory that PyTorch may keep",
    explanation: "PyTorch keeps freed blocks for its next request. From outside one cannot see how much of \
                  a process's memory that is. Only the process can give it back: torch.cuda.empty_cache().",
    look,
};

/// Returns a finding for each process of PyTorch with much memory.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::with_memory(machine)
        .filter(|process| process.has_loaded("libtorch_cuda") || process.has_loaded("libc10_cuda"))
        .filter_map(|process| Some((process, evidence::bytes_of(machine, process.pid)?)))
        .filter(|&(_, bytes)| bytes > 2 << 30)
        .map(|(process, bytes)| {
            RULE.found(
                format!(
                    "pid {} ({}) has {} and PyTorch loaded",
                    process.pid,
                    process.command(30),
                    mib(bytes)
                ),
                "A part of it may be PyTorch's cache, which torch.cuda.empty_cache() gives back.",
                format!("ps -fp {}", process.pid),
            )
        })
        .collect()
}
