//! The thread caches of a heap: opened at a thread's first use of a stream, closed at its end.

#[cfg(test)]
#[cfg(all(feature = "emulator", not(loom)))]
mod tests;

use std::any::Any;
use std::sync::Arc;

use gpuheap_pool::{KeptByThreads, StreamRef};

use crate::error::Error;
use crate::heap::Inner;
use crate::heap::lease::Lease;
use crate::heap::store::{State, Store};
use crate::kind::MemoryKind;
use crate::thread_cache::{
    CacheOwner, Opening, Owning, ThreadCache, find, free, insert, is_there, unused, unused_here,
};

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
