//! A lock of one word, for data that one thread uses nearly all the time.

use super::shim::{AtomicU64, Ordering, pause};

/// A lock that one atomic exchange takes and a plain store releases. Both together take 5 ns on the
/// host of an H200. A thread that does not get the lock does something else, or polls.
///
/// Another thread can close the lock, and then has exclusive access until it opens the lock again.
///
/// A new lock is closed.
#[derive(Debug, Default)]
pub(crate) struct Word(AtomicU64);

const CLOSED: u64 = 0;
const TAKEN: u64 = 1;
const OPEN: u64 = 2;

/// Exclusive access to the data that the lock guards. Dropping this releases the lock.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Word);

impl Word {
    pub(crate) fn opened() -> Word {
        Word(AtomicU64::new(OPEN))
    }

    /// Takes the lock. Returns `None` if another thread holds it, or has closed it to all threads.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        self.change(TAKEN).then(|| Inside(self))
    }

    /// Takes the lock as soon as it is released. Only for a lock on which `close` is never called.
    pub(crate) fn wait(&self) -> Inside<'_> {
        let mut times = 0;
        loop {
            if let Some(inside) = self.enter() {
                return inside;
            }
            pause(times);
            times += 1;
        }
    }

    /// Closes the lock as soon as it is released: no thread can take it until `open` is called.
    /// Only one thread at a time may call this. The lock may be closed already.
    pub(crate) fn close(&self) {
        let mut times = 0;
        while self.0.load(Ordering::Relaxed) != CLOSED && !self.change(CLOSED) {
            pause(times);
            times += 1;
        }
    }

    /// Opens the lock, so that threads can take it. Only the thread that closed it may call this.
    #[inline]
    pub(crate) fn open(&self) {
        self.0.store(OPEN, Ordering::Release);
    }

    /// Changes the state from [`OPEN`] to `to`. Returns `false` if the lock is taken or closed. If
    /// the result is `true`, this thread sees all writes made before the lock was last released.
    #[inline]
    fn change(&self, to: u64) -> bool {
        self.0.compare_exchange(OPEN, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.open();
    }
}

#[cfg(all(test, loom))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering as Plain};

    use loom::sync::Arc;

    use super::super::shim::OwnedU64;
    use super::*;

    /// Each thread adds one to a number with a load and a store: if both threads had the lock at
    /// the same time, one addition would be lost.
    #[test]
    fn word_excludes_owner_while_closed() {
        let entered = std::sync::Arc::new(AtomicU32::new(0));
        let entered_in = entered.clone();
        loom::model(move || {
            let word = Arc::new((Word::opened(), OwnedU64::default()));
            let other = word.clone();
            let closer = loom::thread::spawn(move || {
                let (word, number) = &*other;
                word.close();
                number.add(1);
                word.open();
            });
            let (word, number) = &*word;
            let mut expected = 1;
            for _ in 0..2 {
                if let Some(_inside) = word.enter() {
                    number.add(1);
                    expected += 1;
                    entered_in.fetch_add(1, Plain::Relaxed);
                }
            }
            closer.join().unwrap();
            let inside = word.enter();
            assert!(inside.is_some(), "it was opened again");
            assert_eq!(number.get(), expected);
        });
        assert!(entered.load(Plain::Relaxed) > 0);
    }

    /// The owner frees twice and allocates, while another thread that is short of memory takes the
    /// blocks that it finds. Exactly one of the two threads takes each block. The owner chooses a
    /// slot before it takes the lock, as a thread cache does.
    #[test]
    fn drained_block_is_taken_once() {
        loom::model(|| {
            let kept = Arc::new((Word::opened(), [OwnedU64::default(), OwnedU64::default()]));
            let other = kept.clone();
            let drainer = loom::thread::spawn(move || {
                let (word, slots) = &*other;
                word.close();
                let had: Vec<u64> =
                    slots.iter().map(OwnedU64::take).filter(|one| *one != 0).collect();
                word.open();
                had
            });
            let (word, slots) = &*kept;
            let (mut had, mut put) = (Vec::new(), 0);
            for block in 1..=2 {
                if let Some(slot) = slots.iter().find(|slot| slot.get() == 0)
                    && let Some(_inside) = word.enter()
                {
                    slot.set(block);
                    put += 1;
                }
            }
            if let Some(slot) = slots.iter().find(|slot| slot.get() != 0)
                && let Some(_inside) = word.enter()
            {
                had.extend(Some(slot.take()).filter(|one| *one != 0));
            }
            had.extend(drainer.join().unwrap());
            had.extend(slots.iter().map(OwnedU64::take).filter(|one| *one != 0));
            had.sort_unstable();
            assert_eq!(had.len(), put, "{had:?}");
            assert!(had.windows(2).all(|pair| pair[0] != pair[1]), "{had:?}");
        });
    }
}
