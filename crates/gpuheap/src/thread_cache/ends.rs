//! Keeps caches whose thread and heap have ended, so that they can be reused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cache::ThreadCache;
use crate::fork;

/// Caches that have neither a heap nor a thread, and can be reused.
static FREE: Mutex<Vec<&'static ThreadCache>> = Mutex::new(Vec::new());

impl ThreadCache {
    /// Flushes a cache of this thread when the thread ends, or when another cache replaces it in
    /// the thread's list. Blocks that came from the cache may still be live.
    pub(crate) fn end(&'static self) {
        // Checks for a fork before taking any lock, because a thread of the parent may have held
        // it.
        if self.is_forked() {
            return;
        }
        // Takes no reference to the heap. An ending thread could drop the last reference, after the
        // driver destroyed its own state of the thread.
        if !self.heap.lock().as_ref().is_some_and(|heap| heap.close_cache(self)) {
            self.abandon();
            free(self);
        }
    }
}

pub(crate) fn unused() -> &'static ThreadCache {
    let taken = lock_free().and_then(|mut free| {
        let cache = free.pop()?;
        // Adopts the cache with the lock held, so that a concurrent [`free`] cannot add it to the
        // list again.
        cache.adopt();
        Some(cache)
    });
    taken.unwrap_or_else(|| Box::leak(Box::default()))
}

/// Locks the list [`FREE`] of caches that can be reused. Returns `None` in a forked child if
/// another thread of the parent held the lock.
pub(crate) fn lock_free() -> Option<MutexGuard<'static, Vec<&'static ThreadCache>>> {
    if fork::count() > 0 {
        return FREE.try_lock().ok();
    }
    Some(FREE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Makes a cache available for reuse, if it has no heap and no running thread.
pub(crate) fn free(cache: &'static ThreadCache) {
    let Some(mut free) = lock_free() else { return };
    if cache.is_abandoned() && cache.is_free() && !free.iter().any(|one| std::ptr::eq(*one, cache))
    {
        free.push(cache);
    }
}
