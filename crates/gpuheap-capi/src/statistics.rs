//! Defines the structure from which C code reads a heap's statistics.

use std::mem::size_of;

use gpuheap::Usage;

use crate::sized::sized;

/// Statistics of a heap at one moment, in bytes unless stated otherwise. Set size to
/// sizeof(gpuheap_statistics) before calling gpuheap_get_statistics. Later versions add fields at
/// the end. A program gets the fields that it was compiled with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpuheap_statistics {
    /// sizeof(gpuheap_statistics).
    pub size: usize,
    /// Bytes allocated, as requested.
    pub live: u64,
    /// The high-water mark of live.
    pub live_peak: u64,
    /// Bytes allocated, including rounding.
    pub live_blocks: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Bytes that were freed on a stream that is not known to have reached the free. They are part
    /// of cached.
    pub pending: u64,
    /// Free bytes that the heap keeps for later requests.
    pub cached: u64,
    /// Largest contiguous cached block, in bytes.
    pub largest_cached_block: u64,
    /// Bytes that the driver counts for the heap, including the driver's rounding.
    pub reserved: u64,
    /// The high-water mark of reserved.
    pub reserved_peak: u64,
    /// Number of allocations ever made.
    pub allocations: u64,
    /// Bytes ever allocated, as requested.
    pub allocated_bytes: u64,
    /// Number of allocations ever freed.
    pub frees: u64,
    /// Number of frees during which a driver call failed. The other figures count the memory of
    /// such frees as freed.
    pub failed_frees: u64,
    /// Bytes ever returned to the driver.
    pub given_back: u64,
    /// Number of driver calls made for memory, stream order and statistics.
    pub driver_calls: u64,
    /// Size of the largest block that the pool could make of cached bytes. The pool "stitched" can
    /// map free pieces together for that. For other pools, the figure equals largest_cached_block.
    pub largest_stitchable: u64,
}

sized!(gpuheap_statistics, driver_calls: u64, "statistics");

impl gpuheap_statistics {
    pub(crate) fn new(usage: &Usage) -> gpuheap_statistics {
        gpuheap_statistics {
            size: size_of::<gpuheap_statistics>(),
            live: usage.live,
            live_peak: usage.live_peak,
            live_blocks: usage.live_blocks,
            live_allocations: usage.stats.live_allocations,
            pending: usage.pending,
            cached: usage.cached,
            largest_cached_block: usage.largest_cached_block,
            reserved: usage.reserved,
            reserved_peak: usage.reserved_peak,
            allocations: usage.stats.allocations,
            allocated_bytes: usage.stats.allocated_bytes,
            frees: usage.stats.frees,
            failed_frees: usage.stats.failed_frees,
            given_back: usage.stats.given_back,
            driver_calls: usage.driver_calls,
            largest_stitchable: usage.largest_stitchable,
        }
    }
}
