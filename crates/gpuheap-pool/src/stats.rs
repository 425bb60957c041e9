//! Statistics of a heap, in bytes and counts.

use std::ops::{Deref, DerefMut};

/// Statistics of one heap. Exact whenever no other thread is in a call of the heap. A failed call
/// leaves them as they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocStats {
    /// Bytes allocated, as requested.
    pub live: u64,
    /// Number of live allocations. An allocation of zero bytes counts here, but adds no bytes.
    pub live_allocations: u64,
    /// Bytes allocated, each allocation's rounding included.
    pub live_blocks: u64,
    /// The high-water mark of [`live`](AllocStats::live). Exact if one thread uses the heap, on
    /// however many streams.
    ///
    /// With several threads it may be too high or too low, because each thread counts for itself
    /// between calls that share anything. The error is at most the bytes that all threads together
    /// may cache: `HeapBuilder::thread_cache` for each thread and stream, and a quarter more.
    pub live_peak: u64,
    /// Bytes taken from the driver and not given back, as requested from the driver.
    pub taken: u64,
    /// Number of allocations ever made, of zero bytes too.
    pub allocations: u64,
    /// Bytes ever allocated, as requested.
    pub allocated_bytes: u64,
    /// Number of allocations ever freed, of zero bytes too.
    pub frees: u64,
    /// Bytes ever given back to the driver.
    pub given_back: u64,
    /// Number of frees during which a driver call failed. Their blocks are accounted for all the
    /// same.
    pub failed_frees: u64,
}

impl AllocStats {
    /// Returns the cached bytes: taken from the driver and not allocated, pending ones included.
    pub fn cached(&self) -> u64 {
        self.taken.saturating_sub(self.live_blocks)
    }
}

/// Running statistics, with two figures that only the heap itself uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningStats {
    stats: AllocStats,
    /// The high-water mark of `live` since it was last taken.
    recent_peak: u64,
    /// Largest excess of the driver's free bytes over a request that it refused, in bytes. `None`
    /// if the driver refused nothing. `None` also after the driver granted memory although no more
    /// was left free.
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

// Sums wrap: a thread may add a free before another thread adds its allocation.
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

    /// Returns the high-water mark that an allocation of `bytes` more would give.
    #[inline]
    pub fn peak_with(&self, bytes: u64) -> u64 {
        self.live_peak.max(self.known_live().saturating_add(bytes))
    }

    /// Adds the counts of a thread.
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

    /// Returns the high-water mark of `live` since the last call, and begins anew.
    pub fn take_recent_peak(&mut self) -> u64 {
        let live = self.known_live();
        std::mem::replace(&mut self.recent_peak, live).max(live)
    }

    /// Returns the live bytes that threads have added so far. Zero if they added more
    /// frees than allocations.
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

/// Counts of a thread's calls without the heap's lock, since they were last added.
/// Differences wrap.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Number of allocations, of zero bytes too.
    pub allocations: u64,
    /// Bytes of these allocations, as requested.
    pub allocated_bytes: u64,
    /// Number of frees, of zero bytes too.
    pub frees: u64,
    /// Increase of live bytes.
    pub live: u64,
    /// Increase of live bytes, each allocation's rounding included.
    pub live_blocks: u64,
    /// Largest increase of live bytes in between.
    pub high: u64,
}
