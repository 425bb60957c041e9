//! Remote frees: blocks that came through a cache and were freed by other threads.
//!
//! ```text
//! thread 2 ─ claims an empty place, fills it ─► [ block | block |       | block | … ]   PLACES
//!                                  thread 1, if no block in its slots fits ─┴─► its slots
//! ```
//!
//! A thread that repeatedly frees blocks of another thread would fill its own cache and then return
//! each block to the pool. The allocating thread then misses the CPU's caches when it reads the
//! pool's records. That costs 150 to 300 ns a free on the host of an H200. The freeing thread
//! therefore returns blocks to the cache that served them.
//!
//! Any number of threads may put blocks in at once. Only one thread takes them out. No thread waits
//! for another: a place that is just being filled counts as empty for the taking thread and as full
//! for all other threads.

use super::slots::{CachedBlock, NEVER};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of blocks that other threads freed and that wait until the cache's thread takes
/// them.
pub(crate) const PLACES: usize = if cfg!(loom) { 2 } else { 64 };
/// Maximum number of places that a thread tries for one block. The block needs an empty place.
const SEARCHED: usize = if cfg!(loom) { 2 } else { 4 };

#[derive(Debug)]
pub(crate) struct RemoteFrees {
    places: Box<[RemotePlace]>,
    /// `true` if a thread may have put a block in since the last [`take`](RemoteFrees::take).
    filled: AtomicBool,
}

#[derive(Debug, Default)]
struct RemotePlace {
    /// The block's size in the upper half, its key in the lower half; zero without a block.
    block: AtomicU64,
    address: AtomicU64,
    /// Bytes as requested.
    requested: AtomicU64,
}

/// Value of a place that is being filled. No block has this value, because a block's upper half is
/// not zero.
const BUSY: u64 = 1;

impl Default for RemoteFrees {
    fn default() -> RemoteFrees {
        let places = (0..PLACES).map(|_| RemotePlace::default()).collect();
        RemoteFrees { places, filled: AtomicBool::new(false) }
    }
}

impl RemoteFrees {
    /// Stores a block of `requested` bytes, if one of the places from `at` on is empty. Returns the
    /// place at which the next search should begin.
    #[inline]
    pub(crate) fn put(&self, block: CachedBlock, requested: u64, at: u64) -> Option<u64> {
        for at in (at..).take(SEARCHED) {
            let place = &self.places[at as usize % PLACES];
            // This load can be relaxed, because the exchange below acquires. So the thread that
            // emptied this place has read the old block's address before this thread overwrites the
            // address.
            let claimed = place.block.load(Ordering::Relaxed) == 0
                && place
                    .block
                    .compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if claimed {
                place.address.store(block.address, Ordering::Relaxed);
                place.requested.store(requested, Ordering::Relaxed);
                let key = u64::from(block.key);
                place.block.store(block.bytes << 32 | key, Ordering::Release);
                if !self.filled.load(Ordering::Relaxed) {
                    self.filled.store(true, Ordering::Relaxed);
                }
                return Some(at + 1);
            }
        }
        None
    }

    /// Returns `true` if a thread has put a block in since the last [`take`](RemoteFrees::take). A
    /// block that is put in during a `take` may be found only by the next one.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    /// Takes out each block for which `wanted` returns `true`. `wanted` gets the block and its
    /// requested bytes. Only one thread at a time may call this.
    pub(crate) fn take(&self, mut wanted: impl FnMut(CachedBlock, u64) -> bool) {
        self.filled.store(false, Ordering::Relaxed);
        for place in &self.places {
            let block = place.block.load(Ordering::Acquire);
            if block == 0 || block == BUSY {
                continue;
            }
            let address = place.address.load(Ordering::Relaxed);
            let requested = place.requested.load(Ordering::Relaxed);
            let bytes = block >> 32;
            if wanted(CachedBlock { key: block as u32, address, bytes, before: NEVER }, requested) {
                place.block.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;

    use super::*;

    fn block(number: u64) -> CachedBlock {
        CachedBlock {
            key: number as u32,
            address: number << 20,
            bytes: number + 512,
            before: NEVER,
        }
    }

    fn take_all(frees: &RemoteFrees) -> Vec<CachedBlock> {
        let mut had = Vec::new();
        frees.take(|found, requested| {
            assert_eq!(requested, found.bytes - 1);
            had.push(found);
            true
        });
        had
    }

    /// Two threads put blocks in while a third takes them out. Each block is either refused, or
    /// taken out exactly once and unchanged.
    ///
    /// The model is bounded to four preemptions. That takes 23 s of one core (EPYC, November 2026);
    /// three take 5 s, and an unbounded model takes more than 350 s. `LOOM_MAX_PREEMPTIONS` sets
    /// the bound. The test soon fails if `put` stores the block without `Release`, or claims a
    /// place without an exchange.
    #[test]
    fn remote_blocks_come_out_once() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(4));
        model.check(|| {
            let frees = Arc::new(RemoteFrees::default());
            let (putting, taking) = (frees.clone(), frees.clone());
            let putting =
                loom::thread::spawn(move || putting.put(block(1), block(1).bytes - 1, 0).is_some());
            let taking = loom::thread::spawn(move || take_all(&taking));
            let second = frees.put(block(2), block(2).bytes - 1, 0).is_some();
            let put = [putting.join().unwrap(), second];
            let mut had = taking.join().unwrap();
            had.extend(take_all(&frees));
            had.sort_by_key(|found| found.key);
            let expected: Vec<CachedBlock> =
                [1, 2].into_iter().zip(put).filter(|one| one.1).map(|one| block(one.0)).collect();
            assert_eq!(had, expected);
        });
    }

    /// A thread takes out all blocks while another puts one into an emptied place. The new block
    /// must come out with its own address.
    #[test]
    fn refilled_place_has_new_address() {
        loom::model(|| {
            let frees = Arc::new(RemoteFrees::default());
            for number in 1..=PLACES as u64 {
                assert!(frees.put(block(number), block(number).bytes - 1, number).is_some());
            }
            let taking = frees.clone();
            let taking = loom::thread::spawn(move || take_all(&taking));
            let put = frees.put(block(9), block(9).bytes - 1, 0).is_some();
            let mut had = taking.join().unwrap();
            had.extend(take_all(&frees));
            assert!(had.iter().all(|found| *found == block(u64::from(found.key))), "{had:?}");
            assert_eq!(had.len(), PLACES + usize::from(put));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn remote_frees_hold_all_places_once() {
        let frees = RemoteFrees::default();
        let block = |key: u32| CachedBlock {
            key,
            address: u64::from(key) << 20,
            bytes: 512,
            before: NEVER,
        };
        let (mut at, mut put) = (7, 0);
        while let Some(next) = frees.put(block(put), 500, at) {
            (at, put) = (next, put + 1);
        }
        assert_eq!(put as usize, PLACES);
        assert!(frees.is_filled());
        let mut even = Vec::new();
        frees.take(|found, _| {
            let is_even = found.key % 2 == 0;
            even.extend(is_even.then_some(found.key));
            is_even
        });
        assert_eq!(even.len(), PLACES / 2);
        assert!(!frees.is_filled(), "no new block was put in");
        let mut odd = 0;
        frees.take(|found, requested| {
            assert_eq!(requested, 500);
            assert_eq!((found.key % 2, found), (1, block(found.key)));
            odd += 1;
            true
        });
        assert_eq!(odd, PLACES / 2);
    }
}
