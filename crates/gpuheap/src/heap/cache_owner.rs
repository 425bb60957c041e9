//! The thread caches of a heap. A cache is opened at a thread's first use of a stream, and closed
//! at the end of the thread or the stream.

#[cfg(test)]
#[cfg(all(feature = "emulator", not(loom)))]
mod tests;

use std::sync::Arc;

use gpuheap_pool::{CacheRules, RunningStats, StreamRef};

use crate::heap::HeapInner;
use crate::heap::store::StoreState;
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::stream::Stream;
use crate::thread_cache::{
    CacheOwner, CachedBlock, Opening, ThreadCache, find, free, insert, is_available, unused,
    unused_here,
};

/// Threshold, in bytes, for flushing other threads' caches before the pool grows; 1/32 of the
/// reserved memory, if that is more. The caches are flushed if together they hold more than the
/// threshold, and the pool has grown by the threshold since the last flush. Flushing at every
/// growth made sixteen threads evict one another's blocks: 8 million allocations with their frees a
/// second, instead of 100 million.
const FLUSH_ABOVE: u64 = 32 << 20;
const FLUSH_SHARE: u64 = 32;

impl ThreadCache {
    /// Returns this thread's cache for a kind of memory and a stream. `stream_id` is the driver's
    /// id of that stream; `stream` is the stream itself, if the caller has it. Opens a cache if the
    /// thread has none. Returns `None` if this heap has no caches, or no caches for such a stream.
    pub(crate) fn find_or_open(
        heap: &Arc<HeapInner>,
        kind: MemoryKind,
        stream_id: u64,
        stream: Option<&Stream>,
    ) -> Option<&'static ThreadCache> {
        let store = heap.store(kind);
        if let Some(found) = find(store.number, stream_id)
            && !found.is_closed()
        {
            return Some(found);
        }
        let (limit, rules) = (store.cache_limit?, CacheRules::for_pool(store.pool)?);
        if !is_available() || stream.is_some_and(Stream::is_transient) {
            return None;
        }
        let own = unused_here(store.number, ThreadCache::is_free);
        let mut state = store.lock();
        // A transient stream may end unannounced, so its frees are fenced at once. Blocks in a
        // thread's cache have no fence, so such a stream gets no cache.
        let stream = match stream {
            Some(stream) => Some(state.stream(stream)),
            None => state.order.registered(stream_id),
        };
        let stream =
            stream.filter(|stream| !heap.is_closing() && !state.order.is_transient(*stream));
        let Some(stream) = stream else {
            if let Some(own) = own {
                insert(store.number, own.stream_id(), own);
            }
            return None;
        };
        let cache = own.or_else(|| state.caches.iter().copied().find(|one| one.is_abandoned()));
        let cache = cache.unwrap_or_else(unused);
        if !state.caches.iter().any(|one| std::ptr::eq(*one, cache)) {
            state.caches.push(cache);
        }
        let limit = if state.is_above_soft_limit { 0 } else { limit };
        let is_plain = heap.is_plain();
        let small = if state.is_shared { rules.small_shared } else { rules.small };
        let number = store.number;
        cache.share_counts_with(&state.caches);
        cache.open(&Opening {
            heap: heap.clone(),
            context: heap.context.number(),
            store: number,
            stream,
            stream_id,
            rules,
            small,
            is_plain,
            limit,
        });
        state.note_threads(rules.small_shared);
        drop(state);
        if let Some(oldest) = insert(number, stream_id, cache) {
            oldest.end();
        }
        Some(cache)
    }
}

impl CacheOwner for HeapInner {
    fn close_cache(&self, cache: &'static ThreadCache) -> bool {
        self.stores().any(|store| {
            let mut state = store.lock();
            let is_here = state.caches.iter().any(|one| std::ptr::eq(*one, cache));
            if is_here {
                state.close(|one| std::ptr::eq(one, cache));
                cache.abandon();
            }
            is_here
        })
    }
}

impl StoreState {
    /// Flushes the caches of all threads to the pool, and merges their counts. Makes no driver
    /// call.
    pub(crate) fn flush_caches(&mut self) {
        self.flush_matching(|_| true, false);
    }

    /// Flushes this thread's caches before the pool takes more from the driver. Also flushes other
    /// threads' caches, if they hold much.
    pub(super) fn flush_before_growth(&mut self) {
        let cached: u64 =
            self.caches.iter().filter(|cache| !cache.is_mine()).map(|cache| cache.cached()).sum();
        let much = (self.stats.taken / FLUSH_SHARE).max(FLUSH_ABOVE);
        let of_all = cached > much && self.stats.taken >= self.taken_at_flush.saturating_add(much);
        if of_all || self.stats.taken < self.taken_at_flush {
            self.taken_at_flush = self.stats.taken;
        }
        self.flush_matching(|cache| of_all || cache.is_mine(), false);
    }

    /// Returns this thread's large blocks to the pool before the pool places a large block. The
    /// pool then has the same free memory as without thread caches, and a program that repeats
    /// itself gets the same addresses again. Before this was done, one cached large block for each
    /// stream made the benchmark `serve_threads` take three times as long.
    pub(super) fn evict_large(&mut self, bytes: u64) {
        for at in 0..self.caches.len() {
            let cache = self.caches[at];
            if cache.is_mine() && cache.has_large() && cache.is_large(bytes) {
                self.move_to_policy(cache.stream(), |_, moved| {
                    cache.take_large(|block| moved.push(block))
                });
            }
        }
    }

    /// Once a second thread has a cache, makes all caches keep several blocks of each size up to
    /// `small` bytes.
    pub(crate) fn note_threads(&mut self, small: u64) {
        let threads = || self.caches.iter().map(|cache| cache.thread()).filter(|one| *one != 0);
        let first = threads().next();
        if self.is_shared || threads().all(|thread| Some(thread) == first) {
            return;
        }
        self.is_shared = true;
        self.pause_other_threads();
        self.caches.iter().for_each(|cache| cache.small.set(small));
        self.resume_other_threads();
    }

    /// Closes and flushes caches.
    pub(crate) fn close(&mut self, which: impl Fn(&ThreadCache) -> bool) {
        self.flush_matching(which, true);
    }

    pub(super) fn flush_matching(&mut self, which: impl Fn(&ThreadCache) -> bool, closes: bool) {
        let open = self.caches.iter().filter(|cache| !cache.is_closed());
        // If caches close, stops the threads of all caches: a free by any thread could put a block
        // into a closing cache. Otherwise, stops only the threads of the flushed caches.
        let stopped = open.filter(|cache| closes || which(cache));
        let stopped: Vec<&'static ThreadCache> = stopped.copied().collect();
        stopped.iter().for_each(|cache| cache.stop());
        for cache in stopped.iter().filter(|cache| which(cache)) {
            self.move_to_policy(cache.stream(), |stats, moved| {
                cache.drain(stats, |block| moved.push(block));
            });
            if closes {
                cache.close();
                cache.unshare_counts(&self.caches);
            }
        }
        // Resumes threads only after all caches are closed: a resumed thread could put a block into
        // a cache that is still to be closed.
        if !self.is_alone {
            stopped.iter().for_each(|cache| cache.resume());
        }
    }

    /// Merges the counts of one of this thread's caches into the statistics. If the cache had no
    /// slot for blocks that other threads freed, moves these blocks to the pool.
    #[inline]
    pub(super) fn merge_and_evict(&mut self, cache: &ThreadCache) {
        cache.merge_counts(&mut self.stats);
        if cache.is_crowded() {
            self.move_to_policy(cache.stream(), |_, moved| {
                cache.take_unwanted(|block| moved.push(block))
            });
        }
    }

    /// Merges this thread's counts. The peak of the statistics then includes the thread's memory.
    #[inline]
    pub(crate) fn merge_counts(&mut self) {
        if let Some(cache) = self.caches.iter().find(|one| one.is_mine() && !one.is_closed()) {
            cache.merge_counts(&mut self.stats);
        }
    }

    /// Pauses the other threads until [`resume_other_threads`](StoreState::resume_other_threads).
    /// Flushes and stops their caches, because a free into a cache takes no lock. The next use of
    /// the heap by those threads waits for the lock.
    pub(crate) fn pause_other_threads(&mut self) {
        self.is_alone = true;
        self.flush_caches();
    }

    pub(crate) fn resume_other_threads(&mut self) {
        self.is_alone = false;
        self.caches.iter().for_each(|cache| cache.resume());
    }

    /// Makes room in this thread's cache for a freed block, and stores it there.
    pub(super) fn make_room(&mut self, cache: &ThreadCache, lease: &Lease) -> bool {
        let made = self.move_to_policy(cache.stream(), |_, moved| {
            cache.make_room(lease.block_bytes, |block| moved.push(block))
        });
        made && cache.keep(lease)
    }

    /// Moves blocks from a cache of `stream` to the pool. `take` takes the blocks out of the cache.
    pub(super) fn move_to_policy<R>(
        &mut self,
        stream: StreamRef,
        take: impl FnOnce(&mut RunningStats, &mut Vec<CachedBlock>) -> R,
    ) -> R {
        let mut moved = std::mem::take(&mut self.moved);
        let taken = take(&mut self.stats, &mut moved);
        for CachedBlock { key, bytes, before, .. } in moved.drain(..) {
            self.order.set_frees_completed(self.order.is_completed(stream, before));
            if self.return_to_policy(key, bytes, stream).is_err() {
                self.stats.failed_frees += 1;
            }
        }
        self.order.set_frees_completed(false);
        self.moved = moved;
        taken
    }

    /// Closes and flushes the caches of streams that ended.
    pub(crate) fn close_ended(&mut self) {
        while let Some(ended) = self.order.take_ended_id() {
            self.close(|cache| cache.stream_id() == ended);
        }
    }
}

/// Detaches all caches from a heap that has no clones, and no blocks that can be freed. After a
/// reset, invalid blocks may still point at the caches, so these caches are not reused. Call this
/// function with the lock of the heap's clones held, so that no thread makes a clone meanwhile.
/// Returns the references that kept the heap alive. Drop them after the lock is released.
#[must_use]
pub(crate) fn detach_caches(heap: &HeapInner, is_reset: bool) -> Vec<Arc<dyn CacheOwner>> {
    let mut heaps = Vec::new();
    for store in heap.stores() {
        let caches = std::mem::take(&mut store.lock().caches);
        if is_reset {
            caches.iter().for_each(|cache| cache.mark_spent());
        }
        // `leave_heap` waits for threads that are returning a block or their cache.
        heaps.extend(caches.iter().filter_map(|cache| cache.leave_heap()));
        caches.into_iter().for_each(free);
    }
    heaps
}
