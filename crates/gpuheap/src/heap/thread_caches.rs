//! The thread caches of a heap: opened at a thread's first use of a stream, closed at its end.

#[cfg(test)]
#[cfg(all(feature = "emulator", not(loom)))]
mod tests;

use std::any::Any;
use std::sync::Arc;

use gpuheap_pool::{KeptByThreads, RunningStats, StreamRef};

use crate::error::Error;
use crate::heap::Inner;
use crate::heap::lease::Lease;
use crate::heap::store::{State, Store};
use crate::kind::MemoryKind;
use crate::thread_cache::{
    CacheOwner, Kept, Opening, Owning, ThreadCache, find, free, insert, is_there, unused,
    unused_here,
};

/// So much may other threads keep, or such a part of all that is taken, while more is taken, and by so
/// much has what is taken to grow before they are asked again. Asked at every growth, sixteen threads
/// had each other start over again and again: 8 million pairs a second, and not 100.
const KEPT: u64 = 32 << 20;
const KEPT_SHARE: u64 = 32;

impl ThreadCache {
    /// This thread's cache for a store and the stream with the driver's id `stream_id`, if it has
    /// one. It may be closed by now, and then serves and keeps nothing.
    #[inline]
    pub(crate) fn find(store: &Store, stream_id: u64) -> Option<&'static ThreadCache> {
        find(store.number, stream_id)
    }

    /// This thread's cache for a kind of memory and the stream with the driver's id `stream_id`;
    /// opened if there is none, `stream` then says which one it is. None where this heap has no
    /// caches.
    pub(crate) fn of(
        heap: &Arc<Inner>,
        kind: MemoryKind,
        stream_id: u64,
        stream: impl FnOnce(&mut State) -> Option<StreamRef>,
    ) -> Option<&'static ThreadCache> {
        let store = heap.store(kind);
        let (most, kept) = (store.keeps()?, KeptByThreads::of(store.pool)?);
        if let Some(found) = ThreadCache::find(store, stream_id)
            && !found.is_closed()
        {
            return Some(found);
        }
        if !is_there() {
            return None;
        }
        let own = unused_here(store.number, ThreadCache::is_free);
        let mut state = store.lock();
        // What is freed on a transient stream is fenced at once, so the pool has to see it.
        let stream = stream(&mut state)
            .filter(|stream| !heap.is_closing() && !state.order.is_transient(*stream));
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
        let most = if state.is_above_soft_limit { 0 } else { most };
        let is_plain = heap.is_plain();
        let small = if state.is_shared { kept.small_shared } else { kept.small };
        let number = store.number;
        cache.join(&state.caches);
        cache.open(&Opening {
            heap: heap.clone(),
            context: heap.context.number(),
            store: number,
            stream,
            stream_id,
            kept,
            small,
            is_plain,
            most,
        });
        state.note_threads(kept.small_shared);
        drop(state);
        if let Some(oldest) = insert(number, stream_id, cache) {
            oldest.end();
        }
        Some(cache)
    }
}

impl CacheOwner for Inner {
    #[inline]
    fn free_unkept(&self, lease: Lease, own: &'static ThreadCache) -> Result<(), Error> {
        Inner::free_unkept(self, lease, own)
    }

    #[inline]
    fn is_closing(&self) -> bool {
        Inner::is_closing(self)
    }

    fn end_if_over(&self) {
        Inner::end_if_over(self);
    }

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

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl State {
    /// Has the policy take everything back that threads keep, and carries over what they counted.
    /// Makes no driver call.
    pub(crate) fn flush_caches(&mut self) {
        self.flush_matching(|_| true, false);
    }

    /// The same before more is taken from the driver: of this thread all, of the others what they
    /// keep where it matters.
    pub(super) fn flush_before_growth(&mut self) {
        let kept: u64 =
            self.caches.iter().filter(|cache| !cache.is_mine()).map(|cache| cache.held()).sum();
        let much = (self.stats.taken / KEPT_SHARE).max(KEPT);
        let of_all = kept > much && self.stats.taken >= self.gathered.saturating_add(much);
        if of_all || self.stats.taken < self.gathered {
            self.gathered = self.stats.taken;
        }
        self.flush_matching(|cache| of_all || cache.is_mine(), false);
    }

    /// Has the policy take this thread's large blocks back before it places a large one: it then
    /// finds free what would be free without the thread caches, and a program that repeats itself gets the
    /// places that it had. Kept past such a request, one large block a stream cost `serve_threads`
    /// three times the time, as requests found their places taken.
    pub(super) fn give_large(&mut self, bytes: u64) {
        for at in 0..self.caches.len() {
            let cache = self.caches[at];
            if cache.is_mine() && cache.has_large() && cache.is_large(bytes) {
                self.give_all(cache.stream(), |_, kept| cache.take_large(|block| kept.push(block)));
            }
        }
    }

    /// Has caches keep blocks up to `small` from the second thread on.
    pub(crate) fn note_threads(&mut self, small: u64) {
        let threads = || self.caches.iter().map(|cache| cache.thread()).filter(|one| *one != 0);
        let first = threads().next();
        if self.is_shared || threads().all(|thread| Some(thread) == first) {
            return;
        }
        self.is_shared = true;
        self.pause_other_threads();
        self.caches.iter().for_each(|cache| cache.set_small(small));
        self.resume_other_threads();
    }

    /// Closes and empties caches.
    pub(crate) fn close(&mut self, which: impl Fn(&ThreadCache) -> bool) {
        self.flush_matching(which, true);
    }

    pub(super) fn flush_matching(&mut self, which: impl Fn(&ThreadCache) -> bool, closes: bool) {
        let open = self.caches.iter().filter(|cache| !cache.is_closed());
        // Nobody is to put anything into a cache that closes, so everybody has to be out of their own.
        let stopped = open.filter(|cache| closes || which(cache));
        let stopped: Vec<&'static ThreadCache> = stopped.copied().collect();
        ThreadCache::stop_all(stopped.iter().copied());
        stopped.iter().for_each(|cache| cache.wait());
        for cache in stopped.iter().filter(|cache| which(cache)) {
            self.give_all(cache.stream(), |stats, kept| {
                cache.drain(stats, |block| kept.push(block));
            });
            if closes {
                cache.close();
                cache.part(&self.caches);
            }
        }
        // Only now: one that goes on could put something into one that is not closed yet.
        if !self.is_alone {
            stopped.iter().for_each(|cache| cache.resume());
        }
    }

    /// Takes over what a cache of this thread counted, and what it has no place for.
    #[inline]
    pub(super) fn settle(&mut self, cache: &ThreadCache) {
        cache.merge_counts(&mut self.stats);
        if cache.is_crowded() {
            self.give_all(cache.stream(), |_, kept| cache.take_unwanted(|block| kept.push(block)));
        }
    }

    /// Takes over what this thread counted: the peak of the statistics is then that of what it holds.
    #[inline]
    pub(crate) fn merge_counts(&mut self) {
        if let Some(cache) = self.caches.iter().find(|one| one.is_mine() && !one.is_closed()) {
            cache.merge_counts(&mut self.stats);
        }
    }

    /// The account with what this thread counted, and without what the others did since they last needed
    /// the lock. Their caches stay as they are.
    pub(crate) fn merged_stats(&mut self) -> RunningStats {
        self.merge_counts();
        self.stats
    }

    /// Holds off the other threads, whose frees would need no lock, until
    /// [`resume_other_threads`](State::resume_other_threads): what they keep is gathered, and the next thing that each does with
    /// the heap waits for the lock.
    pub(crate) fn pause_other_threads(&mut self) {
        self.is_alone = true;
        self.flush_caches();
    }

    pub(crate) fn resume_other_threads(&mut self) {
        self.is_alone = false;
        self.caches.iter().for_each(|cache| cache.resume());
    }

    /// Makes room in this thread's own cache for what is freed, and has it kept there.
    pub(super) fn make_room(&mut self, cache: &ThreadCache, lease: &Lease) -> bool {
        let made = self.give_all(cache.stream(), |_, kept| {
            cache.make_room(lease.block_bytes, |block| kept.push(block))
        });
        made && cache.keep(lease)
    }

    /// Gives the policy what `take` takes out of a cache of `stream`.
    pub(super) fn give_all<R>(
        &mut self,
        stream: StreamRef,
        take: impl FnOnce(&mut RunningStats, &mut Vec<Kept>) -> R,
    ) -> R {
        let mut kept = std::mem::take(&mut self.kept);
        let taken = take(&mut self.stats, &mut kept);
        for Kept { key, bytes, before, .. } in kept.drain(..) {
            self.order.frees_as_completed(self.order.is_completed(stream, before));
            if self.give(key, bytes, stream).is_err() {
                self.stats.failed_frees += 1;
            }
        }
        self.order.frees_as_completed(false);
        self.kept = kept;
        taken
    }

    /// Closes and empties the caches of streams that ended.
    pub(crate) fn close_ended(&mut self) {
        while let Some(ended) = self.order.next_ended() {
            self.close(|cache| cache.stream_id() == ended);
        }
    }
}

/// Lets all caches of a heap go that ended: of which nobody has a handle or a block. After a reset,
/// blocks may be left that point at them; then they are not used again. What kept the heap alive, to be
/// dropped without a lock. With the lock of its handle held, so that nobody asks for it meanwhile.
#[must_use]
pub(crate) fn let_go(heap: &Inner, is_reset: bool) -> Vec<Arc<Owning>> {
    let mut heaps = Vec::new();
    for store in heap.stores() {
        let caches = std::mem::take(&mut store.lock().caches);
        if is_reset {
            caches.iter().for_each(|cache| cache.spend());
        }
        // Waits for threads that are just giving a block back, or their cache.
        heaps.extend(ThreadCache::leave_heap(&caches));
        caches.into_iter().for_each(free);
    }
    heaps
}

/// What the clones of a heap hold. When the last one goes, so do the caches of its threads.
pub(crate) struct Handle {
    inner: Arc<Inner>,
}

impl Handle {
    pub(crate) fn new(inner: Arc<Inner>) -> Handle {
        Handle { inner }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
        self.inner.say_closed();
    }
}

impl std::ops::Deref for Handle {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        &self.inner
    }
}
