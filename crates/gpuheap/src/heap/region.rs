//! Account of a heap over a part of a program.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::ledger::Ledger;
use crate::heap::store::State;
use crate::heap::usage::Since;
use crate::kind::MemoryKind;

/// A part of a program whose peak of live memory is watched: from [`Heap::region`]. Regions may be nested
/// or overlap, and end in any order and on any thread.
///
/// It sees what all threads do with the heap.
#[must_use]
pub struct Region {
    heap: Heap,
    kind: MemoryKind,
    number: u64,
    before: Ledger,
}

/// What a heap came to since a [`Region`] began, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegionUsage {
    /// Live when it began.
    pub live_before: u64,
    /// Live now.
    pub live: u64,
    /// The most that was live at once since it began, what was live before included. Exact where one
    /// thread uses the heap; else off by as much as [`live_peak`](Ledger::live_peak).
    pub peak: u64,
    /// Allocations made and freed, and memory taken and given back.
    pub since: Since,
}

impl RegionUsage {
    /// By how much more was live at the peak than when the region began.
    pub fn growth(&self) -> u64 {
        self.peak.saturating_sub(self.live_before)
    }
}

/// A heap's record of one region.
pub(crate) struct Watched {
    number: u64,
    peak: u64,
}

impl Heap {
    /// Begins to watch the peak of the device memory that is live, until the result is dropped. Does not
    /// wait for the device.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
    /// let target = heap.target()?;
    /// let region = heap.region()?;
    /// let kept = target.zeroed::<u8, _>(1000)?;
    /// drop(target.zeroed::<u8, _>(2000)?);
    /// let usage = region.usage()?;
    /// assert_eq!((usage.peak, usage.live), (3000, kept.bytes()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A forked child; a device that was reset.
    pub fn region(&self) -> Result<Region, Error> {
        self.region_of(MemoryKind::Device)
    }

    /// Begins to watch the peak of one kind of memory as [`region`](Heap::region) does. Registered memory
    /// is watched as pinned memory, of which it is no part.
    ///
    /// # Errors
    ///
    /// As [`region`](Heap::region).
    pub fn region_of(&self, kind: MemoryKind) -> Result<Region, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        self.check_alive()?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let before = self.store(kind).lock().watch(number);
        Ok(Region { heap: self.clone(), kind, number, before })
    }
}

impl Region {
    /// What the heap came to since the region began. The region goes on. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// A forked child; a device that was reset.
    pub fn usage(&self) -> Result<RegionUsage, Error> {
        self.heap.check_alive()?;
        let (now, peak) = self.heap.store(self.kind).lock().watched(self.number);
        let since = Since::between(&now, &self.before);
        Ok(RegionUsage { live_before: self.before.live, live: now.live, peak, since })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have held the lock.
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

impl State {
    /// Begins a region: the account so far.
    fn watch(&mut self, number: u64) -> Ledger {
        let ledger = self.ledger();
        self.note_peak();
        self.regions.push(Watched { number, peak: ledger.live });
        ledger
    }

    /// The account so far, and the peak of a region.
    fn watched(&mut self, number: u64) -> (Ledger, u64) {
        let ledger = self.ledger();
        self.note_peak();
        let region = self.regions.iter().find(|one| one.number == number);
        (ledger, region.map_or(ledger.live, |region| region.peak))
    }

    fn note_peak(&mut self) {
        let peak = self.ledger.take_recent_peak();
        self.regions.iter_mut().for_each(|one| one.peak = one.peak.max(peak));
    }
}
