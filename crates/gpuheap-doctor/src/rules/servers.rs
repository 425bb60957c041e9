//! Rules about servers, daemons and frameworks that hold memory or devices by design.

use gpuheap_text::mib;

use crate::evidence::{self, accounts};
use crate::machine::{Machine, Process};
use crate::rule::Check::{Machines, Processes};
use crate::rule::{Finding, Rule, Severity};

pub(super) const G10: Rule = Rule::new(
    "G10",
    Severity::Info,
    "persistence mode, which holds no memory",
    Machines(persistence_daemons),
);

/// Returns a finding if the persistence daemon has devices open.
fn persistence_daemons(machine: &Machine) -> Vec<Finding> {
    let is_daemon = |process: &&Process| {
        process.comm.starts_with("nvidia-persist") && !process.holds.is_empty()
    };
    let finding = |process: &Process| {
        let Process { pid, comm, holds, .. } = process;
        G10.finding(
            format!("pid {pid} ({comm}) has {} device files open", holds.len()),
            "It keeps the driver initialised and holds no memory of programs.",
            "nvidia-smi -q | grep Persistence",
        )
    };
    machine.processes.iter().filter(is_daemon).map(finding).collect()
}

pub(super) const P09: Rule =
    Rule::new("P09", Severity::Info, "memory taken ahead by design", Machines(preallocations));

/// Returns a finding for each process that took a fixed share of the device at its start.
fn preallocations(machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for (gpu, account) in accounts(machine).filter(|(_, account)| account.total_bytes > 0) {
        for row in &account.processes {
            let (Some(bytes), Some(process)) = (row.bytes, machine.process(row.pid)) else {
                continue;
            };
            let share = bytes as f64 / account.total_bytes as f64;
            let Some((framework, setting)) = preallocation(process, share) else { continue };
            found.push(P09.finding(
                format!("{gpu}: pid {} has {:.0} % of it", row.pid, share * 100.0),
                format!(
                    "{framework} takes a share of the device when it begins, and keeps it; start \
                     it with {setting}."
                ),
                format!("ps -fp {}", row.pid),
            ));
        }
    }
    found
}

/// Returns the framework that took this share of a device in advance, and the setting that prevents
/// this.
fn preallocation(process: &Process, share: f64) -> Option<(&'static str, &'static str)> {
    let is_set = |name: &str, value: &str| {
        process.environment.get(name).is_some_and(|text| text.eq_ignore_ascii_case(value))
    };
    if process.has_loaded("xla_extension")
        && (0.72..0.78).contains(&share)
        && !is_set("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    {
        Some(("JAX", "XLA_PYTHON_CLIENT_PREALLOCATE=false"))
    } else if process.has_loaded("libtensorflow")
        && share > 0.9
        && !is_set("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    {
        Some(("TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH=true"))
    } else {
        let is_vllm = share > 0.8 && (process.runs("vllm") || process.runs("VLLM"));
        is_vllm.then_some(("vLLM", "--gpu-memory-utilization 0.5"))
    }
}

pub(super) const P10: Rule = Rule::new(
    "P10",
    Severity::Info,
    "server that keeps its model loaded",
    Processes(model_servers),
);

/// Returns a finding for each server that keeps a model in memory between requests.
fn model_servers(machine: &Machine, process: &Process) -> Option<Finding> {
    const SERVERS: [&str; 4] = ["ollama", "llama-server", "ComfyUI", "koboldcpp"];
    let name = SERVERS.iter().find(|name| process.runs(name))?;
    let bytes = evidence::listed_bytes(machine, process.pid)?;
    let command = match *name {
        "ollama" => "ollama ps".to_owned(),
        _ => format!("kill {}", process.pid),
    };
    let fact = format!("pid {} ({name}) has {}", process.pid, mib(bytes));
    Some(P10.finding(fact, "It keeps its model loaded between requests.", command))
}

pub(super) const P12: Rule =
    Rule::new("P12", Severity::Warning, "Multi-Process Service", Machines(mps_servers));

/// Returns a finding for each server of the Multi-Process Service.
fn mps_servers(machine: &Machine) -> Vec<Finding> {
    machine
        .processes
        .iter()
        .filter(|process| process.comm.starts_with("nvidia-cuda-mps") && process.runs("mps-server"))
        .map(|process| {
            let size = evidence::listed_bytes(machine, process.pid)
                .map_or_else(String::new, |bytes| format!(", with {}", mib(bytes)));
            P12.finding(
                format!("pid {} is a server of MPS{size}", process.pid),
                "Programs compute through it; after a fault it may keep their memory.",
                "echo quit | nvidia-cuda-mps-control",
            )
        })
        .collect()
}

pub(super) const P18: Rule =
    Rule::new("P18", Severity::Info, "monitor, which uses no memory", Processes(monitors));

/// Returns a finding for each process that only watches devices.
fn monitors(machine: &Machine, process: &Process) -> Option<Finding> {
    (process.only_watches() && !machine.is_listed(process.pid)).then(|| {
        P18.finding(
            format!("{process} watches devices"),
            "It has device files open and uses no memory of a device.",
            format!("ps -fp {}", process.pid),
        )
    })
}
