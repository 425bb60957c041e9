//! Atomics of the standard library, or of loom for tests that explore all interleavings of threads.

#[cfg(loom)]
pub(crate) use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Lets other threads run. Gives a spin hint at first, yields from the 20th time on, and sleeps
/// from the 200th time on.
pub(crate) fn pause(times: u32) {
    #[cfg(loom)]
    {
        let _ = times;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if times < 20 {
        std::hint::spin_loop();
    } else if times < 200 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// A number that only one thread at a time accesses, with relaxed loads and stores. The thread has
/// taken the [`Word`](super::word::Word) that guards the number, or the heap's lock.
#[derive(Debug, Default)]
pub(crate) struct OwnedU64(AtomicU64);

impl OwnedU64 {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Stores `value` with release order: a thread that [acquires](OwnedU64::acquire) the value
    /// sees all earlier writes.
    pub(crate) fn release(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds `more`, and wraps on overflow.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    /// Subtracts `less`, and wraps on overflow.
    #[inline]
    pub(crate) fn sub(&self, less: u64) {
        self.set(self.get().wrapping_sub(less));
    }

    pub(crate) fn take(&self) -> u64 {
        let value = self.get();
        self.set(0);
        value
    }
}
