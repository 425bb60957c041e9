//! G05: exhausted BAR1 window.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G05",
    severity: Severity::Warning,
    title: "exhausted BAR1 window",
    explanation: "Other devices and the processor reach the memory of a GPU through a window, BAR1. \
                  Mappings for GPUDirect, peers and RDMA take room in it. If the window is full, a mapping \
                  fails although memory of the device is free. Resizable BAR makes the window as large as \
                  the memory.",
    look,
};

/// Returns a finding for each device whose BAR1 window is nearly full.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .devices()
        .iter()
        .filter_map(|gpu| Some((gpu, gpu.bar1_used?, gpu.bar1_total.filter(|&total| total > 0)?)))
        .filter(|(_, used, total)| *used > total / 10 * 9)
        .map(|(gpu, used, total)| {
            RULE.found(
                format!(
                    "{}: {} of the {} of BAR1 are in use",
                    evidence::name(gpu),
                    mib(used),
                    mib(total)
                ),
                "Mappings for peers and RDMA fail once it is full, with device memory left.",
                format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
            )
        })
        .collect()
}
