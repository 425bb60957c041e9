//! What a heap holds at one moment.

use gpuheap_pool::AllocStats;
use serde::Serialize;

/// What a heap holds at one moment, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Handed out, as requested.
    pub live: u64,
    /// Handed out, rounding included.
    pub live_blocks: u64,
    /// The high-water mark of `live`: [exact](AllocStats::live_peak) where one thread uses the heap.
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
    pub stats: AllocStats,
}

/// What happened in a heap between two moments. From [`Usage::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StatsDelta {
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
    pub fn since(&self, before: &Usage) -> StatsDelta {
        StatsDelta::between(&self.stats, &before.stats)
    }
}

impl StatsDelta {
    /// Returns the difference between two states of one account.
    pub(crate) fn between(now: &AllocStats, before: &AllocStats) -> StatsDelta {
        let between = |count: fn(&AllocStats) -> u64| count(now).saturating_sub(count(before));
        StatsDelta {
            allocations: between(|stats| stats.allocations),
            allocated_bytes: between(|stats| stats.allocated_bytes),
            frees: between(|stats| stats.frees),
            taken: between(|stats| stats.taken + stats.given_back),
            given_back: between(|stats| stats.given_back),
        }
    }
}
