//! Allocations by address.
//!
//! Every address has two places that it may have, by its hash. Who allocates claims one that is free,
//! and who frees takes what is there, each by one exchange: no lock, and as each place has its own cache
//! lines, threads meet in none unless they pass an address on. What finds no place free, because tens
//! of thousands are allocated, is in maps with a lock each.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

/// A power of two. All of them have 2 MiB, and room for what most programs have live at once.
const PLACES: usize = 1 << 14;

/// Power of two: more than threads meet.
const SHARDS: usize = 64;

/// A place with nothing in it.
const FREE: u64 = 0;

/// One that somebody fills or empties at this moment.
const BUSY: u64 = 1;

/// Allocations by address: `T` is what is kept of each.
pub(crate) struct Blocks<T> {
    places: Box<[Place<T>]>,
    shards: Box<[Shard<T>]>,
}

/// Room for one allocation, in cache lines of its own.
#[repr(align(128))]
struct Place<T> {
    /// Where the allocation is that is here, or [`FREE`] or [`BUSY`]. Who exchanged it for the latter
    /// has the place to itself.
    address: AtomicU64,
    bytes: AtomicU64,
    /// There while `address` is an address.
    block: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: `block` is touched by one thread at a time, which has made the place busy.
unsafe impl<T: Send> Sync for Place<T> {}

/// A cache line each, so that two locks are not in one.
#[repr(align(128))]
struct Shard<T>(Mutex<FxHashMap<u64, (u64, T)>>);

impl<T> Blocks<T> {
    pub(crate) fn new() -> Blocks<T> {
        Blocks {
            places: (0..PLACES).map(|_| Place::new()).collect(),
            shards: (0..SHARDS).map(|_| Shard(Mutex::default())).collect(),
        }
    }

    /// Keeps a block of `bytes` until it is taken. Two that are there are never at one address.
    #[inline]
    pub(crate) fn put(&self, address: u64, bytes: u64, block: T) {
        let [first, second] = self.places_of(address);
        if first.claim(FREE) {
            // SAFETY: claimed as free.
            unsafe { first.fill(address, bytes, block) };
        } else if second.claim(FREE) {
            // SAFETY: likewise.
            unsafe { second.fill(address, bytes, block) };
        } else {
            self.shard(address).insert(address, (bytes, block));
        }
    }

    /// The block at an address, to whoever asks first.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<T> {
        let [first, second] = self.places_of(address);
        if address <= BUSY {
            None
        } else if first.claim(address) {
            // SAFETY: claimed with the address, so with its block.
            Some(unsafe { first.empty() })
        } else if second.claim(address) {
            // SAFETY: likewise.
            Some(unsafe { second.empty() })
        } else {
            self.shard(address).remove(&address).map(|(_, block)| block)
        }
    }

    /// The size of one that is not freed meanwhile.
    pub(crate) fn bytes(&self, address: u64) -> Option<u64> {
        if address <= BUSY {
            return None;
        }
        let places = self.places_of(address);
        let place =
            places.into_iter().find(|place| place.address.load(Ordering::Acquire) == address);
        match place {
            Some(place) => Some(place.bytes.load(Ordering::Relaxed)),
            None => self.shard(address).get(&address).map(|(bytes, _)| *bytes),
        }
    }

    /// The two that an address may have.
    #[inline]
    fn places_of(&self, address: u64) -> [&Place<T>; 2] {
        let at = hash(address, PLACES);
        [&self.places[at], &self.places[at ^ 1]]
    }

    #[cold]
    fn shard(&self, address: u64) -> MutexGuard<'_, FxHashMap<u64, (u64, T)>> {
        let shard = &self.shards[hash(address, SHARDS)];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number below `of`, a power of two.
#[inline]
fn hash(address: u64, of: usize) -> usize {
    // Blocks begin at multiples of 512, larger ones of MiB: all bits above count.
    let hash = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - of.ilog2())) as usize
}

impl<T> Place<T> {
    fn new() -> Place<T> {
        Place {
            address: AtomicU64::new(FREE),
            bytes: AtomicU64::new(0),
            block: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Makes the place busy, if it is as it is said to be: whoever does has it to itself until it is
    /// filled or emptied.
    #[inline]
    fn claim(&self, from: u64) -> bool {
        // Looked at first: where it is otherwise, the line stays with whoever uses it.
        self.address.load(Ordering::Relaxed) == from
            && self
                .address
                .compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// # Safety
    ///
    /// The caller claimed it when it was free.
    #[inline]
    unsafe fn fill(&self, address: u64, bytes: u64, block: T) {
        self.bytes.store(bytes, Ordering::Relaxed);
        // SAFETY: the caller has the place to itself.
        unsafe { (*self.block.get()).write(block) };
        self.address.store(address, Ordering::Release);
    }

    /// # Safety
    ///
    /// The caller claimed it when it had an address.
    #[inline]
    unsafe fn empty(&self) -> T {
        // SAFETY: the caller has the place to itself, with a block in it, and it ends as free.
        let block = unsafe { (*self.block.get()).assume_init_read() };
        self.address.store(FREE, Ordering::Release);
        block
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        if *self.address.get_mut() > BUSY {
            // SAFETY: it has an address, so a block, and is not used again.
            unsafe { self.block.get_mut().assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use super::*;

    /// More than there are places under Miri would take minutes.
    const MANY: u64 = if cfg!(miri) { 300 } else { 3 * PLACES as u64 };

    #[test]
    fn what_is_put_is_taken_once_however_many_there_are() {
        let (blocks, counted) = (Blocks::new(), Arc::new(()));
        for address in (1..=MANY).map(|n| n * 512) {
            blocks.put(address, address + 1, (address, counted.clone()));
        }
        assert_eq!(Arc::strong_count(&counted) as u64, MANY + 1);
        // Every third stays.
        for address in (1..=MANY).map(|n| n * 512).filter(|address| address % 3 != 0) {
            assert_eq!(blocks.bytes(address), Some(address + 1));
            assert_eq!(blocks.take(address).map(|(address, _)| address), Some(address));
            assert!(blocks.take(address).is_none() && blocks.bytes(address).is_none());
        }
        assert_eq!(Arc::strong_count(&counted) as u64, MANY / 3 + 1);
        drop(blocks);
        assert_eq!(Arc::strong_count(&counted), 1, "what is left goes with the table");
    }

    #[test]
    fn those_of_one_hash_do_not_hide_each_other() {
        let blocks = Blocks::new();
        let at = hash(512, PLACES);
        let same = (1..).map(|n| n * 512).filter(|address| hash(*address, PLACES) == at);
        let same: Vec<u64> = same.take(5).collect();
        same.iter().for_each(|address| blocks.put(*address, *address, *address));
        // The first, whose place is then free while the others are elsewhere.
        for address in &same {
            assert_eq!(blocks.bytes(*address), Some(*address));
            assert_eq!(blocks.take(*address), Some(*address));
        }
        assert!(same.iter().all(|address| blocks.take(*address).is_none()));
    }

    #[test]
    fn what_is_no_address_is_not_there() {
        let blocks = Blocks::new();
        blocks.put(512, 1, 7);
        for address in [FREE, BUSY, 2, 511, 513, 1024, u64::MAX] {
            assert!(blocks.take(address).is_none() && blocks.bytes(address).is_none());
        }
        assert_eq!(blocks.take(512), Some(7));
    }

    /// Two that put and take at few places at once, and hand each other what they put.
    #[test]
    fn threads_meet_in_a_place_and_lose_nothing() {
        let (blocks, rounds) = (Blocks::new(), if cfg!(miri) { 50 } else { 20_000 });
        let ((to_second, second), (to_first, first)) = (channel(), channel());
        let work = |thread: u64,
                    to: std::sync::mpsc::Sender<u64>,
                    from: std::sync::mpsc::Receiver<u64>| {
            let taken = |address| assert_eq!(blocks.take(address), Some(Box::new(address)));
            for round in 0..rounds {
                let address = (1 + thread + 2 * (round % 4)) * 512 + ((round + 1) << 40);
                blocks.put(address, 1, Box::new(address));
                if round % 2 == 0 {
                    taken(address)
                } else {
                    to.send(address).unwrap()
                }
                from.try_iter().for_each(taken);
            }
            drop(to);
            from.iter().for_each(taken);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(0, to_second, first));
            work(1, to_first, second);
        });
    }

    /// One takes what the other puts and takes back a little later, each time after another while,
    /// until the first had many.
    #[test]
    fn of_two_that_take_at_once_one_has_it() {
        let (blocks, many) = (Blocks::new(), if cfg!(miri) { 10 } else { 4_000 });
        let (done, others) = (AtomicBool::new(false), AtomicU64::new(0));
        let (mut own, mut rounds) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    others.fetch_add(blocks.take(512).map_or(0, |()| 1), Ordering::Relaxed);
                }
            });
            while others.load(Ordering::Relaxed) < many {
                blocks.put(512, 1, ());
                (0..rounds % 64).for_each(|_| std::hint::spin_loop());
                own += u64::from(blocks.take(512).is_some());
                rounds += 1;
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(own + others.into_inner(), rounds);
    }
}
