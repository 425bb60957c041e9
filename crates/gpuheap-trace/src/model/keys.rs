//! Keys of a snapshot, which show the release of PyTorch that wrote it.

/// Keys of a PyTorch snapshot, compared with those of PyTorch 2.11. Each has its path, for example
/// `allocator_settings.max_split_size` or `segments[].is_expandable`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotKeys {
    /// Keys of PyTorch 2.11 that the snapshot lacks. An older PyTorch wrote it, or another program.
    pub missing: Vec<String>,
    /// Keys of the snapshot that PyTorch 2.11 does not write. A newer PyTorch wrote it.
    pub unknown: Vec<String>,
}

impl SnapshotKeys {
    /// Returns `true` if the snapshot has the keys of PyTorch 2.11 and no others.
    pub fn is_known(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }
}
