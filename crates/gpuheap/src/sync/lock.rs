//! A lock for short sections of code that usually the same thread enters.
//!
//! A mutex needs two atomic exchanges, which take 20 ns on the host of an H200. This lock needs one
//! exchange: a plain store releases its [`Word`]. The releasing thread therefore cannot wake a
//! waiting thread. Waiting threads queue at a mutex, and the first of them polls the word.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::shim::Mutex;
use super::word::{Inside, Word};

/// A value to which only one thread at a time has access.
pub(crate) struct Lock<T> {
    word: Word,
    line: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: only a `Locked` gives access to the value, and `word` admits one `Locked` at a time. The
// value therefore moves between threads as in a mutex, which needs only `T: Send`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Exclusive access to the value.
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    _inside: Inside<'a>,
    exclusive: PhantomData<&'a mut T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock { word: Word::opened(), line: Mutex::new(()), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. Deadlocks if the thread already holds the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let inside = self.word.enter().unwrap_or_else(|| self.wait());
        Locked { lock: self, _inside: inside, exclusive: PhantomData }
    }

    #[cold]
    fn wait(&self) -> Inside<'_> {
        // Ignores poison: the mutex guards no data.
        let _first = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        self.word.wait()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `self` proves that this thread took `word`, so no other reference exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread took `word`, and `&mut self` excludes references from `deref`.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;

    use super::super::shim::OwnedU64;
    use super::*;

    /// Each thread adds one to a number with a load and a store: if two threads had the lock at the
    /// same time, one addition would be lost.
    #[test]
    fn lock_admits_one_thread() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(|| {
            let lock = Arc::new(Lock::new(OwnedU64::default()));
            let threads = [(); 2].map(|()| {
                let lock = lock.clone();
                loom::thread::spawn(move || lock.lock().add(1))
            });
            lock.lock().add(1);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(lock.lock().get(), 3);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn lock_loses_no_update() {
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        let lock = Lock::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..rounds).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 3 * rounds);
    }

    #[test]
    fn panic_releases_lock() {
        let lock = Lock::new(0);
        let panicked = thread::scope(|scope| {
            let panics = || {
                *lock.lock() = 1;
                let _locked = lock.lock();
                panic!("a test");
            };
            scope.spawn(panics).join()
        });
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
