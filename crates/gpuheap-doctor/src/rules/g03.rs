//! G03: monitoring tools that differ by a constant in what they call used.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G03",
    severity: Severity::Info,
    title: "monitors that differ by a constant",
    explanation: "NVML has two calls for a device's memory. The older one counts what driver and firmware \
                  reserve as in use, the newer one keeps it apart. Monitors that use the older call show \
                  more memory in use, by the same amount at all times. gpuheap uses the newer call.",
    look,
};

/// Returns a finding for each device with memory that the driver reserves.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .devices()
        .iter()
        .filter_map(|gpu| Some((gpu, gpu.reserved.filter(|&bytes| bytes > 0)?)))
        .map(|(gpu, bytes)| {
            RULE.found(
                format!("{}: {} reserved by the driver", evidence::name(gpu), mib(bytes)),
                "Monitors that use NVML's older call count this as used.",
                format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
            )
        })
        .collect()
}
