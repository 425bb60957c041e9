//! Compares a recording with the model of the recorded allocator.

use super::Program;
use crate::Reproduction;
use crate::models::torch::Torch;
use crate::models::{DriverEvent, Model};

impl Program {
    /// Runs the program under the recorded settings, and compares the model's segments with
    /// PyTorch's segments.
    ///
    /// `memory_fraction` is the fraction that the program set. Recordings do not contain it.
    ///
    /// Returns `None` if the recording has no settings or no segments, or if `memory_fraction` is
    /// not valid.
    ///
    /// The segments differ if a CUDA graph or a `MemPool` ended before the snapshot, because only
    /// segments held at the end name their pool. They also differ if other programs filled the
    /// device, or if the release of PyTorch has other rules.
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

    /// Returns the peak of bytes that the recorded allocator held, including bytes from before the
    /// recording. Zero if the recording has no segments.
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
