//! Computes the figures of the driver's pool from the heap that replaces the pool.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::{Error, Heap, Limits, Meter};

/// Requested bytes of the allocations that `cuMemAlloc` made. They have no stream order, and the
/// driver would not take them from a pool. So a pool's figures exclude these bytes.
#[derive(Default)]
pub(crate) struct PlainBytes {
    live: AtomicU64,
    /// High-water mark of `live` since the last trim. The heap's cache keeps freed memory up to
    /// this mark, so that much reserved memory does not count as memory of the driver's pool.
    peak: AtomicU64,
    /// `true` from a trim until the next stream-ordered allocation. After a trim, only granules
    /// with a live allocation remain. If no stream-ordered memory is live, all of these granules
    /// belong to `cuMemAlloc`, and do not count as memory of the pool.
    is_trimmed: AtomicBool,
}

impl PlainBytes {
    pub(crate) fn allocated(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if live > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(live, Ordering::Relaxed);
        }
    }

    /// Notes a stream-ordered allocation.
    pub(crate) fn pool_grew(&self) {
        if self.is_trimmed.load(Ordering::Relaxed) {
            self.is_trimmed.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn freed(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts all freed memory of `cuMemAlloc` as returned to the driver. Call it after a trim.
    pub(crate) fn trimmed(&self) {
        self.peak.store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_trimmed.store(true, Ordering::Relaxed);
    }
}

/// High-water marks of the heap since the program reset them, and the heap's first soft limit. The
/// heap replaces a pool of the driver. So the program resets the pool's marks, and the pool's
/// release threshold replaces the soft limit.
pub(crate) struct Marks {
    /// Soft limit with which the heap was opened. A release threshold replaces this limit.
    soft_limit: Option<u64>,
    /// Meter of used bytes since the program last reset their high-water mark; `None` before that.
    used: Mutex<Option<Meter>>,
    /// High-water mark of reserved bytes since the last reset; `None` before the first reset.
    reserved: Mutex<Option<Reserved>>,
}

/// High-water mark of the heap's reserved bytes since the program reset the mark.
#[derive(Clone, Copy)]
struct Reserved {
    /// The heap's own high-water mark at the reset. If the heap's mark exceeds this value, the mark
    /// was reached after the reset.
    before: u64,
    /// Highest number of reserved bytes that [`Figures::read`] found since the reset.
    seen: u64,
}

impl Marks {
    pub(crate) fn new(heap: &Heap) -> Marks {
        let soft_limit = heap.limits().soft;
        Marks { soft_limit, used: Mutex::default(), reserved: Mutex::default() }
    }

    /// Resets the mark of used bytes.
    pub(crate) fn reset_used(&self, heap: &Heap) {
        *lock(&self.used) = heap.meter().ok();
    }

    /// Resets the mark of reserved bytes.
    pub(crate) fn reset_reserved(&self, heap: &Heap) {
        if let Ok(usage) = heap.usage() {
            let mark = Reserved { before: usage.reserved_peak, seen: usage.reserved };
            *lock(&self.reserved) = Some(mark);
        }
    }

    /// Returns the heap's limits, with the release `threshold` of the driver's pool as the soft
    /// limit.
    pub(crate) fn limits(&self, heap: &Heap, threshold: u64) -> Limits {
        let mut limits = heap.limits();
        limits.soft = match threshold {
            0 | u64::MAX => self.soft_limit,
            bytes => Some(bytes.min(limits.hard.unwrap_or(u64::MAX))),
        };
        limits
    }
}

/// Figures of a pool in bytes, computed from a heap.
pub(crate) struct Figures {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

impl Figures {
    /// Reads the figures of the heap's stream-ordered allocations. The high-water marks are exact
    /// only while the bytes of other allocations do not change.
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
        if used == 0 && plain.is_trimmed.load(Ordering::Relaxed) {
            outside = usage.reserved;
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
