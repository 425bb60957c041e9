//! What a heap holds at one moment.

use crate::heap::ledger::Ledger;

/// What a heap holds at one moment, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Handed out, as requested.
    pub live: u64,
    /// Handed out, rounding included.
    pub live_blocks: u64,
    /// The high-water mark of `live`.
    pub live_peak: u64,
    /// Freed, their streams not known to be there yet.
    pub pending: u64,
    /// Held by the pool and free, pending ones included.
    pub cached: u64,
    /// The largest of these in one piece.
    pub largest_cached_block: u64,
    /// What the driver counts for this heap, its own rounding included.
    pub reserved: u64,
    /// The high-water mark of `reserved`.
    pub reserved_peak: u64,
    /// Driver calls made for memory, order and figures, a count; those that make the context
    /// current are not in it.
    pub driver_calls: u64,
    /// The account.
    pub ledger: Ledger,
}
