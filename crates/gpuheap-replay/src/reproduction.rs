//! Comparison of the model of PyTorch's allocator with the segments that a snapshot recorded.

use crate::Program;
use crate::models::torch::Torch;
use crate::models::{DriverEvent, Model};

/// Comparison of the segments that PyTorch took and gave back with those of its model under the
/// recorded settings. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reproduction {
    /// Segments that PyTorch took or gave back.
    pub recorded: usize,
    /// Segments of the model.
    pub modelled: usize,
    /// Index of the first segment that differs in size, stream, or in whether it is taken. `None`
    /// if all are equal.
    pub first_difference: Option<usize>,
    /// The most that PyTorch reserved at one time, with what it held before the recording.
    pub recorded_peak: u64,
    /// The most that the model reserved at one time.
    pub modelled_peak: u64,
}

impl Reproduction {
    /// Returns whether the model took the recorded segments one by one and reserved as much.
    pub fn is_exact(&self) -> bool {
        self.first_difference.is_none() && self.recorded_peak == self.modelled_peak
    }

    /// Returns by what part of PyTorch's peak the model's is above it, or below it if negative.
    pub fn error(&self) -> f64 {
        self.modelled_peak as f64 / self.recorded_peak.max(1) as f64 - 1.0
    }
}

impl Program {
    /// Runs the program under the settings that were recorded, and compares the segments with those
    /// that PyTorch took. No recording has the memory fraction: `memory_fraction` is that of the
    /// program, if it set one.
    ///
    /// Returns `None` if the recording has no settings or no segments, or if `memory_fraction` is
    /// none.
    ///
    /// They differ if a CUDA graph or a `MemPool` ended before the snapshot: only segments that are
    /// held at the end have their pool in it. So they do if other programs filled the device, or if
    /// the release of PyTorch has other rules.
    pub fn reproduction(
        &self,
        memory_fraction: Option<f64>,
        device_memory: u64,
    ) -> Option<Reproduction> {
        let mut settings = self.recorded_settings()?;
        if let Some(fraction) = memory_fraction {
            settings.set_memory_fraction(fraction).ok()?;
        }
        let recorded = self.recorded_driver_events();
        if recorded.is_empty() {
            return None;
        }
        let mut model = Torch::new(settings, device_memory);
        let outcome = self.run_as_recorded(&mut model);
        let modelled = model.driver_events();
        let seen = |event: &DriverEvent| (event.is_taken, event.bytes, event.stream);
        let shorter = recorded.len().min(modelled.len());
        let differs = |index: &usize| seen(&recorded[*index]) != seen(&modelled[*index]);
        let is_longer = recorded.len() != modelled.len();
        Some(Reproduction {
            recorded: recorded.len(),
            modelled: modelled.len(),
            first_difference: (0..shorter).find(differs).or(is_longer.then_some(shorter)),
            recorded_peak: self.recorded_peak(),
            modelled_peak: outcome.figures.peak_reserved,
        })
    }

    /// Returns the most that the recorded allocator had taken from the driver at one time, with what
    /// it held before the recording. Zero if the recording has no segments.
    pub fn recorded_peak(&self) -> u64 {
        let mut reserved = self.reserved_before();
        let mut peak = reserved;
        for event in self.recorded_driver_events() {
            reserved = if event.is_taken {
                reserved.saturating_add(event.bytes)
            } else {
                reserved.saturating_sub(event.bytes)
            };
            peak = peak.max(reserved);
        }
        peak
    }
}
