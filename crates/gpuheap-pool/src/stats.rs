//! Statistics of a heap, in bytes and counts.

use std::ops::{Deref, DerefMut};

/// Statistics of one heap. They are exact if no other thread is in a call of the heap. A failed
/// call does not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocStats {
    /// Live bytes, as requested: allocated and not freed.
    pub live: u64,
    /// Number of live allocations. An allocation of zero bytes counts here, but adds no bytes.
    pub live_allocations: u64,
    /// Bytes of the live allocations' blocks: the live bytes and their rounding.
    pub live_blocks: u64,
    /// The high-water mark of [`live`](AllocStats::live). It is exact if one thread uses the heap,
    /// on any number of streams.
    ///
    /// If several threads use the heap, the mark may be too high or too low. The reason is that
    /// each thread counts its calls separately between updates of the shared counts. The error is
    /// at most 1.25 times the bytes that all threads together may cache:
    /// `HeapBuilder::thread_cache` for each thread and stream.
    pub live_peak: u64,
    /// Bytes taken from the driver and not given back, as requested. The driver may round them up.
    pub taken: u64,
    /// Number of allocations ever made, also of zero bytes.
    pub allocations: u64,
    /// Bytes ever allocated, as requested.
    pub allocated_bytes: u64,
    /// Number of allocations ever freed, also of zero bytes.
    pub frees: u64,
    /// Bytes ever given back to the driver.
    pub given_back: u64,
    /// Number of frees during which a driver call failed. The other statistics count the blocks of
    /// these frees as freed.
    pub failed_frees: u64,
}

impl AllocStats {
    /// Returns the cached bytes: taken from the driver and not allocated, including pending bytes.
    pub fn cached(&self) -> u64 {
        self.taken.saturating_sub(self.live_blocks)
    }
}

/// Running statistics: [`AllocStats`], and two figures that only the heap itself uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningStats {
    stats: AllocStats,
    /// The high-water mark of `live` since the last call of `take_recent_peak`.
    recent_peak: u64,
    /// Most bytes that a refused request would have left free on the device. `None` if the driver
    /// refused no request, or if a later grant left as many free bytes or fewer.
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

// Sums wrap: a thread may add a free before another thread adds the block's allocation.
impl RunningStats {
    /// Counts an allocation of `bytes` in a block of `block` bytes.
    #[inline]
    pub fn count_allocation(&mut self, bytes: u64, block: u64) {
        self.live = self.live.wrapping_add(bytes);
        self.live_blocks = self.live_blocks.wrapping_add(block);
        self.live_allocations = self.live_allocations.wrapping_add(1);
        self.allocations += 1;
        self.allocated_bytes += bytes;
        self.raise_peaks(self.live as i64);
    }

    /// Counts the free of an allocation of `bytes` in a block of `block` bytes.
    #[inline]
    pub fn count_free(&mut self, bytes: u64, block: u64) {
        self.live = self.live.wrapping_sub(bytes);
        self.live_blocks = self.live_blocks.wrapping_sub(block);
        self.live_allocations = self.live_allocations.wrapping_sub(1);
        self.frees += 1;
    }

    /// Returns the high-water mark of live bytes after another allocation of `bytes`.
    #[inline]
    pub fn peak_with(&self, bytes: u64) -> u64 {
        self.live_peak.max(self.known_live().saturating_add(bytes))
    }

    /// Adds the counts that a thread made without the heap's lock.
    #[inline]
    pub fn add(&mut self, moved: Moved) {
        self.raise_peaks((self.live as i64).wrapping_add(moved.high as i64));
        self.live = self.live.wrapping_add(moved.live);
        self.live_blocks = self.live_blocks.wrapping_add(moved.live_blocks);
        let more = moved.allocations.wrapping_sub(moved.frees);
        self.live_allocations = self.live_allocations.wrapping_add(more);
        self.allocations += moved.allocations;
        self.allocated_bytes += moved.allocated_bytes;
        self.frees += moved.frees;
    }

    /// Raises the high-water marks to `live` bytes.
    #[inline]
    fn raise_peaks(&mut self, live: i64) {
        let live = u64::try_from(live).unwrap_or(0);
        self.live_peak = self.live_peak.max(live);
        self.recent_peak = self.recent_peak.max(live);
    }

    /// Returns the high-water mark of `live` since the last call, and resets it to the live bytes.
    pub fn take_recent_peak(&mut self) -> u64 {
        let live = self.known_live();
        std::mem::replace(&mut self.recent_peak, live).max(live)
    }

    /// Returns the live bytes that threads have added so far. Returns zero if the threads added
    /// more frees than allocations.
    #[inline]
    pub fn known_live(&self) -> u64 {
        u64::try_from(self.live as i64).unwrap_or(0)
    }

    /// Counts `bytes` as taken from the driver.
    pub fn count_taken(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Counts `bytes` as given back to the driver.
    pub fn count_given_back(&mut self, bytes: u64) {
        self.taken -= bytes;
        self.given_back += bytes;
    }
}

/// Counts of the calls that a thread made without the heap's lock. The thread adds the counts to
/// the heap's counts and starts again from zero. A negative increase wraps.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Number of allocations, also of zero bytes.
    pub allocations: u64,
    /// Bytes of these allocations, as requested.
    pub allocated_bytes: u64,
    /// Number of frees, also of zero bytes.
    pub frees: u64,
    /// Increase of live bytes.
    pub live: u64,
    /// Increase of the bytes of live blocks: the live bytes and their rounding.
    pub live_blocks: u64,
    /// Largest increase of live bytes since the thread last added its counts to the heap's counts.
    pub high: u64,
}
