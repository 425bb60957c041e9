//! Reads the devices and processes of a machine, as the screen shows them at one moment.

use std::collections::BTreeMap;

use gpuheap_doctor::free::{self, Plan};
use gpuheap_doctor::status::{Account, accounts};
use gpuheap_doctor::{Finding, Machine, diagnose};

/// Devices and processes at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// The driver's version; empty if unknown.
    pub(crate) driver: String,
    /// Error that NVML returned for the devices, if any.
    pub(crate) failure: Option<String>,
    pub(crate) accounts: Vec<Account>,
    /// Maps the pid of each visible process that uses a device to its parent's pid.
    pub(crate) parents: BTreeMap<u32, u32>,
    /// Command lines of processes that NVML does not list, such as parents, keyed by pid.
    pub(crate) others: BTreeMap<u32, String>,
}

impl Snapshot {
    /// Returns the devices and processes of a machine.
    pub(crate) fn new(machine: &Machine) -> Snapshot {
        let accounts = accounts(machine);
        let (driver, failure) = match &machine.nvml {
            Ok(nvml) => {
                let failure = nvml.failure.as_ref();
                (nvml.driver.clone(), failure.map(|failure| failure.text.clone()))
            }
            Err(skipped) => (String::new(), Some(skipped.text.clone())),
        };
        let mut parents = BTreeMap::new();
        let mut others = BTreeMap::new();
        for process in &machine.processes {
            if machine.is_listed(process.pid) {
                parents.insert(process.pid, process.parent);
            } else {
                others.insert(process.pid, process.command(200));
            }
        }
        Snapshot { driver, failure, accounts, parents, others }
    }
}

/// Facts about a machine that the doctor examines. Reading them takes seconds.
#[derive(Debug, Clone)]
pub(crate) struct Examination {
    /// Findings, worst first.
    pub(crate) findings: Vec<Finding>,
    /// Steps that would give memory back.
    pub(crate) plan: Plan,
    /// GPU libraries that each process has loaded, by pid.
    pub(crate) libraries: BTreeMap<u32, String>,
}

/// Start of the file name of each library that uses device memory, and the library's name.
const LIBRARIES: [(&str, &str); 7] = [
    ("libtorch_cuda", "PyTorch"),
    ("libc10_cuda", "PyTorch"),
    ("cupy", "CuPy"),
    ("libcudf", "cuDF"),
    ("librmm", "RMM"),
    ("xla_extension", "JAX"),
    ("libtensorflow", "TensorFlow"),
];

impl Examination {
    /// Reads the facts that the doctor's rules need, and runs the rules. Takes seconds.
    pub(crate) fn new(machine: &mut Machine) -> Examination {
        machine.examine();
        let named = machine.processes.iter().map(|process| {
            let known = LIBRARIES.iter().filter(|(file, _)| process.has_loaded(file));
            let mut names: Vec<&str> = known.map(|(_, name)| *name).collect();
            names.dedup();
            (process.pid, names.join(", "))
        });
        Examination {
            findings: diagnose(machine).findings,
            plan: free::plan(machine),
            libraries: named.filter(|(_, names)| !names.is_empty()).collect(),
        }
    }
}
