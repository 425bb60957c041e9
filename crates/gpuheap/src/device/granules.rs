//! Granules of the driver that small allocations of several heaps share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

/// Number of heaps with small allocations in each granule of a device.
///
/// Each heap counts the whole granule as reserved. If heaps divided the granule among them, a free
/// by one heap would raise the counts of the others, maybe above their limits. The device counts
/// the granule once.
#[derive(Debug, Default)]
pub(crate) struct Granules(Mutex<GranuleCounts>);

#[derive(Debug, Default)]
struct GranuleCounts {
    /// Number of heaps in each granule, keyed by the granule's index.
    heaps: FxHashMap<u64, u64>,
    /// Number of heaps beyond the first in a granule, summed over all granules.
    again: u64,
}

impl Granules {
    /// Records the first allocation of a heap in a granule.
    pub(crate) fn enter(&self, granule: u64) {
        let mut counts = self.lock();
        let heaps = counts.heaps.entry(granule).or_insert(0);
        *heaps += 1;
        counts.again += u64::from(*heaps > 1);
    }

    /// Records that a heap has no allocation left in a granule.
    pub(crate) fn leave(&self, granule: u64) {
        let mut counts = self.lock();
        let Some(heaps) = counts.heaps.get_mut(&granule) else { return };
        *heaps -= 1;
        match *heaps {
            0 => drop(counts.heaps.remove(&granule)),
            _ => counts.again -= 1,
        }
    }

    /// Returns `true` if several heaps have allocations in a granule.
    pub(crate) fn is_shared(&self, granule: u64) -> bool {
        self.lock().heaps.get(&granule).is_some_and(|heaps| *heaps > 1)
    }

    /// Returns the sum of all heaps' granules, minus the granules that the device counts.
    pub(crate) fn counted_again(&self) -> u64 {
        self.lock().again
    }

    fn lock(&self) -> MutexGuard<'_, GranuleCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
