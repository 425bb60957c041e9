//! A shared reference from a cache to its heap, for threads that free.
//!
//! A reference count that every free incremented and decremented would cost 22 ns for two
//! exchanges, and as much again for the lock that guards it. Instead, the cache's thread enters a
//! gate. A thread that removes the heap stops the gate and waits.

use std::ptr;
use std::sync::{Arc, PoisonError};

use super::barrier;
use super::gate::Gate;
use super::shim::{AtomicPtr, Mutex, MutexGuard, Ordering};

/// A value that several threads share and one of them reads often.
#[derive(Debug)]
pub(crate) struct Owner<T> {
    gate: Gate,
    /// Pointer to the value in `kept`, while the gate is open.
    there: AtomicPtr<T>,
    kept: Mutex<Option<Arc<T>>>,
}

/// Leaves a gate when dropped.
struct Leaves<'a>(&'a Gate);

impl Drop for Leaves<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl<T> Owner<T> {
    pub(crate) fn new() -> Owner<T> {
        Owner { gate: Gate::new(), there: AtomicPtr::new(ptr::null_mut()), kept: Mutex::new(None) }
    }

    /// Calls `work` with the value, if there is one. The value stays until `work` returns.
    ///
    /// # Safety
    ///
    /// One thread at a time calls this, and `work` does not call it.
    #[inline]
    pub(crate) unsafe fn with<R>(&self, work: impl FnOnce(&T) -> R) -> Option<R> {
        if !self.gate.enter() {
            return None;
        }
        let _leaves = Leaves(&self.gate);
        // SAFETY: `set` stores the pointer and keeps the value in `kept`. `take` removes the value
        // from there only after it stopped the gate and waited until no thread is in.
        let there = unsafe { self.there.load(Ordering::Relaxed).as_ref() };
        there.map(work)
    }

    /// Returns the value to any thread, at the cost of a lock.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.lock().clone()
    }

    /// Calls `work` with the value, holding the lock.
    pub(crate) fn locked<R>(&self, work: impl FnOnce(&T) -> R) -> Option<R> {
        self.lock().as_deref().map(work)
    }

    pub(crate) fn is_none(&self) -> bool {
        self.lock().is_none()
    }

    /// Stores a value, unless a value is stored already.
    pub(crate) fn set(&self, value: &Arc<T>) {
        let mut kept = self.lock();
        let kept = kept.get_or_insert_with(|| value.clone());
        self.there.store(Arc::as_ptr(kept).cast_mut(), Ordering::Relaxed);
        self.gate.open();
    }

    /// Removes the values of all owners.
    pub(crate) fn take_all<'a>(owners: impl Iterator<Item = &'a Owner<T>> + Clone) -> Vec<Arc<T>>
    where
        T: 'a,
    {
        owners.clone().for_each(|owner| owner.gate.stop());
        barrier::heavy();
        let take = |owner: &Owner<T>| {
            owner.gate.wait();
            owner.lock().take()
        };
        owners.filter_map(take).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    use super::*;

    #[test]
    fn what_is_taken_is_not_looked_at_any_more() {
        let owner = Owner::new();
        let looked = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let value = Arc::new(7);
        owner.set(&value);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: only this thread calls it.
                    let seen = unsafe { owner.with(|value: &u64| *value) };
                    assert!(seen.is_none_or(|seen| seen == 7));
                    looked.fetch_add(u64::from(seen.is_some()), Ordering::Relaxed);
                    thread::yield_now();
                }
            });
            for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
                let before = looked.load(Ordering::Relaxed);
                while looked.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
                let taken = Owner::take_all(std::iter::once(&owner));
                assert_eq!((taken.len(), owner.is_none()), (1, true));
                // Miri reports a use after free if the other thread still has the value.
                drop(taken);
                owner.set(&Arc::new(7));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
