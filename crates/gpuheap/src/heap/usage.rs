//! Memory that the heaps of a process hold at one moment.

use gpuheap_pool::AllocStats;

/// Memory of a heap at one moment, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Live bytes, as requested.
    pub live: u64,
    /// Live bytes, including their rounding.
    pub live_blocks: u64,
    /// High-water mark of `live`: [exact](AllocStats::live_peak) if one thread uses the heap.
    /// [`Heap::meter`](crate::Heap::meter) gives the peak of a section of the program.
    pub live_peak: u64,
    /// Bytes with a pending free: the stream of the free may not have reached it yet.
    pub pending: u64,
    /// Free bytes in the pool, including pending bytes.
    pub cached: u64,
    /// Largest contiguous piece of the cached bytes.
    pub largest_cached_block: u64,
    /// Size of the largest block that the pool could make of cached memory. `stitched` maps free
    /// pieces together for such a block. For other pools, the size is `largest_cached_block`.
    pub largest_stitchable: u64,
    /// Bytes taken from the driver, with the driver's own rounding.
    pub reserved: u64,
    /// High-water mark of `reserved`.
    pub reserved_peak: u64,
    /// Number of driver calls that take or give back memory, order streams, or query figures. Calls
    /// that make the context current are not counted.
    pub driver_calls: u64,
    /// Statistics of the heap.
    pub stats: AllocStats,
}

/// Bytes of one kind of memory that other heaps of this process hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherHeaps {
    /// Bytes that the other heaps have reserved, as the driver counts them.
    pub(crate) reserved: u64,
    /// Bytes of `reserved` that are free, including pending bytes.
    pub(crate) cached: u64,
    /// Bytes of `cached` that can return to the driver because their whole segment is free.
    pub(crate) spare: u64,
    /// Bytes of `spare` that the driver may keep, because they share a piece of the driver's memory
    /// with memory in use.
    pub(crate) may_stay: u64,
    /// Bytes in whole segments that were freed during captures of graphs. They can return to the
    /// driver once these captures end.
    pub(crate) stuck: u64,
    /// Bytes that other heaps with the same total limit can give back.
    pub(crate) under_total: u64,
}

impl OtherHeaps {
    /// Returns the figures as they will be once the spare segments are given back.
    pub(crate) fn without_spare(self) -> OtherHeaps {
        let left = |bytes: u64| bytes.saturating_sub(self.spare);
        let (reserved, cached) = (left(self.reserved), left(self.cached));
        OtherHeaps { reserved, cached, spare: 0, may_stay: 0, ..self }
    }

    /// Returns the figures as they will be once all captures of graphs have ended.
    pub(crate) fn after_captures(self) -> OtherHeaps {
        OtherHeaps { spare: self.spare.saturating_add(self.stuck), stuck: 0, ..self }
    }
}
