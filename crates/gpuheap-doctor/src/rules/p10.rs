//! P10: server that keeps its model loaded.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P10",
    severity: Severity::Info,
    title: "server that keeps its model loaded",
    explanation: "Ollama keeps a model for five minutes after the last request (OLLAMA_KEEP_ALIVE); \
                  llama.cpp's server and ComfyUI keep it until they end.",
    look,
};

/// Returns a finding for each server that keeps a model in memory between requests.
fn look(machine: &Machine) -> Vec<Finding> {
    const SERVERS: [&str; 4] = ["ollama", "llama-server", "ComfyUI", "koboldcpp"];
    evidence::with_memory(machine)
        .filter_map(|process| {
            let name = SERVERS.iter().find(|name| process.runs(name))?;
            let bytes = evidence::bytes_of(machine, process.pid)?;
            let command = match *name {
                "ollama" => "ollama ps".to_owned(),
                _ => format!("kill {}", process.pid),
            };
            let fact = format!("pid {} ({name}) has {}", process.pid, mib(bytes));
            Some(RULE.found(fact, "It keeps its model loaded between requests.", command))
        })
        .collect()
}
