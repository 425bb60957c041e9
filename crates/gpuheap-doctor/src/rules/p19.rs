//! P19: attached profiler.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P19",
    severity: Severity::Info,
    title: "attached profiler",
    explanation: "Profilers and checkers keep buffers of their own on the device. They count as the \
                  process's memory.",
    look,
};

/// Returns a finding for each process to which a profiler or debugger is attached.
fn look(machine: &Machine) -> Vec<Finding> {
    const TOOLS: [&str; 3] = ["libcupti", "libsanitizer-collection", "libcudadebugger"];
    // These frameworks load libcupti for the profiler that they bring, used or not.
    const FRAMEWORKS: [&str; 4] =
        ["libtorch_cuda", "libc10_cuda", "xla_extension", "libtensorflow"];
    evidence::with_memory(machine)
        .filter_map(|process| {
            let has_framework = FRAMEWORKS.iter().any(|name| process.has_loaded(name));
            let is_told = |tool: &&&str| !(has_framework && **tool == "libcupti");
            let mut tools = TOOLS.iter().filter(is_told);
            let tool = tools.find(|tool| process.has_loaded(tool))?;
            Some(RULE.found(
                format!("pid {} ({}) has {tool} loaded", process.pid, process.command(30)),
                "A profiler's or checker's buffers count as its memory.",
                format!("ps -fp {}", process.pid),
            ))
        })
        .collect()
}
