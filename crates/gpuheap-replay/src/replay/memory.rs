//! Memory of a device, as a model of an allocator sees it.

/// Bytes that a model may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Memory of the device. PyTorch's memory fraction is a part of it.
    pub(crate) total: u64,
    /// Bytes that a program can use of it.
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
