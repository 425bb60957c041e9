//! The front: what every thread keeps of what it freed, for its next requests on the same stream.
//!
//! ```text
//! thread 1 ── Block ──► ThreadCache ──► heap          thread 2
//!    │                       │                           │
//!    └─ looked up by heap    └► Cache: slots, counts ◄───┘ takes out when it runs short,
//!       and stream                    ▲                    with the store's lock held
//!                                     └── the store's list of all caches
//! ```
//!
//! A request that a cache serves takes no lock and calls no driver. Its cost is that of three
//! exchanges on cache lines of the thread's own: the block's place, and the count of who holds the
//! [`ThreadCache`], up and down. A free goes to the cache of the thread that frees, whichever
//! allocated; what does not fit goes to the pool, half a bin at a time.
//!
//! Before a policy takes more from the driver, or waits for another stream, everything that all
//! threads keep goes back to it, so that nothing is stranded here. The same happens before figures
//! are read: what a thread keeps counts as cached.
//!
//! What a thread keeps is let go of when it ends, when its stream ends, and when the heap ends.

mod cache;
mod counts;
mod local;
mod slots;
mod sync;

use std::sync::{Arc, PoisonError};

pub(crate) use cache::Cache;
pub(crate) use counts::Moved;
pub(crate) use slots::Kept;

use crate::heap::Inner;
use crate::heap::order::StreamRef;
use crate::heap::store::{State, Store};
use crate::kind::MemoryKind;

/// One thread's cache for one stream, with what keeps the heap alive. Blocks hold it and not the
/// heap, whose count of holders would bounce between threads.
///
/// It is kept by the heap's handles and by blocks, not by the thread: a heap ends with its last
/// handle and its last block, and not when threads end that once used it.
#[repr(align(128))]
pub(crate) struct ThreadCache {
    inner: Arc<Inner>,
    kind: MemoryKind,
    cache: Arc<Cache>,
}

impl ThreadCache {
    /// This thread's cache for a kind of memory and the stream with the driver's id `stream_id`;
    /// made if there is none, `stream` then says which one it is. None where this heap has no
    /// caches, or nobody is left who could ask it for memory.
    #[inline]
    pub(crate) fn of(
        inner: &Arc<Inner>,
        kind: MemoryKind,
        stream_id: u64,
        stream: impl FnOnce(&mut State) -> Option<StreamRef>,
    ) -> Option<Arc<ThreadCache>> {
        let store = inner.store(kind);
        store.keeps()?;
        match local::find(store.number, stream_id) {
            Some(found) => Some(found),
            None => ThreadCache::open(inner, kind, stream_id, stream),
        }
    }

    /// The cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Whether it is the running thread's own, and of a stream that did not end.
    pub(crate) fn is_mine(&self) -> bool {
        self.cache.thread == local::thread() && !self.cache.is_closed()
    }

    /// The heap.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    #[cold]
    fn open(
        inner: &Arc<Inner>,
        kind: MemoryKind,
        stream_id: u64,
        stream: impl FnOnce(&mut State) -> Option<StreamRef>,
    ) -> Option<Arc<ThreadCache>> {
        let store = inner.store(kind);
        if !local::is_there() {
            return None;
        }
        let handle = inner.handle()?;
        let cache = {
            let mut state = store.lock();
            let stream = stream(&mut state)?;
            let cache = Cache::new(local::thread(), stream, stream_id, store.keeps()?);
            let cache = Arc::new(cache);
            state.caches.push(cache.clone());
            cache
        };
        let opened = Arc::new(ThreadCache { inner: inner.clone(), kind, cache });
        handle.keep(&opened);
        let replaced = local::insert(store.number, stream_id, &opened);
        if let Some(replaced) = replaced {
            replaced.end();
        }
        Some(opened)
    }

    /// Gives back what it keeps, because its thread ends or has another one instead. Blocks that it
    /// handed out may live on.
    fn end(&self) {
        if self.inner.context.check_alive().is_err() {
            return;
        }
        self.cache.close();
        self.store().lock().drain(&self.cache);
        if let Some(handle) = self.inner.handle() {
            handle.let_go(self);
        }
    }

    fn store(&self) -> &Store {
        self.inner.store(self.kind)
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        // Before the lock: in a forked child a thread of the parent may have held it.
        if self.inner.context.check_alive().is_err() {
            return;
        }
        let mut state = self.store().lock();
        state.drain(&self.cache);
        state.caches.retain(|cache| !Arc::ptr_eq(cache, &self.cache));
    }
}

/// What the clones of a heap hold together: the heap, and its threads' caches.
pub(crate) struct Handle {
    inner: Arc<Inner>,
    caches: std::sync::Mutex<Vec<Arc<ThreadCache>>>,
}

impl Handle {
    pub(crate) fn new(inner: Arc<Inner>) -> Handle {
        Handle { inner, caches: std::sync::Mutex::default() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    fn keep(&self, cache: &Arc<ThreadCache>) {
        let ended: Vec<_> = {
            let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            caches.push(cache.clone());
            caches.extract_if(.., |cache| cache.cache.is_closed()).collect()
        };
        // Without that lock: they take the store's.
        drop(ended);
    }

    fn let_go(&self, cache: &ThreadCache) {
        let ended: Vec<_> = {
            let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            caches.extract_if(.., |other| std::ptr::eq(Arc::as_ptr(other), cache)).collect()
        };
        drop(ended);
    }
}

impl std::ops::Deref for Handle {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}
