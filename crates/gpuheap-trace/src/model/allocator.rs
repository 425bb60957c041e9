//! Allocator settings that a recording states.

/// Settings of PyTorch's allocator, as a snapshot has them. The memory fraction and the device's
/// size are in no snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct AllocatorSettings {
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub text: String,
    /// The largest block that may be split, in bytes; `None` if all may be.
    pub max_split_size: Option<u64>,
    /// The part of the allowed memory above which unused segments are given back; 0 is never.
    pub garbage_collection_threshold: f64,
    /// `true` if segments grow in place.
    pub expandable_segments: bool,
    /// Into how many parts powers of two are divided for rounding: from how many MiB on, and the
    /// number of parts. In order.
    pub roundup_power2_divisions: Vec<(u64, u64)>,
}

/// A segment that the recorded allocator held when the recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// `true` if it is one of the segments for small blocks.
    pub is_small: bool,
    /// `true` if it grows in place.
    pub is_expandable: bool,
    /// The private pool that it belongs to; `(0, 0)` is the common memory.
    pub pool: (u64, u64),
}
