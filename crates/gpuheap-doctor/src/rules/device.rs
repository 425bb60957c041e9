//! Rules about states of a device, and about a driver that fails.

use gpuheap_text::{count, cut, mib};

use super::logs::xid;
use crate::evidence;
use crate::facts::{CudaProbe, Outcome};
use crate::machine::{Gpu, Machine, NvmlFailure, Process};
use crate::rule::Check::{Accounts, Devices, Machines};
use crate::rule::{Finding, Rule, Severity};
use crate::status::Account;

pub(super) const G04: Rule = Rule::new(
    "G04",
    Severity::Info,
    "error correction that takes memory",
    Devices(error_correction),
);

/// Returns a finding if error correction takes some of the device's memory.
fn error_correction(_: &Machine, gpu: &Gpu) -> Option<Finding> {
    const GDDR: [&str; 8] = ["T4", "L4", "A10", "A40", "A16", "A2", "RTX", "Quadro"];
    let mut words = gpu.name.split([' ', '-']);
    let is_gddr = words.any(|word| GDDR.iter().any(|card| word.starts_with(card)))
        && !gpu.name.contains("A100");
    (gpu.ecc == Some(true) && is_gddr).then(|| {
        G04.finding(
            format!("{gpu}: {} in all, with error correction on", mib(gpu.total)),
            "Error correction takes some 6 % of a card with GDDR memory.",
            format!("sudo nvidia-smi -i {} -e 0", gpu.index),
        )
    })
}

pub(super) const G05: Rule =
    Rule::new("G05", Severity::Warning, "exhausted BAR1 window", Devices(full_windows));

/// Returns a finding if the device's BAR1 window is nearly full.
fn full_windows(_: &Machine, gpu: &Gpu) -> Option<Finding> {
    let (used, total) = (gpu.bar1_used?, gpu.bar1_total.filter(|&total| total > 0)?);
    (used > total / 10 * 9).then(|| {
        G05.finding(
            format!("{gpu}: {} of the {} of BAR1 are in use", mib(used), mib(total)),
            "Mappings for peers and RDMA fail once it is full, with device memory left.",
            format!("nvidia-smi -q -d MEMORY -i {}", gpu.index),
        )
    })
}

pub(super) const G07: Rule =
    Rule::new("G07", Severity::Fail, "driver that does not answer", Machines(failures_of_nvml));

/// Returns a finding if NVML gives no answer, or gives no answer about a device.
fn failures_of_nvml(machine: &Machine) -> Vec<Finding> {
    if machine.host.is_wsl {
        return Vec::new();
    }
    let finding = |subject: &str, failure: &NvmlFailure| {
        let (cause, command) = match failure.code {
            9 => ("The kernel module is not loaded.", "sudo modprobe nvidia"),
            15 => ("The device fell off the bus.", "sudo reboot"),
            16 => ("The device needs a reset.", "sudo nvidia-smi -r"),
            18 => (
                "The driver was upgraded and its kernel module is still the old one.",
                "sudo reboot",
            ),
            4 => ("This user may not open the device.", "ls -l /dev/nvidia*"),
            _ => ("The driver's reason is in the kernel's log.", "sudo dmesg | grep NVRM"),
        };
        let fact = format!("{subject}: {} (NVML error {})", failure.text, failure.code);
        G07.finding(fact, cause, command)
    };
    let mut found = Vec::new();
    match &machine.nvml {
        Ok(nvml) => found.extend(nvml.failure.iter().map(|failure| finding("the driver", failure))),
        Err(skipped) if !machine.host.has_no_device => {
            let fact = format!("a GPU is there, and the driver's library is not: {skipped}");
            let cause = "The package of the library, libnvidia-compute, is missing or broken.";
            found.push(G07.finding(fact, cause, "ldconfig -p | grep libnvidia-ml"));
        }
        Err(_) => {}
    }
    let failed = machine.devices().iter().filter_map(|gpu| Some((gpu, gpu.failure.as_ref()?)));
    found.extend(failed.map(|(gpu, failure)| finding(&gpu.to_string(), failure)));
    found
}

pub(super) const G08: Rule = Rule::new(
    "G08",
    Severity::Warning,
    "reset that holders would prevent",
    Devices(refused_resets),
);

/// Returns a finding if the device needs a reset, but processes have a device open.
fn refused_resets(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let mut logged = machine.log.iter().filter_map(|message| xid(&message.text));
    let is_due = gpu.pages_pending == Some(true)
        || gpu.failure.as_ref().is_some_and(|failure| failure.code == 16)
        || logged.any(|(xid, device)| {
            matches!(xid, 79 | 95 | 119 | 120 | 143)
                && gpu.pci.to_lowercase().ends_with(&format!("{}.0", device.to_lowercase()))
        });
    let holders: Vec<&Process> =
        machine.processes.iter().filter(|process| !process.holds.is_empty()).collect();
    (is_due && !holders.is_empty()).then(|| {
        let number = count(holders.len() as u64, "process");
        let named = evidence::name_processes(&holders);
        G08.finding(
            format!("{gpu} needs a reset, and {number} may hold it"),
            format!("A reset is refused until these have ended: {named}."),
            "sudo systemctl stop nvidia-dcgm nvidia-persistenced",
        )
    })
}

pub(super) const G09: Rule = Rule::new(
    "G09",
    Severity::Info,
    "memory that is retired at the next reset",
    Devices(pending_pages),
);

/// Returns a finding if pages of the device's memory are to be retired.
fn pending_pages(_: &Machine, gpu: &Gpu) -> Option<Finding> {
    let retired = gpu.retired_pages.unwrap_or(0);
    (gpu.pages_pending == Some(true)).then(|| {
        G09.finding(
            format!("{gpu}: pages wait to be retired, {retired} are already"),
            "They had errors; a reset takes them out of use.",
            format!("sudo nvidia-smi -r -i {}", gpu.index),
        )
    })
}

pub(super) const G12: Rule =
    Rule::new("G12", Severity::Info, "device divided into instances", Devices(instances));

/// Returns a finding if the device is divided into instances.
fn instances(_: &Machine, gpu: &Gpu) -> Option<Finding> {
    (gpu.mig == Some(true)).then(|| {
        G12.finding(
            format!("{gpu}: {} in use, divided into instances (MIG)", mib(gpu.used)),
            "Processes are listed by instance, and other users' processes for root alone.",
            "sudo nvidia-smi",
        )
    })
}

pub(super) const G13: Rule = Rule::new("G13", Severity::Info, "virtual GPU", Devices(virtual_gpus));

/// Returns a finding if virtual machines share the device.
fn virtual_gpus(_: &Machine, gpu: &Gpu) -> Option<Finding> {
    gpu.virtualization.as_deref()?.to_lowercase().contains("vgpu").then(|| {
        G13.finding(
            format!("{gpu}: {} of a card that virtual machines share", mib(gpu.total)),
            "The profile of the virtual GPU sets its memory; the host has the other figures.",
            "nvidia-smi -q | grep -A3 Virtualization",
        )
    })
}

pub(super) const G14: Rule =
    Rule::new("G14", Severity::Warning, "confidential computing", Accounts(confidential_devices));

/// Returns a finding if the device is in confidential mode and its memory does not add up.
fn confidential_devices(_: &Machine, gpu: &Gpu, account: &Account) -> Option<Finding> {
    (gpu.confidential == Some(true) && account.unaccounted_bytes > 512 << 20).then(|| {
        let bytes = mib(account.unaccounted_bytes as u64);
        G14.finding(
            format!("{gpu}: {bytes} unaccounted, with confidential computing on"),
            "Confidential computing sets memory aside.",
            "nvidia-smi conf-compute -q",
        )
    })
}

pub(super) const G16: Rule = Rule::new(
    "G16",
    Severity::Fail,
    "CUDA that fails although the driver answers",
    Machines(failed_probes),
);

fn failed_probes(machine: &Machine) -> Vec<Finding> {
    let failed = machine.cuda.iter().filter(|probe| probe.outcome == Outcome::Failed);
    failed.map(failed_probe).collect()
}

fn failed_probe(probe: &CudaProbe) -> Finding {
    let (severity, cause, command) = match (probe.probe.as_str(), probe.gpu) {
        ("pinned memory", _) => (
            Severity::Warning,
            "Buffers for copies fail; use pin_memory=False, fewer workers or smaller buffers.",
            "grep -E 'MemAvailable|Unevictable' /proc/meminfo".to_owned(),
        ),
        ("driver", _) => {
            (Severity::Fail, "No program can use CUDA here.", "nvidia-smi -q".to_owned())
        }
        ("context", gpu) => {
            let option = gpu.map(|gpu| format!(" -i {gpu}")).unwrap_or_default();
            (
                Severity::Fail,
                "No program can use this device now.",
                format!("nvidia-smi -q{option}"),
            )
        }
        _ => (
            Severity::Warning,
            "Programs that use this kind of memory fail; the driver's log may have the reason.",
            "sudo dmesg | grep NVRM".to_owned(),
        ),
    };
    let name = probe.name();
    let fact = match probe.bytes {
        Some(bytes) => format!("{name}: refused after {}: {}", mib(bytes), cut(&probe.text, 90)),
        None => format!("{name}: {}", cut(probe.text.trim_end_matches('.'), 110)),
    };
    let finding = G16.finding(fact, cause, command).with_severity(severity);
    finding.with_bytes(probe.bytes.unwrap_or(0))
}
