//! G15: device memory that a sleep of the machine threw away.

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::age;

pub(super) const RULE: Rule = Rule {
    id: "G15",
    severity: Severity::Info,
    title: "device memory lost in the machine's sleep",
    explanation: "With NVreg_PreserveVideoMemoryAllocations=0 the driver does not save device memory \
                  while the machine sleeps. Programs that ran before it find their contexts broken, and \
                  new ones may fail with error 999 until nvidia_uvm is loaded anew. With 1, and the \
                  services nvidia-suspend and nvidia-resume, the memory is saved.",
    look,
};

/// Returns a finding if the machine slept since its start, and the driver does not save memory.
fn look(machine: &Machine) -> Vec<Finding> {
    if !machine.host.loses_memory_asleep {
        return Vec::new();
    }
    evidence::logged(machine, "PM: suspend exit")
        .map(|(_, ago)| {
            RULE.found(
                format!("the machine slept until {} ago; device memory was not saved", age(ago)),
                "Programs started before have lost theirs; calls can fail with error 999.",
                "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
            )
        })
        .into_iter()
        .collect()
}
