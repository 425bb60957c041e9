//! Search for the settings of one trace.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpuheap_trace::{Format, Trace};

use super::{Budget, Candidate, Family, search};
use crate::Program;
use crate::recorded::Recorded;
use crate::replay::{DeviceChoice, DeviceUsed, Progress};

/// Result of the search for one trace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TraceSearch {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: Format,
    /// Index of the recorded device, as the recorded program counts devices.
    pub recorded_on: Option<u32>,
    /// Framework whose settings were searched.
    pub family: Family,
    /// The device of the search.
    pub device: DeviceUsed,
    /// Facts that the recording contains about the recorded allocator.
    pub recorded: Recorded,
    /// `true` if a request failed, and the device's memory is not known, because the user chose no
    /// device and the recording names no device.
    pub lacks_device: bool,
    /// Number of settings that were tried.
    pub tried: u64,
    /// Pareto-optimal settings. If all fail, contains the setting that serves the program longest.
    pub candidates: Vec<Candidate>,
}

impl TraceSearch {
    /// Searches for the best settings of a framework's allocator for the program of a trace. If
    /// `family` is `None`, uses the framework of the recorded program. Blocks for 20 seconds at
    /// most, plus the time of one run.
    pub fn run(
        trace: &Trace,
        family: Option<Family>,
        device: &DeviceChoice,
        progress: &dyn Progress,
    ) -> Self {
        let program = Program::from_trace(trace);
        let recorded = Recorded::from_trace(trace, &program);
        let used = device.resolve(&recorded, false);
        let family = family.unwrap_or(match recorded.allocator {
            Some("torch") => Family::Torch,
            Some("cupy") => Family::CuPy,
            _ => Family::Rmm,
        });
        let device_memory = used.total;
        let budget = Budget { device_memory, vmm: used.has_vmm, ..Budget::new(used.usable) };
        progress.now(&format!("searching settings of {}", family.title()));
        let tried = AtomicUsize::new(0);
        let candidates = search(&program, family, &budget, |_, all| {
            if tried.fetch_add(1, Ordering::Relaxed) == 0 {
                progress.expect(all as u64);
            }
            progress.advance(1);
        });
        Self {
            name: trace.name().to_owned(),
            format: trace.format(),
            recorded_on: trace.device(),
            family,
            device: used,
            lacks_device: !recorded.failed.is_empty()
                && !device.is_given()
                && recorded.limit.is_none()
                && recorded.device.is_none(),
            recorded,
            tried: tried.into_inner() as u64,
            candidates,
        }
    }

    /// Returns `true` if the device is known, and the program fits on that device under at least
    /// one of the settings.
    pub fn gets_through(&self) -> bool {
        !self.lacks_device && self.candidates.iter().any(|candidate| !candidate.fails)
    }
}
