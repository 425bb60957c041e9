//! Caches of the current thread.

use std::cell::{Cell, RefCell};

use super::cache::ThreadCache;

/// Maximum number of pairs of heap and stream that have a cache on one thread. A further pair
/// replaces the oldest pair.
const MOST: usize = 64;

thread_local! {
    /// The cache that was found last. It has no destructor, so access is cheap.
    static LAST: Cell<Option<CacheEntry>> = const { Cell::new(None) };
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { entries: Vec::new() }) };
}

/// Caches of one thread, oldest first.
struct Local {
    entries: Vec<CacheEntry>,
}

#[derive(Clone, Copy)]
struct CacheEntry {
    store: u64,
    stream: u64,
    cache: &'static ThreadCache,
}

/// Returns this thread's cache for the store and the stream with these identifiers. The cache may
/// be closed. Returns `None` if there is no such cache, or if the thread is ending.
#[inline]
pub(crate) fn find(store: u64, stream: u64) -> Option<&'static ThreadCache> {
    match LAST.get() {
        Some(last) if last.store == store && last.stream == stream => Some(last.cache),
        _ => search(store, stream),
    }
}

fn search(store: u64, stream: u64) -> Option<&'static ThreadCache> {
    let found = LOCAL.try_with(|local| {
        let local = local.try_borrow().ok()?;
        let is_it = |entry: &&CacheEntry| entry.store == store && entry.stream == stream;
        local.entries.iter().find(is_it).copied()
    });
    let entry = found.ok().flatten()?;
    LAST.set(Some(entry));
    Some(entry.cache)
}

pub(crate) fn each(mut visit: impl FnMut(&'static ThreadCache)) {
    let _ = LOCAL.try_with(|local| {
        if let Ok(local) = local.try_borrow() {
            local.entries.iter().for_each(|entry| visit(entry.cache));
        }
    });
}

/// Returns `true` if this thread can have caches. Returns `false` while its thread-local variables
/// are destroyed, and in a signal handler that interrupted an access.
pub(crate) fn is_available() -> bool {
    LOCAL.try_with(|local| local.try_borrow_mut().is_ok()).unwrap_or(false)
}

/// Removes an unused cache from this thread's list and returns it: a closed cache of `store`, or
/// else a cache for which `is_free` returns `true`.
pub(crate) fn unused(
    store: u64,
    is_free: impl Fn(&ThreadCache) -> bool,
) -> Option<&'static ThreadCache> {
    let unused = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        let of_store = |entry: &CacheEntry| entry.store == store && entry.cache.is_closed();
        let at = local.entries.iter().position(of_store);
        let at = at.or_else(|| local.entries.iter().position(|entry| is_free(entry.cache)))?;
        LAST.set(None);
        Some(local.entries.remove(at).cache)
    });
    unused.ok().flatten()
}

/// Adds a cache. Returns the cache that it replaces, if any.
pub(crate) fn insert(
    store: u64,
    stream: u64,
    cache: &'static ThreadCache,
) -> Option<&'static ThreadCache> {
    let replaced = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        let is_full = local.entries.len() >= MOST;
        let oldest = is_full.then(|| local.entries.remove(0).cache);
        local.entries.push(CacheEntry { store, stream, cache });
        LAST.set(None);
        oldest
    });
    replaced.ok().flatten()
}

impl Drop for Local {
    fn drop(&mut self) {
        LAST.set(None);
        self.entries.drain(..).for_each(|entry| entry.cache.end());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn full_list_replaces_oldest_cache() {
        let caches = [(); MOST + 2].map(|()| &*Box::leak(Box::<ThreadCache>::default()));
        let insert = |at: usize| insert(1, at as u64, caches[at]);
        assert!((0..MOST).all(|at| insert(at).is_none()));
        assert!(unused(2, |cache| std::ptr::eq(cache, caches[0])).is_some());
        assert!(insert(MOST).is_none());
        assert!(insert(MOST + 1).is_some_and(|cache| std::ptr::eq(cache, caches[1])));
        LOCAL.with(|local| local.borrow_mut().entries.clear());
        caches.into_iter().for_each(crate::thread_cache::free);
    }
}
