//! What a heap holds at one moment.

use gpuheap_pool::Ledger;
use serde::Serialize;

/// What a heap holds at one moment, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Handed out, as requested.
    pub live: u64,
    /// Handed out, rounding included.
    pub live_blocks: u64,
    /// The high-water mark of `live`: [exact](Ledger::live_peak) where one thread uses the heap.
    /// [`Heap::region`](crate::Heap::region) has that of a part of the program.
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

/// What happened in a heap between two moments. From [`Usage::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Since {
    /// Allocations.
    pub allocations: u64,
    /// Their bytes, as requested.
    pub allocated_bytes: u64,
    /// Frees.
    pub frees: u64,
    /// Bytes taken from the driver.
    pub taken: u64,
    /// Bytes given back to it.
    pub given_back: u64,
}

impl Usage {
    /// What happened since `before`, an earlier moment of the same heap.
    pub fn since(&self, before: &Usage) -> Since {
        Since::between(&self.ledger, &before.ledger)
    }
}

impl Since {
    /// Returns the difference between two states of one account.
    pub(crate) fn between(now: &Ledger, before: &Ledger) -> Since {
        let between = |count: fn(&Ledger) -> u64| count(now).saturating_sub(count(before));
        Since {
            allocations: between(|ledger| ledger.allocations),
            allocated_bytes: between(|ledger| ledger.allocated_bytes),
            frees: between(|ledger| ledger.frees),
            taken: between(|ledger| ledger.taken + ledger.given_back),
            given_back: between(|ledger| ledger.given_back),
        }
    }
}
