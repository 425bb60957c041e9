//! Caches whose thread or heap ended, to be used again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cache::ThreadCache;
use crate::fork;

/// Caches that belong to no heap and no thread, to be used again.
static FREE: Mutex<Vec<&'static ThreadCache>> = Mutex::new(Vec::new());

impl ThreadCache {
    /// Gives back what a cache of this thread keeps, because the thread ends or needs its place.
    /// Blocks that came from it may live on.
    pub(crate) fn end(&'static self) {
        // Before any lock: a thread of the parent may have held it.
        if self.is_forked() {
            return;
        }
        // The heap is not held here: were this the last to hold it, it would end on a thread that is
        // at its end, where a driver may have nothing left of what it keeps for a thread.
        if self.with_heap(|heap| heap.close_cache(self)) != Some(true) {
            self.abandon();
            free(self);
        }
    }
}

/// A cache that nobody uses.
pub(crate) fn unused() -> &'static ThreadCache {
    let taken = lock_free().and_then(|mut free| {
        let cache = free.pop()?;
        // Before the lock goes: whoever is late with giving it back is not to put it here again.
        cache.adopt();
        Some(cache)
    });
    taken.unwrap_or_else(|| Box::leak(Box::new(ThreadCache::new())))
}

/// The caches of no heap and no thread. In a forked child another thread of the parent may have held
/// the lock: none there, where somebody does.
pub(crate) fn lock_free() -> Option<MutexGuard<'static, Vec<&'static ThreadCache>>> {
    if fork::count() > 0 {
        return FREE.try_lock().ok();
    }
    Some(FREE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Has a cache be used again, if it is of no heap and of no running thread.
pub(crate) fn free(cache: &'static ThreadCache) {
    let Some(mut free) = lock_free() else { return };
    if cache.is_abandoned() && cache.is_free() && !free.iter().any(|one| std::ptr::eq(*one, cache))
    {
        free.push(cache);
    }
}
