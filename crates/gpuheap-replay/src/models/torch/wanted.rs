//! A request, rounded.

/// Memory that a request needs.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) bytes: u64,
    /// Bytes to take from the driver if no free block is large enough.
    pub(super) segment_bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u64,
}
