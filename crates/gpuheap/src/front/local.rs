//! Which caches this thread has.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::ThreadCache;

/// So many heaps and streams may have a cache on one thread. One more replaces the oldest.
const MOST: usize = 64;

thread_local! {
    /// This thread among all that there ever were; zero before it is asked for.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { entries: Vec::new(), last: 0 }) };
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// The caches of one thread. They are kept by their heaps, and looked up here.
struct Local {
    entries: Vec<Entry>,
    /// Where the last one was found.
    last: usize,
}

struct Entry {
    store: u64,
    stream: u64,
    cache: Weak<ThreadCache>,
}

/// The number of this thread, which no other one ever has.
#[inline]
pub(super) fn thread() -> u64 {
    let number = NUMBER.get();
    if number != 0 { number } else { new_number() }
}

#[cold]
fn new_number() -> u64 {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
    NUMBER.set(number);
    number
}

/// This thread's cache for a store and a stream, by their numbers. None where there is none, or
/// where the thread is at its end.
#[inline]
pub(super) fn find(store: u64, stream: u64) -> Option<Arc<ThreadCache>> {
    let found = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        let last = local.last;
        match local.entries.get(last) {
            Some(entry) if entry.store == store && entry.stream == stream => entry.cache.upgrade(),
            _ => local.search(store, stream),
        }
    });
    found.ok().flatten().filter(|cache| !cache.cache.is_closed())
}

/// Whether this thread can keep caches: not at its very end.
pub(super) fn is_there() -> bool {
    LOCAL.try_with(|_| ()).is_ok()
}

/// Remembers a cache. Returns the one that had to make place for it.
pub(super) fn insert(store: u64, stream: u64, cache: &Arc<ThreadCache>) -> Option<Arc<ThreadCache>> {
    let inserted = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        // Those of heaps that ended, of streams that ended, and the one that this one replaces.
        let is_used = |entry: &Entry| {
            (entry.store, entry.stream) != (store, stream)
                && entry.cache.upgrade().is_some_and(|cache| !cache.cache.is_closed())
        };
        let old = if local.entries.len() < MOST {
            None
        } else {
            local.entries.retain(is_used);
            (local.entries.len() >= MOST).then(|| local.entries.remove(0))
        };
        local.entries.push(Entry { store, stream, cache: Arc::downgrade(cache) });
        local.last = local.entries.len() - 1;
        old
    });
    inserted.ok().flatten().and_then(|entry| entry.cache.upgrade())
}

impl Local {
    fn search(&mut self, store: u64, stream: u64) -> Option<Arc<ThreadCache>> {
        // The newest first: an older one of the same numbers is closed.
        let found = |entry: &Entry| entry.store == store && entry.stream == stream;
        let at = self.entries.iter().rposition(found)?;
        self.last = at;
        self.entries[at].cache.upgrade()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for entry in self.entries.drain(..) {
            if let Some(cache) = entry.cache.upgrade() {
                cache.end();
            }
        }
    }
}
