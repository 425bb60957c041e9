//! Counts a thread's allocations and frees outside of the heap's lock.

use gpuheap_pool::{Moved, RunningStats};

use crate::sync::OwnedU64;

/// Counters of one thread's allocations in one store, on all streams. No cache line moves between
/// threads, and the peak of a single thread is exact. A thread that adds the counters to the
/// statistics holds the store's lock, and the owner cannot use its caches meanwhile. Sums wrap,
/// because a thread may free an allocation of another thread.
///
/// A thread's caches for one store share the counters of [one of them](super::ThreadCache).
#[derive(Debug, Default)]
// The counters have their own cache lines, because the owning thread writes them at every call.
#[repr(align(128))]
pub(crate) struct Counts {
    allocations: OwnedU64,
    allocated_bytes: OwnedU64,
    frees: OwnedU64,
    /// Bytes allocated and not freed, as requested. `live_blocks` counts them with rounding.
    live: OwnedU64,
    live_blocks: OwnedU64,
    /// Maximum of `live`.
    high: OwnedU64,
}

impl Counts {
    #[inline]
    pub(crate) fn allocated(&self, bytes: u64, block: u64) {
        self.allocations.add(1);
        self.allocated_bytes.add(bytes);
        self.live_blocks.add(block);
        let live = self.live.get().wrapping_add(bytes);
        self.live.set(live);
        if live as i64 > self.high.get() as i64 {
            self.high.set(live);
        }
    }

    /// Counts the free of an allocation of this or another thread.
    #[inline]
    pub(crate) fn freed(&self, bytes: u64, block: u64) {
        self.frees.add(1);
        self.live_blocks.sub(block);
        self.live.sub(bytes);
    }

    /// Adds all counts to `stats` and resets them.
    pub(crate) fn merge_counts(&self, stats: &mut RunningStats) {
        stats.add(self.moved(OwnedU64::take));
    }

    /// Adds all counts to `stats` and does not reset them. The sums are exact only if the owning
    /// thread neither allocates nor frees meanwhile.
    pub(crate) fn add_counts(&self, stats: &mut RunningStats) {
        stats.add(self.moved(OwnedU64::get));
    }

    fn moved(&self, read: impl Fn(&OwnedU64) -> u64) -> Moved {
        Moved {
            allocations: read(&self.allocations),
            allocated_bytes: read(&self.allocated_bytes),
            frees: read(&self.frees),
            live: read(&self.live),
            live_blocks: read(&self.live_blocks),
            high: read(&self.high),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn merged_counts_keep_peak() {
        let (counts, mut stats) = (Counts::default(), RunningStats::default());
        stats.count_allocation(100, 512);
        counts.allocated(50, 512);
        counts.freed(50, 512);
        counts.freed(100, 512);
        counts.merge_counts(&mut stats);
        assert_eq!((stats.live, stats.live_peak, stats.live_blocks), (0, 150, 0));
        assert_eq!((stats.allocations, stats.frees, stats.live_allocations), (2, 2, 0));
        // The merge has reset the peak in `counts`, so the next merge must not add the old peak to
        // these new bytes.
        stats.count_allocation(120, 512);
        counts.merge_counts(&mut stats);
        assert_eq!((stats.live, stats.live_peak), (120, 150));
        counts.allocated(20, 512);
        counts.merge_counts(&mut stats);
        counts.merge_counts(&mut stats);
        assert_eq!((stats.live, stats.live_peak), (140, 150));
        counts.allocated(20, 512);
        counts.freed(20, 512);
        counts.merge_counts(&mut stats);
        assert_eq!((stats.live, stats.live_peak), (140, 160));
    }

    #[test]
    fn merge_accepts_free_before_allocation() {
        let (one, other, mut stats) =
            (Counts::default(), Counts::default(), RunningStats::default());
        one.allocated(1000, 1024);
        other.freed(1000, 1024);
        other.merge_counts(&mut stats);
        stats.count_allocation(10, 512);
        one.merge_counts(&mut stats);
        assert_eq!((stats.live, stats.live_blocks, stats.live_allocations), (10, 512, 1));
        assert!(stats.live_peak <= 1010, "{}", stats.live_peak);
    }
}
