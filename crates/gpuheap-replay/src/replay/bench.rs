//! A trace that is ready to be replayed on a device.

use std::time::Duration;

use gpuheap_trace::Trace;

use super::device::Machine;
use super::heaps::{Bounds, Steps};
use super::{DeviceUsed, Options, ReplayError};
use crate::budget::Budget;
use crate::models::torch::Settings;
use crate::recorded::Recorded;
use crate::{PeakRange, Program};

/// Trace, made ready for all pools.
pub(crate) struct Bench<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) program: Program,
    pub(super) steps: Steps,
    pub(crate) device: DeviceUsed,
    pub(super) machine: Machine,
    pub(super) bounds: Bounds,
}

impl<'t> Bench<'t> {
    pub(crate) fn new(
        trace: &'t Trace,
        recorded: &Recorded,
        options: &Options,
    ) -> Result<Self, ReplayError> {
        let device = options.device.resolve(recorded, options.limit.is_some());
        let machine = options.device.machine(&device, options.delay);
        let bounds = Bounds { limit: options.limit, threshold: options.release_threshold };
        let program = Program::of(trace);
        Ok(Self { trace, program, steps: Steps::of(trace), device, machine, bounds })
    }

    /// Returns the memory that a model may take of the device.
    pub(crate) fn memory(&self) -> Memory {
        let DeviceUsed { total, usable, .. } = self.device;
        Memory { total, usable, limit: self.bounds.limit.map(|limit| limit.to_bytes(total)) }
    }

    /// Returns the bounds of a search for settings on the device. They suit a search in every
    /// verdict.
    pub(crate) fn budget(&self) -> Budget {
        /// Steps of the search. They take one or two seconds on two cores (2026).
        const STEPS: usize = 12_000_000;
        let memory = self.memory();
        let mut budget = Budget::new(memory.capacity());
        budget.device_memory = memory.total;
        budget.vmm = self.device.has_vmm;
        budget.steps = STEPS;
        // The number of settings must not depend on how busy the machine is.
        budget.time = Duration::MAX;
        budget
    }

    pub(crate) fn peak_live(&self) -> u64 {
        self.steps.peak_live()
    }

    /// Returns the peak that PyTorch's allocator reserves on the device. It is a range if the speed
    /// of the program decides.
    pub(crate) fn torch_peak(&self, settings: &Settings) -> PeakRange {
        let memory = self.memory();
        let has_fraction = settings.memory_fraction().is_some();
        let device = if has_fraction { memory.total } else { memory.capacity() };
        let PeakRange { low, high } = self.program.torch_peak(settings, device);
        // Reserved memory is part of the device's, so the range ends at the capacity.
        PeakRange { low: low.min(memory.capacity()), high: high.min(memory.capacity()) }
    }
}

/// Memory that a model may take, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// All memory of the device. PyTorch's memory fraction is a part of this.
    pub(crate) total: u64,
    /// Memory that a program can use.
    pub(crate) usable: u64,
    /// Hard limit.
    pub(crate) limit: Option<u64>,
}

impl Memory {
    pub(crate) fn of(bytes: u64) -> Self {
        Self { total: bytes, usable: bytes, limit: None }
    }

    pub(crate) fn capacity(self) -> u64 {
        self.usable.min(self.limit.unwrap_or(u64::MAX))
    }
}
