//! P11: many contexts.

use crate::evidence::{self, accounts};
use crate::machine::{Kind, Machine};
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "P11",
    severity: Severity::Warning,
    title: "many contexts",
    explanation: "Each process that touches a device pays for a context of some 200 to 700 MiB, even if it \
                  computes elsewhere. Workers that forget to choose a device all open device 0.",
    look,
};

/// Returns the findings on processes that hold little more than a context, and on processes with
/// several contexts.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut findings = small_processes(machine);
    findings.extend(several_in_one(machine));
    findings
}

/// Returns a finding for each process with more than one context on a device.
fn several_in_one(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (gpu, account) in accounts(machine) {
        for row in &account.processes {
            let Some(process) = machine.process(row.pid) else { continue };
            let contexts = process.contexts_on(gpu.minor);
            if contexts < 2 || evidence::is_mps(process) {
                continue;
            }
            let fact = format!(
                "pid {} ({}) has {contexts} contexts on {}, with {}",
                row.pid,
                process.command(30),
                evidence::name(gpu),
                mib(row.bytes.unwrap_or(0))
            );
            let cause = "Each context costs some 500 MiB; libraries share the primary one, cuCtxCreate makes another.";
            let mut finding =
                RULE.found(fact, cause, format!("gpuheap status --device {}", gpu.index));
            finding.severity = Severity::Info;
            findings.push(finding.with_pids([row.pid]));
        }
    }
    findings
}

/// Returns a finding for each device on which several processes hold little more than a context.
fn small_processes(machine: &Machine) -> Vec<Finding> {
    accounts(machine)
        .filter_map(|(gpu, account)| {
            let mut small: Vec<u64> = account
                .processes
                .iter()
                .filter(|row| row.kind != Kind::Graphics)
                .filter_map(|row| row.bytes.filter(|bytes| (200 << 20..=700 << 20).contains(bytes)))
                .collect();
            small.sort_unstable();
            let least = *small.first()?;
            small.retain(|&bytes| bytes <= least + least / 10);
            if small.len() < 3 {
                return None;
            }
            let sum = small.iter().sum();
            let fact = format!("{}: {} processes hold {} each, {} together", evidence::name(gpu), small.len(), mib(least), mib(sum));
            let cause = "Each is hardly more than a context; choose a device for each worker by CUDA_VISIBLE_DEVICES.";
            Some(RULE.found(fact, cause, format!("nvidia-smi pmon -c 1 -i {}", gpu.index)))
        })
        .collect()
}
