//! Memory of a device for a model of an allocator.

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
