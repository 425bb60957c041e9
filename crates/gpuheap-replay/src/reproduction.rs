//! Compares the model of PyTorch's allocator with the segments that a snapshot recorded.

/// Comparison of the segments that PyTorch took and gave back with the segments of the model. The
/// model has the recorded settings. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reproduction {
    /// Number of segments that PyTorch took or gave back.
    pub recorded: usize,
    /// Number of segments that the model of PyTorch's allocator took or gave back.
    pub modelled: usize,
    /// Index of the first segment that differs in size, stream or direction (taken or given back).
    /// `None` if all segments are equal.
    pub first_difference: Option<usize>,
    /// Peak of the bytes that PyTorch reserved, including bytes from before the recording.
    pub recorded_peak: u64,
    /// Peak of the bytes that the model reserved.
    pub modelled_peak: u64,
}

impl Reproduction {
    /// Returns `true` if the model took and gave back the recorded segments, in order, and reserved
    /// the recorded peak.
    pub fn is_exact(&self) -> bool {
        self.first_difference.is_none() && self.recorded_peak == self.modelled_peak
    }

    /// Returns the error of the model's peak, relative to PyTorch's peak. Negative if the model's
    /// peak is lower.
    pub fn error(&self) -> f64 {
        self.modelled_peak as f64 / self.recorded_peak.max(1) as f64 - 1.0
    }
}
