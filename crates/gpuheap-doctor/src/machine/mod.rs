//! A machine's facts, read once through a source.

mod host;
mod nvml;
mod probe;
mod proc;
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use self::host::Host;
pub use self::nvml::{Gpu, Kind, Listed, Nvml, NvmlFailure};
pub use self::process::Process;
use crate::source::{Skipped, Source, Why};

/// A machine's facts.
#[derive(Debug, Clone)]
pub struct Machine {
    /// NVML's answers.
    ///
    /// # Errors
    ///
    /// NVML cannot be loaded or does not answer in time.
    pub nvml: Result<Nvml, Skipped>,
    /// The host.
    pub host: Host,
    /// Processes that NVML lists, that hold a device, or that descend from such a one, by pid.
    pub processes: Vec<Process>,
    /// All visible pids, each with its session.
    pub visible: BTreeMap<u32, u32>,
    /// Visible processes whose descriptors could not be read; `None` if none was looked at.
    pub unreadable: Option<usize>,
    /// What could not be looked at, with the reason.
    pub skipped: Vec<(&'static str, Skipped)>,
    source: Arc<dyn Source>,
}

impl std::fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

impl Machine {
    /// Reads the facts that [`status`](crate::status) needs. Blocks for 15 seconds at most, in
    /// practice for some 50 ms.
    pub fn read(source: impl Source) -> Machine {
        Machine::from_source(Arc::new(source))
    }

    fn from_source(source: Arc<dyn Source>) -> Machine {
        let mut skipped = Vec::new();
        let nvml = limited_nvml(&source);
        if let Err(reason) = &nvml {
            skipped.push(("nvml", reason.clone()));
        }
        let host = probe::limited(&source, Duration::from_secs(2), Host::read);
        let host = host.unwrap_or_else(|reason| {
            skipped.push(("host", reason));
            Host::default()
        });
        let listed: Vec<u32> = nvml
            .iter()
            .flat_map(|nvml| &nvml.devices)
            .flat_map(|gpu| &gpu.processes)
            .map(|listed| listed.pid)
            .collect();
        let uptime = host.uptime_seconds;
        let scan_source = source.clone();
        let scan = probe::limited(&source, Duration::from_secs(5), move |_| {
            process::scan(&scan_source, &listed, uptime)
        });
        let scan = scan.unwrap_or_else(|reason| {
            skipped.push(("processes", reason));
            process::Scan { processes: Vec::new(), visible: BTreeMap::new(), unreadable: None }
        });
        Machine {
            nvml,
            host,
            processes: scan.processes,
            visible: scan.visible,
            unreadable: scan.unreadable,
            skipped,
            source,
        }
    }

    /// Takes further samples of processes that may be stuck or idle: sets [`Process::is_stuck`] and
    /// [`Process::busy_lately`]. Blocks for 2 seconds if there are such processes.
    pub fn watch(&mut self) {
        process::sample(&*self.source, &mut self.processes);
    }

    /// Returns the devices, none if NVML does not answer.
    pub fn devices(&self) -> &[Gpu] {
        self.nvml.as_ref().map_or(&[], |nvml| &nvml.devices)
    }

    /// Returns a process that NVML lists or that holds a device.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes
            .binary_search_by_key(&pid, |process| process.pid)
            .ok()
            .map(|at| &self.processes[at])
    }

    /// Returns `true` if there is neither an NVIDIA device nor NVML.
    pub fn has_no_gpu(&self) -> bool {
        match &self.nvml {
            Ok(nvml) => nvml.failure.is_none() && nvml.devices.is_empty(),
            Err(skipped) => skipped.why == Why::Missing && self.host.has_no_device,
        }
    }
}

fn limited_nvml(source: &Arc<dyn Source>) -> Result<Nvml, Skipped> {
    let asked = probe::limited(source, Duration::from_secs(8), |source| source.nvml());
    asked.unwrap_or_else(|reason| Err(Skipped::new(reason.why, format!("NVML: {reason}"))))
}
