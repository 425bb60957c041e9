//! A segment that grows in place.

/// A range of addresses in which a segment grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growing {
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Bytes of each piece of memory that is mapped.
    pub(super) piece: u64,
}
