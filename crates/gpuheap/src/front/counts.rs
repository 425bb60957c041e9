//! What a thread allocated and freed without the heap's lock.

use super::sync::{AtomicU64, Ordering};
use crate::heap::ledger::Ledger;

/// Counters that their thread alone writes, so that none bounces between threads, and that whoever
/// holds the heap's lock carries over into its ledger. They only grow: what was carried over is kept
/// apart, under that lock.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counts {
    own: Figures,
    /// The most that was live by this thread's account since the last carry, where `seen` is that
    /// carry.
    high: AtomicU64,
    seen: AtomicU64,
    carried: Carried,
}

/// Written with the heap's lock held.
#[derive(Debug)]
#[repr(align(128))]
struct Carried {
    figures: Figures,
    /// Counts carries.
    times: AtomicU64,
}

#[derive(Debug)]
struct Figures {
    allocations: AtomicU64,
    allocated: AtomicU64,
    allocated_blocks: AtomicU64,
    frees: AtomicU64,
    freed: AtomicU64,
    freed_blocks: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts {
            own: Figures::new(),
            high: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            carried: Carried { figures: Figures::new(), times: AtomicU64::new(0) },
        }
    }

    /// An allocation of `bytes` in a block of `block` bytes. For the owner alone.
    pub(crate) fn allocated(&self, bytes: u64, block: u64) {
        let live = self.own.live();
        let times = self.carried.times.load(Ordering::Relaxed);
        add(&self.own.allocations, 1);
        add(&self.own.allocated_blocks, block);
        add(&self.own.allocated, bytes);
        let mut high = self.high.load(Ordering::Relaxed) as i64;
        if self.seen.load(Ordering::Relaxed) != times {
            self.seen.store(times, Ordering::Relaxed);
            high = live;
        }
        self.high.store(high.max(live.wrapping_add(bytes as i64)) as u64, Ordering::Relaxed);
    }

    /// That allocation, or another thread's, came back. For the owner alone.
    pub(crate) fn freed(&self, bytes: u64, block: u64) {
        add(&self.own.frees, 1);
        add(&self.own.freed_blocks, block);
        add(&self.own.freed, bytes);
    }

    /// Carries what is new over into `ledger`. With the heap's lock held.
    pub(crate) fn carry(&self, ledger: &mut Ledger) {
        let (own, carried) = (&self.own, &self.carried);
        let before = carried.figures.live();
        let times = carried.times.load(Ordering::Relaxed);
        if self.seen.load(Ordering::Relaxed) == times {
            let above = (self.high.load(Ordering::Relaxed) as i64).wrapping_sub(before);
            ledger.reached((ledger.live as i64).wrapping_add(above));
        }
        let new = |own: &AtomicU64, carried: &AtomicU64| {
            let now = own.load(Ordering::Relaxed);
            let new = now.wrapping_sub(carried.load(Ordering::Relaxed));
            carried.store(now, Ordering::Relaxed);
            new
        };
        // Frees first: an allocation and its free in between are then counted both or the one alone.
        let freed = Moved {
            count: new(&own.frees, &carried.figures.frees),
            bytes: new(&own.freed, &carried.figures.freed),
            blocks: new(&own.freed_blocks, &carried.figures.freed_blocks),
        };
        let allocated = Moved {
            count: new(&own.allocations, &carried.figures.allocations),
            bytes: new(&own.allocated, &carried.figures.allocated),
            blocks: new(&own.allocated_blocks, &carried.figures.allocated_blocks),
        };
        ledger.moved(allocated, freed);
        carried.times.store(times.wrapping_add(1), Ordering::Relaxed);
    }
}

/// What was allocated, or freed, between two carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// How many allocations.
    pub(crate) count: u64,
    /// Their bytes as requested.
    pub(crate) bytes: u64,
    /// The same with rounding.
    pub(crate) blocks: u64,
}

impl Figures {
    fn new() -> Figures {
        let zero = || AtomicU64::new(0);
        Figures {
            allocations: zero(),
            allocated: zero(),
            allocated_blocks: zero(),
            frees: zero(),
            freed: zero(),
            freed_blocks: zero(),
        }
    }

    /// Bytes allocated and not freed; below zero where others' allocations were freed here.
    fn live(&self) -> i64 {
        let freed = self.freed.load(Ordering::Relaxed);
        self.allocated.load(Ordering::Relaxed).wrapping_sub(freed) as i64
    }
}

/// Adds where nobody else writes: no atomic exchange.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_between_two_carries_is_not_lost() {
        let (counts, mut ledger) = (Counts::new(), Ledger::default());
        ledger.allocated(100, 512);
        counts.allocated(50, 512);
        counts.freed(50, 512);
        counts.freed(100, 512);
        counts.carry(&mut ledger);
        assert_eq!((ledger.live, ledger.live_peak, ledger.live_blocks), (0, 150, 0));
        assert_eq!((ledger.allocations, ledger.frees, ledger.live_allocations), (2, 2, 0));
        // An old peak is not counted again on top of what came since.
        ledger.allocated(120, 512);
        counts.carry(&mut ledger);
        assert_eq!((ledger.live, ledger.live_peak), (120, 150));
        counts.allocated(20, 512);
        counts.carry(&mut ledger);
        counts.carry(&mut ledger);
        assert_eq!((ledger.live, ledger.live_peak), (140, 150));
        counts.allocated(20, 512);
        counts.freed(20, 512);
        counts.carry(&mut ledger);
        assert_eq!((ledger.live, ledger.live_peak), (140, 160));
    }

    #[test]
    fn a_free_that_is_carried_before_its_allocation_breaks_nothing() {
        let (one, other, mut ledger) = (Counts::new(), Counts::new(), Ledger::default());
        one.allocated(1000, 1024);
        other.freed(1000, 1024);
        other.carry(&mut ledger);
        ledger.allocated(10, 512);
        one.carry(&mut ledger);
        assert_eq!((ledger.live, ledger.live_blocks, ledger.live_allocations), (10, 512, 1));
        assert!(ledger.live_peak <= 1010, "{}", ledger.live_peak);
    }
}
