//! W13: large address ranges under WSL2.

use crate::evidence;
use crate::machine::{Machine, Process};
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "W13",
    severity: Severity::Info,
    title: "large address ranges under WSL2",
    explanation: "PyTorch's expandable segments and llama.cpp reserve address ranges of many GiB and map memory into \
                  them. WSL2 was seen to refuse ranges of 4 GiB and more with \"out of memory\"; that is address \
                  space and not memory. Switch them off by PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False \
                  and GGML_CUDA_NO_VMM=1.",
    look,
};

/// Returns a finding for each process under WSL2 that reserves large address ranges.
fn look(machine: &Machine) -> Vec<Finding> {
    const LLAMA: [&str; 4] = ["llama-server", "llama-cli", "ollama", "node-llama-cpp"];
    let setting = |process: &Process| {
        let variable = |name: &str| process.environment.get(name).map(String::as_str);
        let torch = variable("PYTORCH_CUDA_ALLOC_CONF").or(variable("PYTORCH_ALLOC_CONF"));
        if torch.is_some_and(|value| value.contains("expandable_segments:True")) {
            return Some((
                "PyTorch's expandable segments",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ));
        }
        let is_llama = LLAMA.iter().any(|name| process.runs(name));
        (is_llama && variable("GGML_CUDA_NO_VMM").is_none())
            .then_some(("llama.cpp", "GGML_CUDA_NO_VMM=1"))
    };
    evidence::with_memory(machine)
        .filter(|_| machine.host.is_wsl)
        .filter_map(|process| {
            let (user, remedy) = setting(process)?;
            let fact = format!(
                "pid {} ({}) reserves large address ranges",
                process.pid,
                process.command(30)
            );
            let cause = format!("It uses {user}; WSL2 was seen to refuse 4 GiB and more.");
            Some(RULE.found(fact, cause, format!("export {remedy}")).with_pids([process.pid]))
        })
        .collect()
}
