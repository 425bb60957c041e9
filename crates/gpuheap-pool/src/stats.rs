//! What a heap has taken, handed out and got back, in bytes and counts.

use std::ops::{Deref, DerefMut};

/// Statistics of one heap. Exact whenever no call of another thread is on its way: a failed call
/// leaves it as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocStats {
    /// Bytes handed out, as requested.
    pub live: u64,
    /// Allocations handed out. Those of zero bytes count here and in no figure of bytes.
    pub live_allocations: u64,
    /// Bytes handed out, each allocation's rounding included.
    pub live_blocks: u64,
    /// The high-water mark of [`live`](AllocStats::live). Exact where one thread uses the heap, on however
    /// many streams. Threads count for themselves between calls that share anything, so with several
    /// of them it may be too high or too low, by no more than all of them may keep for themselves:
    /// `HeapBuilder::thread_cache` for each thread and stream, and a quarter
    /// more.
    pub live_peak: u64,
    /// Bytes taken from the driver and not given back, as asked of it.
    pub taken: u64,
    /// Allocations ever made, those of zero bytes included.
    pub allocations: u64,
    /// Bytes ever handed out, as requested.
    pub allocated_bytes: u64,
    /// Allocations ever freed, those of zero bytes included.
    pub frees: u64,
    /// Bytes ever given back to the driver.
    pub given_back: u64,
    /// Frees during which a driver call failed. Their blocks are accounted for all the same.
    pub failed_frees: u64,
}

impl AllocStats {
    /// Bytes taken and not handed out: cached, pending ones included.
    pub fn cached(&self) -> u64 {
        self.taken.saturating_sub(self.live_blocks)
    }
}

/// Statistics while they are kept, with two figures that only the heap itself asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningStats {
    stats: AllocStats,
    /// The high-water mark of `live` since a region of the program last looked at it.
    recent_peak: u64,
    /// Bytes that the driver called free beyond what it refused, the most that was seen. `None` if it
    /// refused nothing, or has granted memory since though no more was left free.
    pub refused_margin: Option<u64>,
}

impl Deref for RunningStats {
    type Target = AllocStats;

    #[inline]
    fn deref(&self) -> &AllocStats {
        &self.stats
    }
}

impl DerefMut for RunningStats {
    #[inline]
    fn deref_mut(&mut self) -> &mut AllocStats {
        &mut self.stats
    }
}

// Sums wrap: a free may be carried over before the allocation that another thread counted.
impl RunningStats {
    /// An allocation of `bytes` was handed out in a block of `block` bytes.
    #[inline]
    pub fn allocated(&mut self, bytes: u64, block: u64) {
        self.live = self.live.wrapping_add(bytes);
        self.live_blocks = self.live_blocks.wrapping_add(block);
        self.live_allocations = self.live_allocations.wrapping_add(1);
        self.allocations += 1;
        self.allocated_bytes += bytes;
        self.reached(self.live as i64);
    }

    /// That allocation came back.
    #[inline]
    pub fn freed(&mut self, bytes: u64, block: u64) {
        self.live = self.live.wrapping_sub(bytes);
        self.live_blocks = self.live_blocks.wrapping_sub(block);
        self.live_allocations = self.live_allocations.wrapping_sub(1);
        self.frees += 1;
    }

    /// What the high-water mark would be with `bytes` more.
    #[inline]
    pub fn peak_with(&self, bytes: u64) -> u64 {
        self.live_peak.max(self.known_live().saturating_add(bytes))
    }

    /// What a thread counted for itself.
    #[inline]
    pub fn moved(&mut self, moved: Moved) {
        self.reached((self.live as i64).wrapping_add(moved.high as i64));
        self.live = self.live.wrapping_add(moved.live);
        self.live_blocks = self.live_blocks.wrapping_add(moved.live_blocks);
        let more = moved.allocations.wrapping_sub(moved.frees);
        self.live_allocations = self.live_allocations.wrapping_add(more);
        self.allocations += moved.allocations;
        self.allocated_bytes += moved.allocated_bytes;
        self.frees += moved.frees;
    }

    /// So much was live for a moment.
    #[inline]
    fn reached(&mut self, live: i64) {
        let live = u64::try_from(live).unwrap_or(0);
        self.live_peak = self.live_peak.max(live);
        self.recent_peak = self.recent_peak.max(live);
    }

    /// The high-water mark of `live` since this was called last.
    pub fn take_recent_peak(&mut self) -> u64 {
        let live = self.known_live();
        std::mem::replace(&mut self.recent_peak, live).max(live)
    }

    /// Bytes handed out, as far as threads carried over what they counted; zero if so far they carried
    /// over more frees.
    #[inline]
    pub fn known_live(&self) -> u64 {
        u64::try_from(self.live as i64).unwrap_or(0)
    }

    /// The driver gave `bytes`.
    pub fn took(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// The driver has `bytes` again.
    pub fn gave_back(&mut self, bytes: u64) {
        self.taken -= bytes;
        self.given_back += bytes;
    }
}

/// What a thread did without the heap's lock, since that was last carried over. Differences wrap.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Allocations, those of zero bytes included.
    pub allocations: u64,
    /// Bytes of these, as requested.
    pub allocated_bytes: u64,
    /// Frees, those of zero bytes included.
    pub frees: u64,
    /// By how much more is live.
    pub live: u64,
    /// By how much more is live, each allocation's rounding included.
    pub live_blocks: u64,
    /// By how much more was live at the most in between.
    pub high: u64,
}
