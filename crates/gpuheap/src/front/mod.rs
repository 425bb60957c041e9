//! The front: what every thread keeps of what it freed, for its next requests on the same stream.
//!
//! ```text
//! thread 1 ─ looked up by heap and stream ─► ThreadCache                  thread 2, short of memory
//!                                              gate ◄────── stops ─────────── │
//! Block ─── comes back to ───────────────────► slots ────── takes out ──────► │
//!                                              counts ───── carries over ───► stats
//! thread 3 ─ frees it, and its own is full ──► inbox
//! ```
//!
//! A request that a cache serves takes no lock, makes no exchange with other threads and calls no
//! driver, and so does a free that a cache keeps. A free goes to the cache of the thread that frees,
//! whichever allocated; what does not fit goes to the [`inbox`] of the cache that it came through, or
//! else to the pool, half a bin at a time. For that the thread goes past the [`lock`] of its store
//! where it keeps taking it, and past the count of references of its heap ([`owner`]).
//!
//! Before a policy takes more from the driver, what the thread keeps goes back to it, and what the
//! others keep where that is much; before a request fails, all of it. The same happens before figures
//! are read: what a thread keeps counts as cached.
//!
//! What a thread keeps is let go of when it ends, when its stream ends, and when the heap ends.
//!
//! | on the host of an H200, ns a pair of 1 KiB | |
//! |---|---|
//! | no front: one lock and the policy | 200 |
//! | places exchanged one by one, caches counted by reference | 57 |
//! | gates, caches that are never destroyed | 27 to 31 |
//!
//! A free on another thread than the allocation takes 43 ns there, and took 187 without the inbox.

mod barrier;
mod cache;
mod counts;
mod gate;
mod inbox;
mod local;
mod lock;
mod owner;
mod slots;
mod sync;
#[cfg(test)]
#[cfg(all(feature = "emulator", not(loom)))]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cache::Opening;
pub(crate) use cache::ThreadCache;
pub(crate) use local::thread as this_thread;
pub(crate) use lock::{Biased, Locked};
pub(crate) use slots::Kept;

use gpuheap_pool::{KeptByThreads, StreamRef};

use crate::device::Context;
use crate::fork;
use crate::heap::Inner;
use crate::heap::store::{State, Store};
use crate::kind::MemoryKind;

/// Caches that belong to no heap and no thread, to be used again.
static FREE: Mutex<Vec<&'static ThreadCache>> = Mutex::new(Vec::new());

impl ThreadCache {
    /// This thread's cache for a store and the stream with the driver's id `stream_id`, if it has
    /// one. It may be closed by now, and then serves and keeps nothing.
    #[inline]
    pub(crate) fn find(store: &Store, stream_id: u64) -> Option<&'static ThreadCache> {
        local::find(store.number, stream_id)
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
        if !local::is_there() {
            return None;
        }
        let own = local::unused(store.number, ThreadCache::is_free);
        let mut state = store.lock();
        // What is freed on a transient stream is fenced at once, so the pool has to see it.
        let stream = stream(&mut state)
            .filter(|stream| !heap.is_closing() && !state.order.is_transient(*stream));
        let Some(stream) = stream else {
            if let Some(own) = own {
                local::insert(store.number, own.stream_id(), own);
            }
            return None;
        };
        let cache = own.or_else(|| state.caches.iter().copied().find(|one| one.is_orphan()));
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
            heap,
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
        if let Some(oldest) = local::insert(number, stream_id, cache) {
            end(oldest);
        }
        Some(cache)
    }
}

/// Makes what caches need of the process; to be called before the first of them. Where threads run
/// already it takes the kernel 7 to 13 ms (H200's host, Linux 6.18), once.
pub(crate) fn prepare() {
    barrier::prepare();
}

/// Notes that the work is completed before all that this thread keeps of a context's streams, or of one
/// of them.
pub(crate) fn completed(context: &Context, stream_id: Option<u64>) {
    local::each(|cache| cache.note_completed(context.number(), stream_id));
}

/// Notes that all that this thread keeps of a stream was freed before `moment`; the stream's work before
/// `completed` is completed.
pub(crate) fn marked(context: &Context, stream_id: u64, moment: u64, completed: u64) {
    local::each(|cache| cache.note_moment(context.number(), stream_id, moment, completed));
}

/// A cache that nobody uses.
fn unused() -> &'static ThreadCache {
    let taken = lock_free().and_then(|mut free| {
        let cache = free.pop()?;
        // Before the lock goes: whoever is late with giving it back is not to put it here again.
        cache.claim();
        Some(cache)
    });
    taken.unwrap_or_else(|| Box::leak(Box::new(ThreadCache::new())))
}

/// The caches of no heap and no thread. In a forked child another thread of the parent may have held
/// the lock: none there, where somebody does.
fn lock_free() -> Option<MutexGuard<'static, Vec<&'static ThreadCache>>> {
    if fork::count() > 0 {
        return FREE.try_lock().ok();
    }
    Some(FREE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Gives back what a cache of this thread keeps, because the thread ends or needs its place. Blocks
/// that came from it may live on.
fn end(cache: &'static ThreadCache) {
    // Before any lock: a thread of the parent may have held it.
    if cache.is_forked() {
        return;
    }
    // The heap is not held here: were this the last to hold it, it would end on a thread that is at
    // its end, where a driver may have nothing left of what it keeps for a thread.
    let is_given = cache.with_heap(|heap| {
        heap.stores().any(|store| {
            let mut state = store.lock();
            let is_here = state.caches.iter().any(|one| std::ptr::eq(*one, cache));
            if is_here {
                state.close(|one| std::ptr::eq(one, cache));
                cache.orphan();
            }
            is_here
        })
    });
    if is_given != Some(true) {
        cache.orphan();
        free(cache);
    }
}

/// Has a cache be used again, if it is of no heap and of no running thread.
fn free(cache: &'static ThreadCache) {
    let Some(mut free) = lock_free() else { return };
    if cache.is_orphan() && cache.is_free() && !free.iter().any(|one| std::ptr::eq(*one, cache)) {
        free.push(cache);
    }
}

/// Lets all caches of a heap go that ended: of which nobody has a handle or a block. After a reset,
/// blocks may be left that point at them; then they are not used again. What kept the heap alive, to be
/// dropped without a lock. With the lock of its handle held, so that nobody asks for it meanwhile.
#[must_use]
pub(crate) fn let_go(heap: &Inner, is_reset: bool) -> Vec<Arc<Inner>> {
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
