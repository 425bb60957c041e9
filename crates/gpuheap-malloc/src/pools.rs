//! The driver's pools in whose place a heap serves.
//!
//! `cuMemAllocAsync` takes memory from the device's current pool. The drop-in serves it from the
//! heap, so figures of that pool include the heap's, and a trim of that pool flushes the heap.
//! Memory that the program takes from the pool by its handle stays with the driver, and is in the
//! driver's own figures.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::{Error, Heap, Meter};
use gpuheap_driver::{CUmemPool_attribute as Attribute, CUmemoryPool, CUresult};

use crate::args::Out;
use crate::devices::{self, Served};
use crate::real;

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

    fn trimmed(&self) {
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
}

/// Bytes that the driver maps or frees at least, on all devices with virtual memory so far.
const GRANULE: u64 = 2 << 20;

/// A heap's bytes as figures of a pool.
struct Figures {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

impl Served {
    /// Reads the figures of the heap without the allocations in no stream's order. The marks are
    /// exact while the bytes of these allocations stay the same.
    fn figures(&self) -> Result<Figures, Error> {
        let usage = self.heap().usage()?;
        let live = self.plain_bytes.live.load(Ordering::Relaxed);
        let cached = usage.reserved.saturating_sub(usage.live_blocks);
        let mut plain = self.plain_bytes.peak.load(Ordering::Relaxed).min(live + cached);
        let live_peak = match &*lock(&self.marks.used) {
            Some(meter) => meter.read()?.live_peak,
            None => usage.live_peak,
        };
        let reserved_peak = match &mut *lock(&self.marks.reserved) {
            Some(mark) if usage.reserved_peak == mark.before => {
                mark.seen = mark.seen.max(usage.reserved);
                mark.seen
            }
            _ => usage.reserved_peak,
        };
        let used = usage.live.saturating_sub(live);
        if used == 0 {
            // A trim cannot return the rest of a granule that has one of these allocations.
            plain = plain.next_multiple_of(GRANULE);
        }
        let reserved = usage.reserved.saturating_sub(plain);
        Ok(Figures {
            used,
            used_high: live_peak.saturating_sub(live).max(used),
            reserved,
            reserved_high: reserved_peak.saturating_sub(plain).max(reserved),
        })
    }
}

/// Adds the heap's bytes to a figure of a pool, which the driver wrote to `value`.
pub(crate) fn add(pool: CUmemoryPool, attribute: Attribute, value: Out<c_void>) {
    let figure: fn(&Figures) -> u64 = match attribute {
        Attribute::USED_MEM_CURRENT => |figures| figures.used,
        Attribute::USED_MEM_HIGH => |figures| figures.used_high,
        Attribute::RESERVED_MEM_CURRENT => |figures| figures.reserved,
        Attribute::RESERVED_MEM_HIGH => |figures| figures.reserved_high,
        _ => return,
    };
    let Some(Ok(figures)) = served(pool).map(Served::figures) else { return };
    let value = value.cast::<u64>();
    let _ = value.get().and_then(|bytes| value.write(bytes.saturating_add(figure(&figures))));
}

/// Changes an attribute of the heap in the place of a pool: resets a mark, or takes a release
/// threshold as the soft limit. A threshold of 0, the driver's default, and one without bound leave
/// the limit that the heap was opened with. The driver has taken the attribute from `value`.
pub(crate) fn set(pool: CUmemoryPool, attribute: Attribute, value: Out<c_void>) {
    let Some(served) = served(pool) else { return };
    let (heap, marks) = (served.heap(), &served.marks);
    match attribute {
        Attribute::USED_MEM_HIGH => *lock(&marks.used) = heap.meter().ok(),
        Attribute::RESERVED_MEM_HIGH => {
            if let Ok(usage) = heap.usage() {
                let mark = Reserved { before: usage.reserved_peak, seen: usage.reserved };
                *lock(&marks.reserved) = Some(mark);
            }
        }
        Attribute::RELEASE_THRESHOLD => {
            let Ok(threshold) = value.cast::<u64>().get() else { return };
            let mut limits = heap.limits();
            limits.soft = match threshold {
                0 | u64::MAX => marks.soft_limit,
                bytes => Some(bytes.min(limits.hard.unwrap_or(u64::MAX))),
            };
            // The driver has taken the threshold, so a failure to give memory back is not the
            // program's.
            let _ = heap.set_limits(limits);
        }
        _ => {}
    }
}

/// Returns the heap's cached memory above `keep` bytes to the driver, in the place of a pool that
/// the driver trimmed.
pub(crate) fn trim(pool: CUmemoryPool, keep: usize) -> CUresult {
    let Some(served) = served(pool) else { return CUresult::SUCCESS };
    let trimmed = match keep as u64 {
        0 => served.heap().reclaim_all(),
        keep => served.figures().and_then(|figures| match figures.reserved.saturating_sub(keep) {
            0 => Ok(0),
            above => served.heap().reclaim(above),
        }),
    };
    served.plain_bytes.trimmed();
    match trimmed {
        Ok(_) => CUresult::SUCCESS,
        Err(error) => error.driver().map_or(CUresult::ERROR_UNKNOWN, |error| error.code()),
    }
}

/// Returns the heap that serves in the place of a pool: the pool is the current one of its device.
fn served(pool: CUmemoryPool) -> Option<&'static Served> {
    devices::all().find(|served| {
        let (code, current) = Out::local(CUmemoryPool::NULL, |current| {
            real::cuDeviceGetMemPool(current, served.device().ordinal())
        });
        code.is_success() && current == pool
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
