//! Comparison of the model of PyTorch's allocator with the segments that a snapshot recorded.

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
