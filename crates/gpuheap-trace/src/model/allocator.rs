//! Settings and segments of the recorded allocator, and the keys of its snapshot.

/// Settings of PyTorch's allocator in a snapshot. No snapshot contains the memory fraction or the
/// device's size.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct AllocatorSettings {
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub text: String,
    /// Largest block that may be split, in bytes; `None` for no limit.
    pub max_split_size: Option<u64>,
    /// Fraction of the allowed memory above which unused segments are given back; 0 for never.
    pub garbage_collection_threshold: f64,
    /// `true` if segments grow in place.
    pub expandable_segments: bool,
    /// Rules that round requests to fractions of powers of two, sorted by size. A pair has the
    /// smallest size in MiB to which the rule applies, and the number of divisions.
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
    /// `true` if the segment is for small blocks.
    pub is_small: bool,
    /// `true` if the segment grows in place.
    pub is_expandable: bool,
    /// Private pool of the segment; `(0, 0)` is PyTorch's default pool.
    pub pool: (u64, u64),
}

/// Differences between the keys of a PyTorch snapshot and the keys of PyTorch 2.11. Each key is a
/// path, such as `allocator_settings.max_split_size` or `segments[].is_expandable`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotKeys {
    /// Keys of PyTorch 2.11 that the snapshot lacks. An older PyTorch or another program wrote it.
    pub missing: Vec<String>,
    /// Keys of the snapshot that PyTorch 2.11 does not write. A newer PyTorch wrote the snapshot.
    pub unknown: Vec<String>,
}

impl SnapshotKeys {
    /// Returns `true` if the snapshot has the keys of PyTorch 2.11 and no other keys.
    pub fn is_known(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }
}
