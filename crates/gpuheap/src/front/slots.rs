//! Where a thread keeps the blocks that it freed: one thread puts in, every thread may take out.
//!
//! ```text
//! bin 0   ├─ token, address ─┼─ token, address ─┼─ … ─┤   DEPTH places for each bin
//! bin 1   ├─ …
//! ```
//!
//! A place is empty, busy, or holds a block. Only the owner fills empty places, so it does that with
//! plain stores. Whoever takes a block first makes its place busy, with the one atomic exchange that
//! there is; while it is busy nobody else touches it. So a pair of a free and an allocation costs
//! one exchange on a cache line that no other thread uses, and a thread that runs short of memory
//! can empty the places of all others without stopping them.

use super::sync::{AtomicU64, Ordering};

/// Blocks of one bin. Eight serve a thread with sixteen blocks in flight of twelve sizes (the work
/// `threads` of `benches/peers`) without a miss; their tokens lie in two cache lines.
#[cfg(not(loom))]
const DEPTH: usize = 8;
/// Loom tries every order of every access.
#[cfg(loom)]
const DEPTH: usize = 2;

const EMPTY: u64 = 0;
/// Somebody is taking the block out.
const BUSY: u64 = 1;

/// The smallest size with bins of its own, as a power of two.
const FIRST: u32 = 9;
/// The largest size that is kept, as a power of two: 128 MiB.
const LAST: u32 = 27;
/// Bins for each doubling, as a power of two.
const SPLIT: u32 = 2;

/// How many bins there are.
const BINS: usize = (((LAST - FIRST) << SPLIT) + 2) as usize;

/// The largest block that is kept.
pub(crate) const LARGEST: u64 = 1 << LAST;

/// A block that waits for the next request of its thread and stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The policy's name for it.
    pub(crate) key: u32,
    /// Where the device sees it.
    pub(crate) address: u64,
    /// Its size with the policy's rounding; at most [`LARGEST`].
    pub(crate) bytes: u64,
}

impl Kept {
    /// Never [`EMPTY`] nor [`BUSY`], because no block has zero bytes.
    fn token(self) -> u64 {
        self.bytes << 32 | u64::from(self.key)
    }

    fn new(token: u64, address: u64) -> Kept {
        Kept { key: token as u32, address, bytes: token >> 32 }
    }
}

#[derive(Debug)]
struct Slot {
    token: AtomicU64,
    address: AtomicU64,
}

/// The places of one thread and stream.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// Bins that may hold something. Written by the owner alone.
    filled: [AtomicU64; BINS.div_ceil(64)],
}

impl Slots {
    pub(crate) fn new() -> Slots {
        let empty = |_| Slot { token: AtomicU64::new(EMPTY), address: AtomicU64::new(0) };
        Slots {
            slots: (0..BINS * DEPTH).map(empty).collect(),
            filled: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Keeps a block, if there is a place for it. For the owner alone.
    pub(crate) fn put(&self, block: Kept) -> bool {
        let bin = bin(block.bytes);
        for slot in self.places(bin) {
            // Pairs with the store that emptied it, so that who took the last block has read its
            // address by now.
            if slot.token.load(Ordering::Acquire) == EMPTY {
                slot.address.store(block.address, Ordering::Relaxed);
                slot.token.store(block.token(), Ordering::Release);
                self.mark(bin, true);
                return true;
            }
        }
        false
    }

    /// The smallest block of `bytes` to `most` in the bin of `bytes`. For the owner alone.
    pub(crate) fn take(&self, bytes: u64, most: u64) -> Option<Kept> {
        let bin = bin(bytes);
        if !self.is_marked(bin) {
            return None;
        }
        let (mut best, mut best_bytes, mut seen) = (None, u64::MAX, false);
        for slot in self.places(bin) {
            let token = slot.token.load(Ordering::Relaxed);
            let size = token >> 32;
            seen |= token != EMPTY;
            if (bytes..=most).contains(&size) && size < best_bytes {
                (best, best_bytes) = (Some((slot, token)), size);
                if size == bytes {
                    break;
                }
            }
        }
        if !seen {
            self.mark(bin, false);
        }
        let (slot, token) = best?;
        slot.take(token)
    }

    /// Takes everything out. For any thread.
    pub(crate) fn drain(&self, mut each: impl FnMut(Kept)) {
        for bin in (0..BINS).filter(|bin| self.is_marked(*bin)) {
            self.drain_bin(bin, DEPTH, &mut each);
        }
    }

    /// Takes half a bin out, the one of `bytes`: what does not fit into a full one is then not the
    /// only block for which a lock is taken.
    pub(crate) fn drain_half(&self, bytes: u64, mut each: impl FnMut(Kept)) {
        self.drain_bin(bin(bytes), DEPTH / 2, &mut each);
    }

    fn drain_bin(&self, bin: usize, most: usize, each: &mut impl FnMut(Kept)) {
        let taken = self.places(bin).iter().filter_map(|slot| {
            let token = slot.token.load(Ordering::Relaxed);
            if token > BUSY { slot.take(token) } else { None }
        });
        taken.take(most).for_each(each);
    }

    fn places(&self, bin: usize) -> &[Slot] {
        &self.slots[bin * DEPTH..][..DEPTH]
    }

    fn is_marked(&self, bin: usize) -> bool {
        self.filled[bin / 64].load(Ordering::Relaxed) >> (bin % 64) & 1 != 0
    }

    fn mark(&self, bin: usize, filled: bool) {
        let (word, bit) = (&self.filled[bin / 64], 1 << (bin % 64));
        let before = word.load(Ordering::Relaxed);
        let after = if filled { before | bit } else { before & !bit };
        if after != before {
            // After the token: who comes because of the mark finds it.
            word.store(after, Ordering::Release);
        }
    }
}

impl Slot {
    /// Takes the block out that the token stands for, unless somebody else does.
    fn take(&self, token: u64) -> Option<Kept> {
        self.token.compare_exchange(token, BUSY, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let block = Kept::new(token, self.address.load(Ordering::Relaxed));
        self.token.store(EMPTY, Ordering::Release);
        Some(block)
    }
}

/// The bin of a size: four for each doubling from 512 bytes on, one for all below.
fn bin(bytes: u64) -> usize {
    let bytes = bytes.clamp(1 << (FIRST - 1), LARGEST);
    let log = bytes.ilog2();
    if log < FIRST {
        return 0;
    }
    let within = bytes >> (log - SPLIT) & ((1 << SPLIT) - 1);
    1 + ((log - FIRST) << SPLIT) as usize + within as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bins_grow_with_sizes_and_hold_a_quarter_of_a_doubling() {
        let sizes: Vec<u64> = (0..=LARGEST.ilog2())
            .flat_map(|log| [1 << log, (1 << log) + 1, (1_u64 << log) * 3 / 2])
            .filter(|bytes| *bytes <= LARGEST)
            .collect();
        for pair in sizes.windows(2) {
            assert!(bin(pair[0]) <= bin(pair[1]), "{pair:?}");
        }
        assert_eq!((bin(1), bin(511), bin(512)), (0, 0, 1));
        assert_eq!((bin(1024), bin(1279), bin(1280)), (5, 5, 6));
        assert_eq!(bin(LARGEST), BINS - 1);
    }

    proptest! {
        #[test]
        fn what_is_put_in_comes_out_once_and_fits(
            actions in prop::collection::vec((0_u8..3, 512_u64..4096), 1..200),
        ) {
            let slots = Slots::new();
            let mut inside = BTreeSet::new();
            for (key, (action, bytes)) in actions.into_iter().enumerate() {
                let block = Kept { key: key as u32, address: bytes << 20 | key as u64, bytes };
                match action {
                    0 => {
                        let has_place = inside.iter().filter(|(_, other)| bin(*other) == bin(bytes)).count() < DEPTH;
                        prop_assert_eq!(slots.put(block), has_place);
                        if has_place {
                            inside.insert((block.address, bytes));
                        }
                    }
                    1 => {
                        let fits = inside.iter().map(|(_, other)| *other).filter(|other| {
                            bin(*other) == bin(bytes) && (bytes..=bytes + 100).contains(other)
                        });
                        let smallest = fits.min();
                        let found = slots.take(bytes, bytes + 100);
                        prop_assert_eq!(found.map(|found| found.bytes), smallest);
                        if let Some(found) = found {
                            prop_assert!(inside.remove(&(found.address, found.bytes)));
                        }
                    }
                    _ => slots.drain_half(bytes, |found| {
                        assert!(inside.remove(&(found.address, found.bytes)));
                    }),
                }
            }
            slots.drain(|found| assert!(inside.remove(&(found.address, found.bytes))));
            prop_assert!(inside.is_empty());
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;

    use super::*;

    fn block(n: u32) -> Kept {
        Kept { key: n, address: u64::from(n) << 20, bytes: 1024 }
    }

    /// An owner that frees, allocates and frees again while another thread, short of memory, takes
    /// what it finds: each block is had by one of them, and is the block that was put in.
    #[test]
    fn a_block_is_taken_once_while_its_owner_goes_on() {
        loom::model(|| {
            let slots = Arc::new(Slots::new());
            let theirs = slots.clone();
            let drainer = loom::thread::spawn(move || {
                let mut found = Vec::new();
                theirs.drain(|block| found.push(block));
                found
            });
            let mut had = Vec::new();
            let mut left = 0;
            for n in 1..=3 {
                if slots.put(block(n)) {
                    left += 1;
                }
                if n == 2 {
                    had.extend(slots.take(1024, 1024));
                }
            }
            had.extend(drainer.join().unwrap());
            slots.drain(|block| had.push(block));
            had.sort_unstable_by_key(|found| found.key);
            assert_eq!(had.len(), left, "{had:?}");
            assert!(had.windows(2).all(|pair| pair[0].key != pair[1].key), "{had:?}");
            assert!(had.iter().all(|found| *found == block(found.key)), "{had:?}");
        });
    }

    /// Two threads that both run short.
    #[test]
    fn two_that_drain_share_the_blocks() {
        loom::model(|| {
            let slots = Arc::new(Slots::new());
            assert!(slots.put(block(1)) && slots.put(block(2)));
            let drain = |slots: Arc<Slots>| {
                let mut found = Vec::new();
                slots.drain(|block| found.push(block.key));
                found
            };
            let theirs = slots.clone();
            let other = loom::thread::spawn(move || drain(theirs));
            let mut had = drain(slots);
            had.extend(other.join().unwrap());
            had.sort_unstable();
            assert_eq!(had, [1, 2]);
        });
    }
}
