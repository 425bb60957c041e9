//! Reads the reports that emulated libraries and the Python hook write in each process of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::verdict::{Failure, Held, KindBytes, ModuleBytes, Read, Refusal, SizeRead};

/// Reports of one process. A report is `None` if the process did not write it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) driver: Option<Driver>,
    pub(crate) cudart: Option<Cudart>,
    pub(crate) libraries: Option<Libraries>,
    pub(crate) torch: Option<Torch>,
    pub(crate) python: Option<Python>,
    /// PyTorch's memory snapshot.
    pub(crate) snapshot: Option<PathBuf>,
    /// Owners of memory at the peak of each device.
    pub(crate) owners: Vec<Owners>,
    /// Warning of the Python hook that a program line reads results very often. It has the number
    /// of reads and the line.
    pub(crate) many_reads: Option<String>,
}

/// Report of the emulated driver.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Driver {
    /// Time at which the system started the process, in its ticks since boot; 0 if unknown.
    pub(crate) began: u64,
    pub(crate) devices: Vec<DriverDevice>,
    pub(crate) asked_for_free_memory: u64,
    pub(crate) copies_to_host: u64,
    pub(crate) launches_dropped: u64,
    /// Number of allocations that were refused because device or host memory was too small.
    pub(crate) out_of_memory: u64,
    /// Refused requests for device memory, at most one for each place in the program.
    pub(crate) requests: Vec<Refusal>,
    pub(crate) refused: Vec<Refused>,
    /// Libraries whose statically linked CUDA runtime requested the driver's private tables.
    pub(crate) export_tables: Vec<String>,
    /// `true` if PyTorch's library for CUDA is loaded.
    pub(crate) has_pytorch: bool,
}

/// Memory figures of one device, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct DriverDevice {
    pub(crate) name: String,
    /// Index of the device in the machine; `None` in reports of older drivers.
    pub(crate) number: Option<u32>,
    pub(crate) total: u64,
    pub(crate) peak_in_use: u64,
    pub(crate) in_use_at_end: u64,
    pub(crate) largest_refused_bytes: u64,
    /// Peak of managed memory.
    pub(crate) peak_managed: u64,
    /// Peak of the sum of memory in use and managed memory.
    pub(crate) peak_demand: u64,
}

/// A function that the program called and that returned "not supported".
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Refused {
    pub(crate) function: String,
    pub(crate) times: u64,
}

/// Report of the emulated CUDA runtime.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Cudart {
    pub(crate) not_modelled: Vec<Refused>,
}

/// Report of the emulated libraries that are built on the CUDA runtime, such as cuBLAS.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Libraries {
    pub(crate) libraries: Vec<Library>,
    /// Largest workspace that cuDNN's benchmark mode timed, in bytes; 0 without benchmark mode.
    pub(crate) timed_workspace: u64,
}

/// Notes that one emulated library wrote.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Library {
    pub(crate) name: String,
    pub(crate) notes: Vec<String>,
}

/// Report of the Python hook about PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Torch {
    pub(crate) torch: String,
    /// Version of CUDA that this PyTorch was built for; `None` if it was built without CUDA.
    pub(crate) cuda: Option<String>,
    pub(crate) rank: Option<String>,
    /// Number of completed optimiser steps.
    pub(crate) steps: u64,
    /// Reason why the Python hook ended the program: `steps`, `time` or `hang`.
    pub(crate) ended: Option<String>,
    pub(crate) devices: Vec<TorchDevice>,
    /// The first requests that failed with `torch.OutOfMemoryError`.
    pub(crate) failures: Vec<Failure>,
    /// Number of requests that failed.
    pub(crate) failed: u64,
    /// `true` if an optimiser step completed after the last failure.
    pub(crate) went_on: bool,
    /// `true` if the hook sees each failed request of PyTorch's allocator.
    pub(crate) failures_watched: bool,
    /// Number of copies from a device to the host.
    pub(crate) reads: u64,
    pub(crate) reads_watched: bool,
    /// Program lines that made the most copies to the host.
    pub(crate) lines: Vec<Read>,
    /// Lines at which a value that was copied to the host decided the size of a tensor.
    pub(crate) sizes: Vec<SizeRead>,
    /// Remedies that the hook can switch on, keyed by name. A value is a detail for the report.
    pub(crate) remedies: BTreeMap<String, String>,
    /// Program line that seems to wait forever. For 10 s, it only copied to the host, without a
    /// step or a new peak. `None` if no line does.
    pub(crate) hang: Option<String>,
    pub(crate) notes: Vec<String>,
}

/// Report of the Python hook about the owners of memory at the peak of one device.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Owners {
    pub(crate) device: u32,
    pub(crate) kinds: Vec<KindBytes>,
    pub(crate) modules: Vec<ModuleBytes>,
    pub(crate) holders: Vec<Held>,
    /// Bytes of the parameters in the largest module that the model repeats.
    pub(crate) largest_block: u64,
}

/// Report of the Python hook about a program's modules.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Python {
    /// Modules that the program imported, but that do not run on the emulated driver.
    pub(crate) not_served: Vec<String>,
    /// `true` if the program's Python modules take memory only through the driver, as numba does,
    /// and not through the CUDA runtime.
    pub(crate) uses_driver: bool,
}

/// Peaks of PyTorch's allocator on one device. Memory is in bytes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct TorchDevice {
    pub(crate) device: u32,
    pub(crate) requested: u64,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) allocations: u64,
    /// Optimiser step that reached the peak, counted from one.
    pub(crate) step: u64,
}

/// Reads the reports of all processes, ordered by the time of their start, then by process id. If a
/// process ran several programs through `exec`, returns one entry for each program. Reports of all
/// but the last program are named `KIND.PID-N.ENDING`. Ignores files that cannot be parsed as a
/// report.
pub(crate) fn read(folder: &Path) -> Vec<Process> {
    let mut processes = BTreeMap::<(u32, u32), Process>::new();
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in files.map(|file| file.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let parts: Vec<&str> = name.split('.').collect();
        let [kind, pid, ending] = parts[..] else { continue };
        let (pid, program) = match pid.split_once('-') {
            Some((pid, program)) => (pid, program.parse().unwrap_or(0)),
            None => (pid, u32::MAX),
        };
        let Ok(pid) = pid.parse() else { continue };
        let new = || Process { pid, ..Process::default() };
        let process = processes.entry((pid, program)).or_insert_with(new);
        match (kind, ending) {
            ("driver", "json") => process.driver = parse(&path),
            ("cudart", "json") => process.cudart = parse(&path),
            ("libraries", "json") => process.libraries = parse(&path),
            ("python", "json") => process.python = parse(&path),
            ("torch", "json") => process.torch = parse(&path),
            ("torch", "pickle") => process.snapshot = Some(path),
            ("owners", "json") => process.owners = parse(&path).unwrap_or_default(),
            ("reads", "txt") => process.many_reads = fs::read_to_string(&path).ok(),
            _ => {}
        }
    }
    let mut processes: Vec<Process> = processes.into_values().collect();
    processes.sort_by_key(|process| process.driver.as_ref().map(|driver| driver.began));
    processes
}

/// Returns whether any process has completed an optimiser step.
pub(crate) fn has_steps(folder: &Path) -> bool {
    let mut torch = read(folder).into_iter().filter_map(|process| process.torch);
    torch.any(|torch| torch.steps > 0)
}

fn parse<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Rewrites [`Process::many_reads`] for the user: `10000 a.py:3 in wait` becomes `10,000 times at
/// a.py:3 in wait`.
pub(crate) fn describe_many_reads(text: &str) -> Option<String> {
    let (times, line) = text.trim().split_once(' ')?;
    let thousands = times.strip_suffix("000").map(|rest| format!("{rest},000"));
    Some(format!("{} times at {line}", thousands.as_deref().unwrap_or(times)))
}
