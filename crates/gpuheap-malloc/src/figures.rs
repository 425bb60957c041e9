//! Figures of a heap in the place of a pool of the driver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::{Error, Heap, Limits, Meter};

/// Requested bytes of the allocations in no stream's order, by `cuMemAlloc`. No pool of the driver
/// would have them.
#[derive(Default)]
pub(crate) struct PlainBytes {
    live: AtomicU64,
    /// High-water mark of `live` since the last trim. Freed memory up to this mark stays in the
    /// heap's cache, and counts for no pool.
    peak: AtomicU64,
}

impl PlainBytes {
    pub(crate) fn allocated(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if live > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(live, Ordering::Relaxed);
        }
    }

    pub(crate) fn freed(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts memory of `cuMemAlloc` that was freed by now as returned to the driver.
    pub(crate) fn trimmed(&self) {
        self.peak.store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// High-water marks that the program can reset, and the limit that a release threshold replaces.
pub(crate) struct Marks {
    /// Soft limit of the heap as it was opened.
    soft_limit: Option<u64>,
    /// Meter since the last reset of the mark of used bytes; `None` before any.
    used: Mutex<Option<Meter>>,
    /// Mark of reserved bytes since its last reset; `None` before any.
    reserved: Mutex<Option<Reserved>>,
}

/// Mark of the heap's reserved bytes since a reset.
#[derive(Clone, Copy)]
struct Reserved {
    /// The heap's own mark at the reset. Once it grows, it is the mark since the reset too.
    before: u64,
    /// Highest number of reserved bytes that a query found since the reset.
    seen: u64,
}

impl Marks {
    pub(crate) fn new(heap: &Heap) -> Marks {
        let soft_limit = heap.limits().soft;
        Marks { soft_limit, used: Mutex::default(), reserved: Mutex::default() }
    }

    /// Begins the mark of used bytes anew.
    pub(crate) fn reset_used(&self, heap: &Heap) {
        *lock(&self.used) = heap.meter().ok();
    }

    /// Begins the mark of reserved bytes anew.
    pub(crate) fn reset_reserved(&self, heap: &Heap) {
        if let Ok(usage) = heap.usage() {
            let mark = Reserved { before: usage.reserved_peak, seen: usage.reserved };
            *lock(&self.reserved) = Some(mark);
        }
    }

    /// Returns the limits of a heap whose pool gets a release threshold.
    pub(crate) fn limits(&self, heap: &Heap, threshold: u64) -> Limits {
        let mut limits = heap.limits();
        limits.soft = match threshold {
            0 | u64::MAX => self.soft_limit,
            bytes => Some(bytes.min(limits.hard.unwrap_or(u64::MAX))),
        };
        limits
    }
}

/// Bytes that the driver maps or frees at least, on all devices with virtual memory so far.
const GRANULE: u64 = 2 << 20;

/// A heap's bytes as figures of a pool.
pub(crate) struct Figures {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

impl Figures {
    /// Reads the figures of the heap without the allocations in no stream's order. The marks are
    /// exact while the bytes of these allocations stay the same.
    pub(crate) fn read(heap: &Heap, plain: &PlainBytes, marks: &Marks) -> Result<Figures, Error> {
        let usage = heap.usage()?;
        let live = plain.live.load(Ordering::Relaxed);
        let cached = usage.reserved.saturating_sub(usage.live_blocks);
        let mut outside = plain.peak.load(Ordering::Relaxed).min(live + cached);
        let live_peak = match &*lock(&marks.used) {
            Some(meter) => meter.read()?.live_peak,
            None => usage.live_peak,
        };
        let reserved_peak = match &mut *lock(&marks.reserved) {
            Some(mark) if usage.reserved_peak == mark.before => {
                mark.seen = mark.seen.max(usage.reserved);
                mark.seen
            }
            _ => usage.reserved_peak,
        };
        let used = usage.live.saturating_sub(live);
        if used == 0 {
            // A trim cannot return the rest of a granule that has one of these allocations.
            outside = outside.next_multiple_of(GRANULE);
        }
        let reserved = usage.reserved.saturating_sub(outside);
        Ok(Figures {
            used,
            used_high: live_peak.saturating_sub(live).max(used),
            reserved,
            reserved_high: reserved_peak.saturating_sub(outside).max(reserved),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
