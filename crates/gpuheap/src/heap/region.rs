//! Use of a heap in a section of a program.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_pool::AllocStats;
use serde::Serialize;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::store::{StoreState, Watched};
use crate::heap::usage::StatsDelta;
use crate::kind::MemoryKind;

/// A section of a program whose peak of live memory is recorded. From [`Heap::region`]. Regions may
/// be nested or overlap, and end in any order and on any thread.
///
/// A region includes the allocations of all threads in the heap.
#[must_use]
pub struct Region {
    heap: Heap,
    kind: MemoryKind,
    number: u64,
    before: AllocStats,
}

/// Use of a heap since a [`Region`] began, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegionUsage {
    /// Bytes live when the region began.
    pub live_before: u64,
    /// Bytes live now.
    pub live: u64,
    /// High-water mark of `live` since the region began, including memory live before. Exact if one
    /// thread uses the heap; otherwise off by as much as [`live_peak`](AllocStats::live_peak).
    pub live_peak: u64,
    /// Allocations and frees, and bytes taken and given back, since the region began.
    pub since: StatsDelta,
}

impl RegionUsage {
    /// Returns the most bytes that were live at once, beyond those live when the region began.
    pub fn peak(&self) -> u64 {
        self.live_peak.saturating_sub(self.live_before)
    }
}

impl Heap {
    /// Begins to record the peak of live device memory, until the region is dropped. Does not wait
    /// for the device.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
    /// let target = heap.target()?;
    /// let region = heap.region()?;
    /// let kept = target.zeroed::<u8, _>(1000)?;
    /// drop(target.zeroed::<u8, _>(2000)?);
    /// let usage = region.usage()?;
    /// assert_eq!((usage.peak(), usage.live), (3000, kept.bytes()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset.
    pub fn region(&self) -> Result<Region, Error> {
        self.region_of(MemoryKind::Device)
    }

    /// Begins to record the peak of one kind of memory, as [`region`](Heap::region) does. For
    /// registered memory it records pinned memory, without registered memory.
    ///
    /// # Errors
    ///
    /// The errors of [`region`](Heap::region).
    pub fn region_of(&self, kind: MemoryKind) -> Result<Region, Error> {
        self.check_alive()?;
        let number = new_number();
        let mut state = self.store(kind).lock();
        let before = state.stats();
        state.watch(number, before.live);
        drop(state);
        Ok(Region { heap: self.clone(), kind, number, before })
    }

    /// Begins a region of device memory without flushing threads' caches, for
    /// [`merged_peak`](Region::merged_peak). If each region flushed them, a program with a scope
    /// for each request would never hit them.
    pub(crate) fn merged_region(&self) -> Result<Region, Error> {
        self.check_alive()?;
        let number = new_number();
        let mut state = self.store(MemoryKind::Device).lock();
        let mut before = state.merged_stats();
        before.live = before.known_live();
        state.watch(number, before.live);
        drop(state);
        Ok(Region { heap: self.clone(), kind: MemoryKind::Device, number, before: *before })
    }
}

fn new_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Region {
    /// Returns the use of the heap since the region began, and continues the region. Does not wait
    /// for the device.
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset.
    pub fn usage(&self) -> Result<RegionUsage, Error> {
        self.heap.check_alive()?;
        let mut state = self.heap.store(self.kind).lock();
        let now = state.stats();
        let live_peak = state.live_peak_of(self.number);
        drop(state);
        let since = StatsDelta::between(&now, &self.before);
        Ok(RegionUsage { live_before: self.before.live, live: now.live, live_peak, since })
    }

    /// Returns the most bytes that were live at once, beyond those live when the region began. Does
    /// not flush threads' caches. With several threads it is off by as much as
    /// [`RegionUsage::peak`].
    pub(crate) fn merged_peak(&self) -> Result<u64, Error> {
        self.heap.check_alive()?;
        let mut state = self.heap.store(self.kind).lock();
        state.merged_stats();
        Ok(state.live_peak_of(self.number).saturating_sub(self.before.live))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held the lock.
        if !self.heap.is_forked() {
            self.heap.store(self.kind).lock().regions.retain(|one| one.number != self.number);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region of {} memory", self.kind)
    }
}

impl StoreState {
    /// Begins to record the peak of a region, from `live` bytes.
    fn watch(&mut self, number: u64, live: u64) {
        self.note_peak();
        self.regions.push(Watched { number, peak: live });
    }

    /// Returns the high-water mark of a region, by the statistics as they are.
    fn live_peak_of(&mut self, number: u64) -> u64 {
        self.note_peak();
        let region = self.regions.iter().find(|one| one.number == number);
        region.map_or(self.stats.live, |region| region.peak)
    }

    fn note_peak(&mut self) {
        let peak = self.stats.take_recent_peak();
        self.regions.iter_mut().for_each(|one| one.peak = one.peak.max(peak));
    }
}
