//! A lock that costs the thread that keeps taking it next to nothing.
//!
//! A mutex costs 20 ns a time on the host of an H200, half of what a request to the policy comes to,
//! and most programs allocate on one thread. So whoever takes the mutex many times running gets a
//! [`Seat`]: from there it goes in and out through a [`Gate`] of its own, with plain stores, until
//! another thread wants in. That one has the mutex, stops the gate and waits.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::barrier;
use super::gate::Gate;
use super::shim::{Mutex, MutexGuard};
use super::thread;

/// So many times running a thread takes the mutex before it is seated.
const PATIENCE: u32 = if cfg!(loom) { 0 } else { 64 };
/// Twice as many each time that another thread ended it, up to this: at a few microseconds each,
/// nobody notices.
const MOST_PATIENCE: u32 = 1 << 14;

/// A value that one thread at a time has to itself.
pub(crate) struct Biased<T> {
    turn: Mutex<Turn>,
    value: UnsafeCell<T>,
}

// SAFETY: a `Locked` alone leads to the value, and there is one at a time: either it holds the mutex
// and nobody is seated, or it is in at the gate of the one seat. So the value goes from thread to
// thread as a mutex would send it.
unsafe impl<T: Send> Sync for Biased<T> {}

/// What the mutex is about: who goes past it.
struct Turn {
    seat: Option<&'static Seat>,
    /// The thread that had the mutex last, and how many times running.
    last: u64,
    times: u32,
    patience: u32,
}

/// One thread's place at one lock.
#[derive(Debug)]
pub(crate) struct Seat {
    gate: Gate,
}

/// The value, to oneself.
pub(crate) struct Locked<'a, T> {
    lock: &'a Biased<T>,
    by: By<'a>,
    /// It is this thread's turn.
    alone: PhantomData<*const ()>,
}

// SAFETY: other threads get to the value as to any that is shared.
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

    /// Waits for the running thread's turn. One that has it already waits for ever, as at a mutex.
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        // A panic behind a lock would be a bug of ours; the value is still the best there is.
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.begin(thread::this_thread());
        Locked { lock: self, by: By::Mutex(turn), alone: PhantomData }
    }

    /// The same for a thread with a seat of its own, which it may get to use.
    ///
    /// # Safety
    ///
    /// The seat is the running thread's alone, and of no other lock, until another thread's
    /// [`lock`](Biased::lock) of this one.
    #[inline]
    pub(crate) unsafe fn lock_at(&self, seat: &'static Seat) -> Locked<'_, T> {
        // Who is in already waits for ever, as at a mutex, and does not get the value twice.
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
    /// Has whoever is seated get up.
    fn begin(&mut self, thread: u64) {
        let is_again = self.last == thread;
        if let Some(seat) = self.seat.take() {
            seat.gate.stop();
            // Nobody but the last one with the mutex is ever seated.
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

    /// Nobody goes in by it before it is given once more.
    pub(crate) fn close(&self) {
        self.gate.stop();
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one `Locked` that there is.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one `Locked` that there is.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &self.by {
            By::Seat(seat) => seat.gate.leave(),
            // With the mutex held: whoever has it next finds who is seated.
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

    /// Each adds one to a number with a load and a store: had both their turn at once, one would be
    /// lost.
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
                // SAFETY: it is this thread's.
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

    /// One that is not lost, which Miri would say of a leak.
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
        // SAFETY: it is this thread's.
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
                    // SAFETY: it is this thread's.
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
