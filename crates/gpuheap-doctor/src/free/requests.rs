//! Requests that make inference servers, such as Ollama, give memory back and keep running.

use super::holders::Step;
use crate::evidence;
use crate::machine::{Machine, Process};

/// Returns the pid of each inference server of this user, with a step that gives its memory back.
pub(super) fn requests(machine: &Machine) -> Vec<(u32, Step)> {
    let is_own = |process: &&Process| process.uid.is_some() && process.uid == machine.host.uid;
    evidence::with_memory(machine)
        .filter(is_own)
        .filter_map(|process| {
            let (reason, command) = request(process)?;
            let reason = format!("pid {}: {reason}", process.pid);
            let bytes = evidence::listed_bytes(machine, process.pid).unwrap_or(0);
            Some((process.pid, Step { reason, bytes, command: command.to_owned() }))
        })
        .collect()
}

/// Returns how an inference server gives memory back, in words and as a command. `None` for other
/// programs.
fn request(process: &Process) -> Option<(&'static str, &'static str)> {
    if process.runs("ollama") {
        let command = "ollama ps | awk 'NR>1{print $1}' | xargs -rn1 ollama stop";
        return Some(("Ollama unloads a model on request", command));
    }
    if process.runs("ComfyUI") {
        let command = "curl -H 'Content-Type: application/json' -d \
                       '{\"unload_models\":true,\"free_memory\":true}' \
                       http://127.0.0.1:8188/free";
        return Some(("ComfyUI unloads its models on request", command));
    }
    let reason = "vLLM with --enable-sleep-mode frees its memory on request";
    process.runs("vllm").then_some((reason, "curl -X POST http://127.0.0.1:8000/sleep?level=1"))
}
