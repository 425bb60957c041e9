//! A trace that is ready to be replayed on a device.

use std::time::Duration;

use gpuheap::Size;
use gpuheap_trace::Trace;

use super::device::Machine;
use super::{DeviceUsed, Options};
use crate::budget::Budget;
use crate::models::torch::Settings;
use crate::recorded::Recorded;
use crate::text::Amount;
use crate::{PeakRange, Program};

/// Trace that is prepared for replays through any pool.
pub(crate) struct Bench<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) program: Program,
    /// Peak of requested live bytes, including requests that failed in the recording.
    pub(crate) peak_live: u64,
    pub(crate) device: DeviceUsed,
    pub(super) machine: Machine,
    /// The hard limit.
    pub(super) limit: Option<Size>,
    /// Freed bytes that the pool of a `driver` heap keeps.
    pub(super) release_threshold: Option<Size>,
}

impl<'t> Bench<'t> {
    pub(crate) fn new(
        trace: &'t Trace,
        program: Program,
        recorded: &Recorded,
        options: &Options,
    ) -> Self {
        let limit = options.limit_for(recorded);
        let device = options.device.resolve(recorded, limit.is_some());
        let machine = options.device.machine(&device, options.delay);
        Self {
            trace,
            peak_live: program.peak_live(),
            program,
            device,
            machine,
            limit,
            release_threshold: options.release_threshold,
        }
    }

    /// Returns the memory that an allocator's model may take from the device of the replay.
    pub(crate) fn memory(&self) -> Memory {
        let DeviceUsed { total, usable, .. } = self.device;
        Memory { total, usable, limit: self.limit.map(|limit| limit.to_bytes(total)) }
    }

    /// Returns the bounds of a search for settings on the device. Each verdict makes such searches
    /// for its remedies, so the bounds are small.
    pub(crate) fn budget(&self) -> Budget {
        /// Largest number of steps of the search. Such a search takes one or two seconds on two
        /// cores (2026).
        const STEPS: usize = 12_000_000;
        let memory = self.memory();
        Budget {
            device_memory: memory.total,
            vmm: self.device.has_vmm,
            steps: STEPS,
            // The number of settings must not depend on how busy the machine is.
            time: Duration::MAX,
            ..Budget::new(memory.capacity())
        }
    }

    /// Returns the time of the event with this number, nanoseconds since the first recorded event.
    pub(super) fn time_of(&self, number: u32) -> u64 {
        let events = self.trace.events();
        let at = events.partition_point(|event| event.number < number);
        events.get(at).map_or(0, |event| event.time_ns)
    }

    /// Returns the peak that PyTorch's allocator reserves on the device. The result is a range if
    /// the peak depends on the program's speed.
    pub(crate) fn torch_peak(&self, settings: &Settings) -> PeakRange {
        let memory = self.memory();
        let has_fraction = settings.memory_fraction().is_some();
        let device = if has_fraction { memory.total } else { memory.capacity() };
        let PeakRange { low, high } = self.program.torch_peak(settings, device);
        // Reserved memory is never more than the capacity, so the range ends there.
        PeakRange { low: low.min(memory.capacity()), high: high.min(memory.capacity()) }
    }
}

/// Memory that a model may take, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// All memory of the device. PyTorch's memory fraction is relative to this figure.
    pub(crate) total: u64,
    /// Memory that a program can use.
    pub(crate) usable: u64,
    /// Hard limit.
    pub(crate) limit: Option<u64>,
}

impl Memory {
    pub(crate) fn whole(bytes: u64) -> Self {
        Self { total: bytes, usable: bytes, limit: None }
    }

    /// Returns the text that says why a program ran out of this memory.
    pub(super) fn shortage(self) -> String {
        match self.limit {
            Some(limit) => format!("the limit of {} is too low", Amount(limit)),
            None => format!("{} are not enough", Amount(self.total)),
        }
    }

    pub(crate) fn capacity(self) -> u64 {
        self.usable.min(self.limit.unwrap_or(u64::MAX))
    }
}
