//! A segment that grows in place.

/// Address range of a segment that grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growing {
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Bytes that are mapped at a time.
    pub(super) piece: u64,
}
