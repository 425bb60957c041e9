//! G11: page cache in a device's memory.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::mib;

pub(super) const RULE: Rule = Rule {
    id: "G11",
    severity: Severity::Warning,
    title: "page cache in a device's memory",
    explanation: "On Grace systems the device's memory is a NUMA node of the host. The kernel may put its \
                  page cache there, where it counts as used after the process has ended.",
    look,
};

/// Returns a finding for each device whose memory is a NUMA node with files in it.
fn look(machine: &Machine) -> Vec<Finding> {
    machine
        .devices()
        .iter()
        .filter_map(|gpu| Some((gpu, gpu.numa_node?)))
        .filter_map(|(gpu, node)| Some((gpu, node, *machine.device_nodes.get(&node)?)))
        .filter(|&(_, _, bytes)| bytes > 256 << 20)
        .map(|(gpu, node, bytes)| {
            RULE.found(
                format!(
                    "{}: {} of page cache on its NUMA node {node}",
                    evidence::name(gpu),
                    mib(bytes)
                ),
                "The kernel keeps files in the device's memory.",
                "echo 1 | sudo tee /proc/sys/vm/drop_caches",
            )
            .with_bytes(bytes)
        })
        .collect()
}
