//! Statistics of registered memory. That memory belongs to the program.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_pool::RunningStats;

use crate::heap::usage::Usage;

/// Registered memory. All reserved bytes are live.
#[derive(Default)]
pub(crate) struct Registrations {
    stats: Mutex<RunningStats>,
}

impl Registrations {
    pub(crate) fn add(&self, bytes: u64) {
        let mut stats = self.lock();
        stats.count_taken(bytes);
        stats.count_allocation(bytes, bytes);
    }

    pub(crate) fn remove(&self, bytes: u64) {
        let mut stats = self.lock();
        stats.count_free(bytes, bytes);
        stats.count_given_back(bytes);
    }

    pub(crate) fn usage(&self) -> Usage {
        let stats = *self.lock();
        Usage {
            live: stats.live,
            live_blocks: stats.live_blocks,
            live_peak: stats.live_peak,
            pending: 0,
            cached: 0,
            largest_cached_block: 0,
            largest_stitchable: 0,
            reserved: stats.taken,
            reserved_peak: stats.live_peak,
            driver_calls: stats.allocations + stats.frees,
            stats: *stats,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
