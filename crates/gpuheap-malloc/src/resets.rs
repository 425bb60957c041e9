//! Counts resets of devices, and combines the statistics of the heaps that these resets ended.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::{Heap, Tracking};
use gpuheap_driver::CUdevice;

/// Number of resets of one device, and combined statistics of the heaps that these resets ended.
#[derive(Clone, Default)]
pub(crate) struct Resets {
    pub(crate) resets: u64,
    /// Number of heaps that ended with a reset. A reset of a device without a heap does not count.
    pub(crate) heaps: u64,
    pub(crate) allocations: u64,
    /// Highest number of live bytes in any one heap.
    pub(crate) live_peak: u64,
    /// Highest number of reserved bytes in any one heap.
    pub(crate) reserved_peak: u64,
    /// Number of allocations that were live at a reset.
    pub(crate) lost: u64,
    /// Bytes of the lost allocations, as requested.
    pub(crate) lost_bytes: u64,
    /// Lists where the program allocated the memory that the last reset lost; `None` if backtraces
    /// are not recorded.
    pub(crate) leaks: Option<String>,
}

static RESETS: Mutex<BTreeMap<CUdevice, Resets>> = Mutex::new(BTreeMap::new());

pub(crate) fn count(device: CUdevice) {
    all_locked().entry(device).or_default().resets += 1;
}

/// Adds the statistics of a heap. Call it before the device's reset: the reset ends the heap.
pub(crate) fn add(device: CUdevice, heap: &Heap) {
    let Ok(usage) = heap.usage() else { return };
    let live = usage.stats.live_allocations;
    let leaks = (live > 0 && heap.tracking() == Tracking::Backtraces).then(|| heap.leaks());
    let leaks = leaks.and_then(Result::ok).map(|leaks| leaks.to_string());
    let mut all = all_locked();
    let past = all.entry(device).or_default();
    past.heaps += 1;
    past.allocations += usage.stats.allocations;
    past.live_peak = past.live_peak.max(usage.live_peak);
    past.reserved_peak = past.reserved_peak.max(usage.reserved_peak);
    past.lost += live;
    past.lost_bytes += usage.live;
    past.leaks = leaks.or(past.leaks.take());
}

/// Returns the figures of each device that was reset.
pub(crate) fn all() -> BTreeMap<CUdevice, Resets> {
    all_locked().clone()
}

fn all_locked() -> MutexGuard<'static, BTreeMap<CUdevice, Resets>> {
    RESETS.lock().unwrap_or_else(PoisonError::into_inner)
}
