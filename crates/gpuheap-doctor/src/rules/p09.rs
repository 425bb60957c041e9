//! P09: memory taken ahead by design.

use crate::evidence::{self, accounts};
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "P09",
    severity: Severity::Info,
    title: "memory taken ahead by design",
    explanation: "JAX takes 75 % of a device when it begins, TensorFlow nearly all, vLLM what \
                  gpu_memory_utilization says (90 %). None of it comes back before the process ends. \
                  XLA_PYTHON_CLIENT_PREALLOCATE=false, TF_FORCE_GPU_ALLOW_GROWTH=true and a smaller \
                  gpu_memory_utilization change that.",
    look,
};

/// Returns a finding for each process that took a fixed share of the device at its start.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine).filter(|(_, account)| account.total_bytes > 0) {
        for row in &account.processes {
            let (Some(bytes), Some(process)) = (row.bytes, machine.process(row.pid)) else {
                continue;
            };
            let share = bytes as f64 / account.total_bytes as f64;
            let is_set = |name: &str, value: &str| {
                process.environment.get(name).is_some_and(|text| text.eq_ignore_ascii_case(value))
            };
            let (who, setting) = if process.has_loaded("xla_extension")
                && (0.72..0.78).contains(&share)
                && !is_set("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            {
                ("JAX", "XLA_PYTHON_CLIENT_PREALLOCATE=false")
            } else if process.has_loaded("libtensorflow")
                && share > 0.9
                && !is_set("TF_FORCE_GPU_ALLOW_GROWTH", "true")
            {
                ("TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH=true")
            } else if share > 0.8 && (process.runs("vllm") || process.runs("VLLM")) {
                ("vLLM", "--gpu-memory-utilization 0.5")
            } else {
                continue;
            };
            found.push(RULE.found(
                format!("{}: pid {} has {:.0} % of it", evidence::name(gpu), row.pid, share * 100.0),
                format!("{who} takes a share of the device when it begins, and keeps it; start it with {setting}."),
                format!("ps -fp {}", row.pid),
            ));
        }
    }
    found
}
