//! Predicts peaks of PyTorch's allocator that depend on the speed of host and device.

use super::{Action, Completion, PeakRange, Program, Step};
use crate::Reproduction;
use crate::models::torch::{Settings, Torch};

/// Shifts of completions ([`Completion::Shifted`]) that are tried, because the program's speed
/// under other settings is unknown. With -2, each free completes at the recorded time of the second
/// completion before its own.
const SHIFTS: std::ops::RangeInclusive<i32> = -5..=1;
/// Lower end of a predicted range of peaks, as a factor of the median peak over [`SHIFTS`].
const LOW: f64 = 0.968;
/// Upper end of a predicted range of peaks, as a factor of the median peak over [`SHIFTS`].
const HIGH: f64 = 1.062;

impl Program {
    /// Returns the peak that PyTorch's allocator reserves for the program under `settings`.
    ///
    /// The result is exact if no block waited for other streams, or if `settings` are the recorded
    /// settings. Otherwise the speed of host and device decides which blocks are no longer pending,
    /// and the result is a range. The middle of the range is the median of runs with shifted
    /// completions. A run completes each free at the recorded place of a completion from 5 before
    /// to 1 after its own. The width is the difference between two recordings of one program,
    /// measured with twenty pairs under five settings on an H200 (2026-11-22).
    ///
    /// If the program fails under the settings, both ends are the peak up to the failure.
    ///
    /// If the model under the recorded settings takes other segments than PyTorch took
    /// ([`reproduction`](Self::reproduction)), the error of the model's peak widens the range. If a
    /// request failed, or garbage collection is on, the program's limit is unknown. The model's
    /// error then does not widen the range. Under the recorded settings without a memory fraction,
    /// an inexact result is replaced by the recorded peak, if the device has that much memory.
    pub fn torch_peak(&self, settings: &Settings, device_memory: u64) -> PeakRange {
        let run = |completion| {
            let mut model = Torch::new(settings.clone(), device_memory);
            self.run_with(&mut model, completion).figures.peak_reserved
        };
        let inexact = self.inexact(settings, device_memory);
        let range = if self.is_recorded(settings) {
            if let Some(inexact) = inexact
                && settings.memory_fraction().is_none()
                && inexact.recorded_peak <= device_memory
            {
                return PeakRange::exact(inexact.recorded_peak);
            }
            let mut model = Torch::new(settings.clone(), device_memory);
            PeakRange::exact(self.run_as_recorded(&mut model).figures.peak_reserved)
        } else if self.waits() {
            let mut peaks: Vec<u64> = SHIFTS.map(|by| run(Completion::Shifted(by))).collect();
            peaks.sort_unstable();
            let median = peaks[peaks.len() / 2] as f64;
            PeakRange { low: (median * LOW) as u64, high: (median * HIGH) as u64 }
        } else {
            PeakRange::exact(run(Completion::Recorded))
        };
        match inexact {
            None => range,
            Some(inexact) => {
                let right = |bytes: u64| (bytes as f64 / (1.0 + inexact.error())) as u64;
                PeakRange {
                    low: range.low.min(right(range.low)),
                    high: range.high.max(right(range.high)),
                }
            }
        }
    }

    /// Returns `true` if the program fits in `capacity` bytes at any speed of host and device. The
    /// device has `total` bytes. The caller has run the program at the recorded speed.
    ///
    /// One of two conditions is enough. The first: the upper end of
    /// [`torch_peak`](Self::torch_peak) on an unlimited device is within the capacity. The second:
    /// the program fits with each of [`SHIFTS`] after the capacity is divided by the ratio of that
    /// upper end to the median peak.
    ///
    /// Always `true` for the recorded settings, because their completions are recorded.
    pub(crate) fn is_sure_to_fit(&self, settings: &Settings, total: u64, capacity: u64) -> bool {
        let inexact = self.inexact(settings, total);
        if self.is_recorded(settings) || !self.waits() && inexact.is_none() {
            return true;
        }
        let fraction = settings.memory_fraction();
        let allowed = fraction.map_or(u64::MAX, |fraction| (total as f64 * fraction) as u64);
        if self.torch_peak(&settings.without_limit(), u64::MAX).high <= capacity.min(allowed) {
            return true;
        }
        let mut margin = inexact.map_or(1.0, |inexact| (1.0 / (1.0 + inexact.error())).max(1.0));
        let completions: Vec<Completion> = match self.waits() {
            true => SHIFTS.map(Completion::Shifted).collect(),
            false => vec![Completion::Recorded],
        };
        if self.waits() {
            margin *= HIGH;
        }
        let smaller = |bytes: u64| (bytes as f64 / margin) as u64;
        completions.into_iter().all(|completion| {
            let mut model = Torch::new(settings.clone(), smaller(total));
            model.set_capacity(smaller(capacity));
            self.run_with(&mut model, completion).failure.is_none()
        })
    }

    /// Returns `true` if the settings are the recorded settings, except for a limit.
    fn is_recorded(&self, settings: &Settings) -> bool {
        self.recorded_settings().is_some_and(|recorded| recorded.is_but_for_limit(settings))
    }

    /// Returns `true` if freed blocks waited for other streams.
    fn waits(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::Free { .. }))
    }

    /// Returns the comparison with the recorded segments if the model is not exact.
    fn inexact(&self, settings: &Settings, device_memory: u64) -> Option<Reproduction> {
        let reproduction = self.reproduction_under(settings, device_memory);
        // If a request failed, or garbage collection is on, PyTorch had a memory limit that the
        // recording does not show. So even a correct model may take other segments.
        let collects = self.recorded_settings().as_ref().is_some_and(Settings::collects_garbage);
        let is_unlimited = !collects && !self.steps.iter().any(Step::fails);
        reproduction.filter(|found| is_unlimited && !found.is_exact())
    }
}
