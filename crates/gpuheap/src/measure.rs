//! Counts each thread's allocations and its time in memory management while a
//! [`Meter`](crate::Meter) measures threads. Without such a meter, a request only reads one
//! counter.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Memory use of one thread, summed over all kinds of memory and all heaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadUsage {
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes of these allocations, as requested.
    pub allocated_bytes: u64,
    /// Time spent in allocating and freeing, including reclaim steps and reclaimers.
    pub memory_management: Duration,
}

/// Number of the process's meters that measure a thread. The counter has its own cache lines,
/// because every request reads it.
static METERS: Meters = Meters(AtomicU32::new(0));

#[repr(align(128))]
struct Meters(AtomicU32);

thread_local! {
    /// Memory that this thread used while at least one meter measured threads.
    static USED: Cell<ThreadUsage> = const {
        Cell::new(ThreadUsage { allocations: 0, allocated_bytes: 0, memory_management: Duration::ZERO })
    };
    /// `true` while this thread's time is measured. Reclaim steps call functions that free, and the
    /// time of these functions has to count only once.
    static IS_TIMED: Cell<bool> = const { Cell::new(false) };
}

/// While a `Counting` exists, every thread counts its allocations and measures its time.
pub(crate) struct Counting;

impl Counting {
    pub(crate) fn begin() -> Counting {
        METERS.0.fetch_add(1, Ordering::Relaxed);
        Counting
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        METERS.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn thread_usage() -> ThreadUsage {
    USED.get()
}

/// Counts an allocation of this thread.
#[inline]
pub(crate) fn count_allocation(bytes: u64) {
    if is_metered() {
        count(bytes);
    }
}

#[cold]
fn count(bytes: u64) {
    let mut used = USED.get();
    used.allocations += 1;
    used.allocated_bytes = used.allocated_bytes.saturating_add(bytes);
    USED.set(used);
}

/// Measures this thread's time in memory management until the result is dropped. Returns `None` if
/// no meter measures threads, or if this time is already measured.
#[inline]
pub(crate) fn memory_management() -> Option<Spending> {
    if is_metered() { Spending::begin() } else { None }
}

#[inline]
fn is_metered() -> bool {
    METERS.0.load(Ordering::Relaxed) != 0
}

/// Measurement of time in memory management. It ends when this value is dropped.
pub(crate) struct Spending(Instant);

impl Spending {
    #[cold]
    fn begin() -> Option<Spending> {
        (!IS_TIMED.replace(true)).then(|| Spending(Instant::now()))
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        let mut used = USED.get();
        used.memory_management = used.memory_management.saturating_add(self.0.elapsed());
        USED.set(used);
        IS_TIMED.set(false);
    }
}
