//! Table of live allocations, keyed by address.
//!
//! Each address hashes to two places of an array. An allocation claims a free place with one atomic
//! exchange. A free removes the entry with another exchange. No lock is taken. Each place has
//! separate cache lines, so threads contend only if one thread frees a block of another thread.
//!
//! With tens of thousands of live blocks, both places of an address may be taken. The entry then
//! goes into one of the sharded maps. Each map has a lock.

use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::zeroed_array::ZeroedArray;

/// Number of places for allocations in the table's array, a power of two. The array takes 2 MiB,
/// enough for the live allocations of most programs. Under Miri, dropping so many places would take
/// most of a minute in each test.
const PLACES: usize = if cfg!(miri) { 1 << 6 } else { 1 << 14 };

/// Number of map shards, a power of two. It exceeds the number of threads that are likely to use
/// the maps at once.
const SHARDS: usize = 64;

/// Value of [`Place::address`] if the place has no entry.
const FREE: u64 = 0;

/// Value of [`Place::address`] while a thread fills or empties the place.
const BUSY: u64 = 1;

/// Table of live allocations, keyed by address. `T` is the entry of an allocation.
pub(crate) struct Blocks<T> {
    places: ZeroedArray<Place<T>, PLACES>,
    shards: Box<[Shard<T>]>,
}

/// Place for one allocation in the table's array. No two places share a cache line.
#[repr(align(128))]
struct Place<T> {
    /// Address of the allocation in this place, or [`FREE`] or [`BUSY`]. The thread that sets the
    /// address to [`BUSY`] owns the place.
    address: AtomicU64,
    bytes: AtomicU64,
    /// Entry of the allocation. It is initialized if `address` is neither [`FREE`] nor [`BUSY`].
    block: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: only the thread that set `address` to `BUSY` uses `block`. That is one thread at a time.
unsafe impl<T: Send> Sync for Place<T> {}

/// One shard in a separate cache line, so that two locks never share a line.
#[repr(align(128))]
struct Shard<T>(Mutex<FxHashMap<u64, (u64, T)>>);

impl<T> Blocks<T> {
    pub(crate) fn new() -> Blocks<T> {
        Blocks {
            // SAFETY: a place of zeros is free, and its entry is not initialized.
            places: unsafe { ZeroedArray::zeroed() },
            shards: (0..SHARDS).map(|_| Shard(Mutex::default())).collect(),
        }
    }

    /// Frees the table. Does not read the array of places, because a heap without live allocations
    /// has no entries there. An entry that is still in the array is leaked.
    pub(crate) fn discard(self) {
        self.places.discard();
    }

    /// Stores the entry of a block of `bytes` until `take` removes it. No two live blocks have the
    /// same address.
    #[inline]
    pub(crate) fn put(&self, address: u64, bytes: u64, block: T) {
        // The entry is moved only once, directly into its place, because each move of so large an
        // entry takes a nanosecond.
        let block = ManuallyDrop::new(block);
        let [first, second] = self.places_of(address);
        let place = if first.claim(FREE) {
            first
        } else if second.claim(FREE) {
            second
        } else {
            return self.put_in_shard(address, bytes, ManuallyDrop::into_inner(block));
        };
        place.bytes.store(bytes, Ordering::Relaxed);
        // SAFETY: this thread set the free place to `BUSY`, so no other thread uses the place.
        // `block` is not used or dropped afterwards.
        unsafe { (*place.block.get()).write(ptr::read(&*block)) };
        place.address.store(address, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn put_in_shard(&self, address: u64, bytes: u64, block: T) {
        self.shard(address).insert(address, (bytes, block));
    }

    /// Removes the entry at an address. Returns `None` if the table contains no entry for the
    /// address. If several threads remove an entry, only the first thread gets the entry.
    #[inline]
    pub(crate) fn take(&self, address: u64) -> Option<T> {
        match self.claimed(address) {
            Some(place) => {
                // SAFETY: `claimed` changed the place from `address` to `BUSY`, so its entry is
                // initialized, and no other thread uses it. The entry is not read again.
                let block = unsafe { (*place.block.get()).assume_init_read() };
                place.address.store(FREE, Ordering::Release);
                Some(block)
            }
            None => self.take_from_shard(address),
        }
    }

    /// Removes the entry at an address, as [`take`](Blocks::take) does, but calls `user` with the
    /// entry where it lies and then drops it. Moving the entry took 8 ns of each allocation and
    /// free (AMD EPYC, 2026-11-28). If `user` panics, the entry's place stays [`BUSY`].
    #[inline]
    pub(crate) fn use_up<R>(&self, address: u64, user: impl FnOnce(&mut T) -> R) -> Option<R> {
        let Some(place) = self.claimed(address) else {
            return self.take_from_shard(address).map(|mut block| user(&mut block));
        };
        // SAFETY: `claimed` changed the place from `address` to `BUSY`, so its entry is
        // initialized, and no other thread uses it. The place is then marked as free, so the entry
        // is not used again.
        let result = unsafe {
            let block = &mut *place.block.get();
            let result = user(block.assume_init_mut());
            block.assume_init_drop();
            result
        };
        place.address.store(FREE, Ordering::Release);
        Some(result)
    }

    #[inline]
    fn claimed(&self, address: u64) -> Option<&Place<T>> {
        self.places_of(address).into_iter().find(|place| address > BUSY && place.claim(address))
    }

    #[cold]
    #[inline(never)]
    fn take_from_shard(&self, address: u64) -> Option<T> {
        self.shard(address).remove(&address).map(|(_, block)| block)
    }

    /// Returns the size of the block at `address`. No thread may free the block meanwhile.
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

    /// Returns the two candidate places of an address.
    #[inline]
    fn places_of(&self, address: u64) -> [&Place<T>; 2] {
        let at = hash(address, PLACES);
        [&self.places[at], &self.places[at ^ 1]]
    }

    fn shard(&self, address: u64) -> MutexGuard<'_, FxHashMap<u64, (u64, T)>> {
        let shard = &self.shards[hash(address, SHARDS)];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes an address to a number below `of`, a power of two.
#[inline]
fn hash(address: u64, of: usize) -> usize {
    // Blocks begin at multiples of 512 bytes, and large blocks at multiples of 1 MiB. So the hash
    // mixes all bits above the lowest nine.
    let hash = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - of.ilog2())) as usize
}

impl<T> Place<T> {
    /// Sets the place to [`BUSY`] if its address is `from`. The claiming thread then owns the place
    /// until it fills or empties it.
    #[inline]
    fn claim(&self, from: u64) -> bool {
        // The load comes before the exchange: if the address differs, the cache line is not taken
        // from the thread that uses it.
        self.address.load(Ordering::Relaxed) == from
            && self
                .address
                .compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        if *self.address.get_mut() > BUSY {
            // SAFETY: `address` is neither `FREE` nor `BUSY`, so the place's entry is initialized.
            // The table is being dropped, so no thread reads the entry again.
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

    /// Number of blocks that a test stores, above `PLACES`. Under Miri, so many would take minutes.
    const MANY: u64 = if cfg!(miri) { 300 } else { 3 * PLACES as u64 };

    #[test]
    fn each_entry_is_taken_once() {
        let (blocks, counted) = (Blocks::new(), Arc::new(()));
        for address in (1..=MANY).map(|n| n * 512) {
            blocks.put(address, address + 1, (address, counted.clone()));
        }
        assert_eq!(Arc::strong_count(&counted) as u64, MANY + 1);
        // Every third block stays in the table.
        for address in (1..=MANY).map(|n| n * 512).filter(|address| address % 3 != 0) {
            assert_eq!(blocks.bytes(address), Some(address + 1));
            let taken = match address / 512 % 2 {
                0 => blocks.take(address).map(|(address, _)| address),
                _ => blocks.use_up(address, |(address, _)| *address),
            };
            assert_eq!(taken, Some(address));
            assert!(blocks.take(address).is_none() && blocks.bytes(address).is_none());
        }
        assert_eq!(Arc::strong_count(&counted) as u64, MANY / 3 + 1);
        drop(blocks);
        assert_eq!(Arc::strong_count(&counted), 1, "what is left goes with the table");
    }

    #[test]
    fn discarded_table_forgets_its_entries() {
        struct Counted<'a>(&'a AtomicU64);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dropped = AtomicU64::new(0);
        for discards in [true, false] {
            let blocks = Blocks::new();
            blocks.put(512, 1, Counted(&dropped));
            if discards {
                blocks.discard();
            } else {
                drop(blocks);
            }
        }
        assert_eq!(dropped.into_inner(), 1);
    }

    #[test]
    fn equal_hashes_keep_all_entries() {
        let blocks = Blocks::new();
        let at = hash(512, PLACES);
        let same = (1..).map(|n| n * 512).filter(|address| hash(*address, PLACES) == at);
        let same: Vec<u64> = same.take(5).collect();
        same.iter().for_each(|address| blocks.put(*address, *address, *address));
        // All addresses in `same` have one hash. The first two took both places of that hash in the
        // array, so the others are in the maps. The loop must find them even after it has freed a
        // place.
        for address in &same {
            assert_eq!(blocks.bytes(*address), Some(*address));
            assert_eq!(blocks.take(*address), Some(*address));
        }
        assert!(same.iter().all(|address| blocks.take(*address).is_none()));
    }

    #[test]
    fn unknown_address_has_no_entry() {
        let blocks = Blocks::new();
        blocks.put(512, 1, 7);
        for address in [FREE, BUSY, 2, 511, 513, 1024, u64::MAX] {
            assert!(blocks.take(address).is_none() && blocks.bytes(address).is_none());
        }
        assert_eq!(blocks.take(512), Some(7));
    }

    /// Two threads share a small table. Each stores blocks and removes the other thread's blocks.
    #[test]
    fn threads_sharing_places_lose_nothing() {
        let (blocks, rounds) = (Blocks::new(), if cfg!(miri) { 50 } else { 20_000 });
        let ((to_second, second), (to_first, first)) = (channel(), channel());
        let work = |thread: u64,
                    to: std::sync::mpsc::Sender<u64>,
                    from: std::sync::mpsc::Receiver<u64>| {
            let taken = |address| {
                assert_eq!(blocks.use_up(address, |block: &mut Box<u64>| **block), Some(address));
            };
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

    /// One thread stores blocks and removes each block a little later, while the other thread tries
    /// to take the blocks first. The delay varies until the other thread has taken many blocks.
    #[test]
    fn concurrent_takes_have_one_winner() {
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
                own += u64::from(blocks.use_up(512, |()| ()).is_some());
                rounds += 1;
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(own + others.into_inner(), rounds);
    }
}
