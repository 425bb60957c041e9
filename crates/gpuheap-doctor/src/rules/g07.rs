//! G07: driver that does not answer.

use crate::evidence;
use crate::machine::{Machine, NvmlFailure};
use crate::rule::{Finding, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    id: "G07",
    severity: Severity::Fail,
    title: "driver that does not answer",
    explanation: "NVML fails with a number. 9: the kernel module is not loaded. 15: the device fell off \
                  the bus. 16: the device wants a reset. 18: the library is of another version than the \
                  module, as after an upgrade without a reboot. 999: the driver does not know either; the \
                  kernel's log may.",
    look,
};

/// Returns a finding if the driver answers nothing, or nothing about a device.
fn look(machine: &Machine) -> Vec<Finding> {
    if machine.host.is_wsl {
        return Vec::new();
    }
    let say = |what: &str, failure: &NvmlFailure| {
        let (cause, command) = match failure.code {
            9 => ("The kernel module is not loaded.", "sudo modprobe nvidia"),
            15 => ("The device fell off the bus.", "sudo reboot"),
            16 => ("The device wants a reset.", "sudo nvidia-smi -r"),
            18 => (
                "The driver was upgraded and its kernel module is still the old one.",
                "sudo reboot",
            ),
            4 => ("This user may not open the device.", "ls -l /dev/nvidia*"),
            _ => ("The driver's reason is in the kernel's log.", "sudo dmesg | grep NVRM"),
        };
        RULE.found(
            format!("{what}: {} (NVML error {})", failure.text, failure.code),
            cause,
            command,
        )
    };
    let library =
        machine.nvml.iter().filter_map(|nvml| Some(say("the driver", nvml.failure.as_ref()?)));
    let devices = machine
        .devices()
        .iter()
        .filter_map(|gpu| Some(say(&evidence::name(gpu), gpu.failure.as_ref()?)));
    let unloadable = machine.nvml.as_ref().err().filter(|_| !machine.host.has_no_device);
    let unloadable = unloadable.map(|skipped| {
        let fact = format!("a GPU is there, and the driver's library is not: {skipped}");
        let cause = "The package of the library, libnvidia-compute, is missing or broken.";
        RULE.found(fact, cause, "ldconfig -p | grep libnvidia-ml")
    });
    library.chain(devices).chain(unloadable).collect()
}
