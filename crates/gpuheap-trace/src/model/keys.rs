//! Keys by which a snapshot tells the PyTorch that wrote it.

/// Keys of a PyTorch snapshot, compared with those that PyTorch 2.11 writes. Each is written as it
/// is reached, for example `allocator_settings.max_split_size` or `segments[].is_expandable`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotKeys {
    /// Keys of PyTorch 2.11 that the snapshot has not: an older PyTorch wrote it, or another
    /// program.
    pub missing: Vec<String>,
    /// Keys of the snapshot that PyTorch 2.11 does not write: a newer PyTorch wrote it.
    pub unknown: Vec<String>,
}

impl SnapshotKeys {
    /// Returns whether the snapshot has the keys of PyTorch 2.11 and no others.
    pub fn is_known(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }
}
