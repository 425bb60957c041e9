//! A lock that costs nearly nothing for the thread that takes it repeatedly.
//!
//! A mutex costs 20 ns each time on the host of an H200, half of a request to the policy, and most
//! programs allocate on one thread. A thread that takes the mutex many times in a row therefore
//! gets a [`Seat`]. From then on it enters and leaves through its own [`Gate`], with plain stores,
//! until another thread needs the lock. That thread takes the mutex, stops the gate and waits.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::barrier;
use super::gate::Gate;
use super::shim::{Mutex, MutexGuard};
use super::thread;

/// Number of times in a row that a thread takes the mutex before it is seated.
const PATIENCE: u32 = if cfg!(loom) { 0 } else { 64 };
/// Upper bound of the patience, which doubles each time that another thread ends a seat. At a few
/// microseconds for each end, the cost is negligible.
const MOST_PATIENCE: u32 = 1 << 14;

/// A value that one thread at a time has exclusive access to.
pub(crate) struct Biased<T> {
    turn: Mutex<Turn>,
    value: UnsafeCell<T>,
}

// SAFETY: only a `Locked` gives access to the value, and there is one at a time. Either it holds
// the mutex and no thread is seated, or it is in at the gate of the one seat. The value is
// therefore sent from thread to thread as by a mutex.
unsafe impl<T: Send> Sync for Biased<T> {}

/// State behind the mutex: the seat that may bypass it.
struct Turn {
    seat: Option<&'static Seat>,
    /// The thread that took the mutex last, and how many times in a row.
    last: u64,
    times: u32,
    patience: u32,
}

/// A thread's seat at one lock.
#[derive(Debug)]
pub(crate) struct Seat {
    gate: Gate,
}

/// Exclusive access to the value.
pub(crate) struct Locked<'a, T> {
    lock: &'a Biased<T>,
    by: By<'a>,
    /// Bound to the thread that took the lock.
    alone: PhantomData<*const ()>,
}

// SAFETY: other threads access the value as they would any shared value.
unsafe impl<T: Sync> Sync for Locked<'_, T> {}

enum By<'a> {
    Seat(&'static Seat),
    Mutex(MutexGuard<'a, Turn>),
}

impl<T> Biased<T> {
    pub(crate) fn new(value: T) -> Biased<T> {
        let turn = Turn { seat: None, last: 0, times: 0, patience: PATIENCE };
        Biased { turn: Mutex::new(turn), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. A thread that holds it already deadlocks, as with a mutex.
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        // A panic behind the lock would be a bug of this crate; the value is still used.
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.begin(thread::this_thread());
        Locked { lock: self, by: By::Mutex(turn), alone: PhantomData }
    }

    /// Takes the lock for a thread that has its own seat, which may become seated.
    ///
    /// # Safety
    ///
    /// The seat is used by this thread alone, and for this lock alone, until another thread calls
    /// [`lock`](Biased::lock) on it.
    #[inline]
    pub(crate) unsafe fn lock_at(&self, seat: &'static Seat) -> Locked<'_, T> {
        // A thread that is in already deadlocks, as with a mutex, and does not get the value twice.
        if !seat.gate.is_in() && seat.gate.enter() {
            return Locked { lock: self, by: By::Seat(seat), alone: PhantomData };
        }
        self.lock_and_sit(seat)
    }

    #[cold]
    fn lock_and_sit(&self, seat: &'static Seat) -> Locked<'_, T> {
        let mut locked = self.lock();
        if let By::Mutex(turn) = &mut locked.by
            && turn.times >= turn.patience
        {
            turn.seat = Some(seat);
        }
        locked
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl Turn {
    /// Ends the seat of a seated thread.
    fn begin(&mut self, thread: u64) {
        let is_again = self.last == thread;
        if let Some(seat) = self.seat.take() {
            seat.gate.stop();
            // Only the last thread that took the mutex is ever seated.
            if !is_again {
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
                barrier::heavy();
            }
            seat.gate.wait();
        }
        self.times = if is_again { self.times.saturating_add(1) } else { 0 };
        self.last = thread;
    }
}

impl Seat {
    pub(crate) fn new() -> Seat {
        Seat { gate: Gate::new() }
    }

    /// Revokes the seat: its thread takes the mutex until the seat is granted again.
    pub(crate) fn close(&self) {
        self.gate.stop();
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only one `Locked` exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only one `Locked` exists.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &self.by {
            By::Seat(seat) => seat.gate.leave(),
            // With the mutex held: the next thread that takes it finds the seat.
            By::Mutex(turn) => {
                if let Some(seat) = turn.seat {
                    seat.gate.open();
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering as Plain};

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Each thread adds one to a number with a load and a store: if both had the lock at once, one
    /// addition would be lost.
    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let seated = std::sync::Arc::new(AtomicU32::new(0));
        let seated_in = seated.clone();
        loom::model(move || {
            let lock = Arc::new(Biased::new(AtomicU64::new(0)));
            let add = |value: &AtomicU64| {
                value.store(value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            };
            let other = lock.clone();
            let thread = loom::thread::spawn(move || {
                add(&other.lock());
            });
            let seat: &'static Seat = Box::leak(Box::new(Seat::new()));
            for _ in 0..2 {
                // SAFETY: the seat is used by this thread alone.
                let locked = unsafe { lock.lock_at(seat) };
                if matches!(locked.by, By::Seat(_)) {
                    seated_in.fetch_add(1, Plain::Relaxed);
                }
                add(&locked);
            }
            thread.join().unwrap();
            assert_eq!(lock.lock().load(Ordering::Relaxed), 3);
        });
        assert!(seated.load(Plain::Relaxed) > 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Returns a seat that is still reachable, so that Miri does not report a leak.
    fn seat() -> &'static Seat {
        static SEATS: std::sync::Mutex<Vec<&Seat>> = std::sync::Mutex::new(Vec::new());
        let seat: &'static Seat = Box::leak(Box::new(Seat::new()));
        SEATS.lock().unwrap_or_else(PoisonError::into_inner).push(seat);
        seat
    }

    fn is_seated<T>(locked: &Locked<'_, T>) -> bool {
        matches!(locked.by, By::Seat(_))
    }

    #[test]
    fn who_keeps_coming_is_seated_until_another_comes() {
        let lock = Biased::new(0);
        let seat = seat();
        // SAFETY: the seat is used by this thread alone.
        let turn = || unsafe { lock.lock_at(seat) };
        let is_ever = |times: u32| (0..times).any(|_| is_seated(&turn()));
        assert!(is_ever(PATIENCE + 2) && is_seated(&turn()));
        *turn() += 1;
        assert_eq!(*lock.lock(), 1);
        assert!(
            !is_seated(&turn()) && is_seated(&turn()),
            "its own turn without a seat ends little"
        );
        thread::scope(|scope| scope.spawn(|| *lock.lock() += 1).join()).unwrap();
        assert!(!is_ever(PATIENCE), "another one came");
        assert!(is_ever(PATIENCE + 2));
        assert_eq!(*turn(), 2);
    }

    #[test]
    fn threads_with_seats_and_without_lose_no_turn() {
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        let lock = Biased::new(0_u64);
        let stop = AtomicBool::new(false);
        let counted = thread::scope(|scope| {
            let seated = scope.spawn(|| {
                let seat = seat();
                for _ in 0..rounds {
                    // SAFETY: the seat is used by this thread alone.
                    *unsafe { lock.lock_at(seat) } += 1;
                }
                stop.store(true, Ordering::Relaxed);
            });
            let passing = scope.spawn(|| {
                let mut turns = 0;
                while !stop.load(Ordering::Relaxed) {
                    *lock.lock() += 1;
                    turns += 1;
                    thread::yield_now();
                }
                turns
            });
            seated.join().unwrap();
            passing.join().unwrap()
        });
        assert_eq!(*lock.lock(), rounds + counted);
    }
}
