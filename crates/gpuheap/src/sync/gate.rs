//! Gates: cheap for their owner, and stopped by any other thread that needs the data.

use super::barrier;
use super::shim::{AtomicBool, Ordering, pause};

/// A gate that its owner enters and leaves with plain stores. Another thread stops the gate, waits
/// until the owner is out, and then has exclusive access until it opens the gate again.
///
/// A thread that stops gates holds the heap's lock, so there is one at a time.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: AtomicBool,
    stopped: AtomicBool,
}

impl Gate {
    /// Makes a stopped gate.
    pub(crate) fn new() -> Gate {
        Gate { inside: AtomicBool::new(false), stopped: AtomicBool::new(true) }
    }

    /// Enters, unless the gate is stopped. For the owner alone, which must [leave](Gate::leave)
    /// soon: other threads may be waiting.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.inside.store(true, Ordering::Relaxed);
        barrier::light();
        // Pairs with the opening: changes made behind the gate are visible.
        let is_stopped = self.stopped.load(Ordering::Acquire);
        if is_stopped {
            self.leave();
        }
        !is_stopped
    }

    /// Leaves the gate.
    #[inline]
    pub(crate) fn leave(&self) {
        self.inside.store(false, Ordering::Release);
    }

    /// Returns `true` if the owner is in. For the owner alone.
    #[inline]
    pub(crate) fn is_in(&self) -> bool {
        self.inside.load(Ordering::Relaxed)
    }

    /// Refuses entry from now on. [`barrier::heavy`] and [`wait`](Gate::wait) come next.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Waits until the owner is out. It is in for nanoseconds, unless its thread is not running or
    /// is in the driver.
    pub(crate) fn wait(&self) {
        let mut times = 0;
        while self.inside.load(Ordering::Acquire) {
            pause(times);
            times += 1;
        }
    }

    /// Allows the owner to enter again.
    pub(crate) fn open(&self) {
        self.stopped.store(false, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering as Plain};

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::super::shim::Owned;
    use super::*;

    /// Each thread adds one to a number with a load and a store: if both were in at once, one
    /// addition would be lost.
    #[test]
    fn owner_and_stopper_are_never_in_together() {
        let entered = std::sync::Arc::new(AtomicU32::new(0));
        let entered_in = entered.clone();
        loom::model(move || {
            let gate = Arc::new((Gate::new(), AtomicU64::new(0)));
            gate.0.open();
            let add = |number: &AtomicU64| {
                number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            };
            let other = gate.clone();
            let stopper = loom::thread::spawn(move || {
                let (gate, number) = &*other;
                gate.stop();
                barrier::heavy();
                gate.wait();
                add(number);
                gate.open();
            });
            let (gate, number) = &*gate;
            let mut expected = 1;
            for _ in 0..2 {
                if gate.enter() {
                    add(number);
                    gate.leave();
                    expected += 1;
                    entered_in.fetch_add(1, Plain::Relaxed);
                }
            }
            stopper.join().unwrap();
            assert!(gate.enter(), "it was opened again");
            assert_eq!(number.load(Ordering::Relaxed), expected);
        });
        assert!(entered.load(Plain::Relaxed) > 0);
    }

    /// The owner frees, allocates and frees again, while another thread that is short of memory
    /// takes the blocks that it finds. Each block is taken by one of them.
    #[test]
    fn what_is_kept_is_had_once() {
        loom::model(|| {
            let kept = Arc::new((Gate::new(), [Owned::new(0), Owned::new(0)]));
            kept.0.open();
            let take = |slots: &[Owned]| slots.iter().find(|slot| slot.get() != 0).map(Owned::take);
            let other = kept.clone();
            let drainer = loom::thread::spawn(move || {
                let (gate, slots) = &*other;
                gate.stop();
                barrier::heavy();
                gate.wait();
                let had: Vec<u64> = slots.iter().map(Owned::take).filter(|one| *one != 0).collect();
                gate.open();
                had
            });
            let (gate, slots) = &*kept;
            let (mut had, mut put) = (Vec::new(), 0);
            for block in 1..=2 {
                if gate.enter() {
                    if let Some(slot) = slots.iter().find(|slot| slot.get() == 0) {
                        slot.set(block);
                        put += 1;
                    }
                    gate.leave();
                }
            }
            if gate.enter() {
                had.extend(take(slots));
                gate.leave();
            }
            had.extend(drainer.join().unwrap());
            had.extend(slots.iter().map(Owned::take).filter(|one| *one != 0));
            had.sort_unstable();
            assert_eq!(had.len(), put, "{had:?}");
            assert!(had.windows(2).all(|pair| pair[0] != pair[1]), "{had:?}");
        });
    }
}
