//! G16: CUDA that fails although the driver answers.

use crate::machine::{CudaProbe, Machine, Outcome};
use crate::rule::{Finding, Rule, Severity};
use crate::words::{cut, mib};

pub(super) const RULE: Rule = Rule {
    id: "G16",
    severity: Severity::Fail,
    title: "CUDA that fails although the driver answers",
    explanation: "gpuheap doctor --probe-cuda takes a little of each kind of memory in a process of its own, and gives \
                  it back. No context: programs cannot use the device; look at the container's options, at \
                  CUDA_VISIBLE_DEVICES and at the device's compute mode. No answer in 30 s: the driver blocks, \
                  often after a fault. Pinned memory that is refused early: a limit of WSL2 or of the host.",
    look,
};

/// Returns a finding for each probe that failed.
fn look(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    for probe in &machine.cuda {
        match probe.outcome {
            Outcome::Failed if probe.probe == PINNED => findings.push(pinned(probe)),
            Outcome::Failed => findings.push(failed(probe)),
            _ => {}
        }
    }
    findings
}

const PINNED: &str = "pinned memory";

fn failed(probe: &CudaProbe) -> Finding {
    let cause = match probe.probe.as_str() {
        "driver" => "No program can use CUDA here.",
        "context" => "No program can use this device now.",
        _ => {
            let cause = "Programs that use this kind of memory fail; the driver's log may say why.";
            let mut finding = RULE.found(fact(probe), cause, "sudo dmesg | grep NVRM");
            finding.severity = Severity::Warning;
            return finding;
        }
    };
    let command = match probe.gpu {
        Some(gpu) => format!("nvidia-smi -q -i {gpu}"),
        None => "nvidia-smi -q".to_owned(),
    };
    RULE.found(fact(probe), cause, command)
}

fn pinned(probe: &CudaProbe) -> Finding {
    let bytes = probe.bytes.unwrap_or(0);
    let cause = "Buffers for copies fail; use pin_memory=False, fewer workers or smaller buffers.";
    let command = "grep -E 'MemAvailable|Unevictable' /proc/meminfo";
    let mut finding = RULE.found(fact(probe), cause, command).with_bytes(bytes);
    finding.severity = Severity::Warning;
    finding
}

fn fact(probe: &CudaProbe) -> String {
    let name = probe.name();
    match probe.bytes {
        Some(bytes) => format!("{name}: refused after {}: {}", mib(bytes), cut(&probe.text, 90)),
        None => format!("{name}: {}", cut(probe.text.trim_end_matches('.'), 110)),
    }
}
