//! Slots: places for blocks that a thread freed and keeps.
//!
//! ```text
//! bin 0   ├─ size, key, address ─┼─ size, key, address ─┼─ … ─┤   each bin has DEPTH places
//! bin 1   ├─ …
//! ```
//!
//! The caller ensures that only one thread at a time accesses the slots.

use crate::sync::OwnedU64;

/// Maximum number of blocks in one bin. With eight, a thread with sixteen live blocks of twelve
/// sizes always found a block (`threads` of `benches/peers`). Eight blocks take two cache lines.
const DEPTH: usize = 8;

/// Base-2 logarithm of the smallest size with its own bins.
const FIRST: u32 = 9;
/// Base-2 logarithm of the largest cached size: 128 MiB.
const LAST: u32 = 27;
/// Base-2 logarithm of the number of bins for each doubling of the size.
const SPLIT: u32 = 2;

/// Number of bins.
const BINS: usize = (((LAST - FIRST) << SPLIT) + 2) as usize;

/// Size of the largest block that is kept, in bytes.
pub(crate) const LARGEST: u64 = 1 << LAST;

/// A block that waits for the next request of its thread and stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedBlock {
    /// Key of the block in the policy.
    pub(crate) key: u32,
    pub(crate) address: u64,
    /// Size with the policy's rounding, in bytes; at most [`LARGEST`].
    pub(crate) bytes: u64,
    /// A moment after the free of the block. Moments count the context's waits and events.
    /// [`NEVER`] if no moment after the free is known, zero if the work before the free has
    /// completed.
    pub(crate) before: u64,
}

/// Value of [`CachedBlock::before`] if no moment after the block's free is known.
pub(crate) const NEVER: u64 = u64::MAX;

/// Bits that mark a cached block. They are low bits of the block's address, because an address is a
/// multiple of 256. `MARKED`: the block was freed before the last moment that its cache recorded.
/// `COMPLETED`: the work before the free has completed. A newly cached block has no mark, so that
/// caching it costs nothing.
const MARKED: u64 = 1;
const COMPLETED: u64 = 2;
const MARKS: u64 = MARKED | COMPLETED;

/// A place for one block.
#[derive(Debug, Default)]
pub(crate) struct CacheSlot {
    /// The block's size in the upper half, its key in the lower half; zero if the slot is empty.
    block: OwnedU64,
    address: OwnedU64,
}

/// The slots of one thread and stream.
#[derive(Debug)]
pub(crate) struct CacheSlots {
    slots: Box<[CacheSlot]>,
    /// One bit for each bin; 1 if the bin may hold a block.
    filled: [OwnedU64; BINS.div_ceil(64)],
}

impl Default for CacheSlots {
    fn default() -> CacheSlots {
        let slots = (0..BINS * DEPTH).map(|_| CacheSlot::default()).collect();
        CacheSlots { slots, filled: Default::default() }
    }
}

impl CacheSlots {
    /// Keeps a block of at most [`LARGEST`] bytes. Returns `false` if its bin is full.
    pub(crate) fn put(&self, block: CachedBlock) -> bool {
        let Some(slot) = self.room(block.bytes) else { return false };
        slot.put(block);
        self.note_filled(block.bytes);
        true
    }

    /// Returns an empty slot for a block of at most [`LARGEST`] bytes, if its bin has one. Call
    /// [`note_filled`](CacheSlots::note_filled) once the block is in the slot.
    #[inline]
    pub(crate) fn room(&self, bytes: u64) -> Option<&CacheSlot> {
        self.places(bin(bytes)).iter().find(|slot| slot.is_empty())
    }

    #[inline]
    pub(crate) fn note_filled(&self, bytes: u64) {
        let bin = bin(bytes);
        let word = &self.filled[bin / 64];
        word.set(word.get() | 1 << (bin % 64));
    }

    /// Returns the slot with the smallest block that has `bytes` to `most` bytes in the bin of
    /// `bytes`. `bytes` is at most [`LARGEST`].
    #[inline]
    pub(crate) fn find(&self, bytes: u64, most: u64) -> Option<&CacheSlot> {
        let bin = bin(bytes);
        let (word, bit) = (&self.filled[bin / 64], 1 << (bin % 64));
        if word.get() & bit == 0 {
            return None;
        }
        let (mut best, mut best_bytes, mut is_empty) = (None, most + 1, true);
        for slot in self.places(bin) {
            let size = slot.bytes();
            is_empty &= size == 0;
            if bytes <= size && size < best_bytes {
                (best, best_bytes) = (Some(slot), size);
                if size == bytes {
                    break;
                }
            }
        }
        if is_empty {
            // This store may set a bit again that another thread cleared. A later search clears
            // that bit.
            word.set(word.get() & !bit);
        }
        best
    }

    /// Takes out all blocks. [`MARKED`] blocks were freed before `moment`, the last moment that the
    /// cache recorded.
    pub(crate) fn drain(&self, moment: u64, mut each: impl FnMut(CachedBlock)) {
        for (at, word) in self.filled.iter().enumerate() {
            let mut bits = word.take();
            while bits != 0 {
                let bin = at * 64 + bits.trailing_zeros() as usize;
                let taken = self.places(bin).iter().filter_map(|slot| slot.take_marked(moment));
                taken.for_each(&mut each);
                bits &= bits - 1;
            }
        }
    }

    /// Takes half of the blocks out of the bin of `bytes`. The next frees then find room, so the
    /// thread takes the store's lock only once for several blocks.
    pub(crate) fn drain_half(&self, bytes: u64, moment: u64, each: impl FnMut(CachedBlock)) {
        let taken = self.places(bin(bytes)).iter().filter_map(|slot| slot.take_marked(moment));
        taken.take(DEPTH / 2).for_each(each);
    }

    pub(crate) fn mark(&self, note: Note) {
        for (at, word) in self.filled.iter().enumerate() {
            let mut bits = word.get();
            while bits != 0 {
                let bin = at * 64 + bits.trailing_zeros() as usize;
                self.places(bin).iter().for_each(|slot| slot.mark(note));
                bits &= bits - 1;
            }
        }
    }

    #[inline]
    fn places(&self, bin: usize) -> &[CacheSlot] {
        &self.slots[bin * DEPTH..][..DEPTH]
    }
}

impl CacheSlot {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.block.get() == 0
    }

    /// Returns the size of the block; 0 if the slot is empty.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.block.get() >> 32
    }

    /// Keeps a block of at most [`LARGEST`] bytes in an empty slot.
    #[inline]
    pub(crate) fn put(&self, block: CachedBlock) {
        debug_assert!(self.is_empty(), "a block is in the slot");
        debug_assert_eq!(block.address & MARKS, 0, "an address is a multiple of 256");
        self.block.set(block.bytes << 32 | u64::from(block.key));
        self.address.set(block.address);
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<CachedBlock> {
        let block = self.block.get();
        if block == 0 {
            return None;
        }
        self.block.set(0);
        let address = self.address.get() & !MARKS;
        Some(CachedBlock { key: block as u32, address, bytes: block >> 32, before: NEVER })
    }

    /// Takes out the block, and sets its [`CachedBlock::before`]. A [`MARKED`] block gets `moment`,
    /// the last moment that its cache recorded.
    pub(crate) fn take_marked(&self, moment: u64) -> Option<CachedBlock> {
        let marks = self.address.get() & MARKS;
        let before = match marks {
            0 => NEVER,
            MARKED => moment,
            _ => 0,
        };
        self.take().map(|block| CachedBlock { before, ..block })
    }

    /// Adds the mark for `note` to the block in the slot. Does nothing if the slot is empty.
    pub(crate) fn mark(&self, note: Note) {
        if self.is_empty() {
            return;
        }
        let address = self.address.get();
        self.address.set(match note {
            Note::Completed => address | COMPLETED,
            Note::Marked { earlier_completed: true } if address & MARKED != 0 => {
                address | COMPLETED
            }
            Note::Marked { .. } => address | MARKED,
        });
    }
}

/// Fact about the last uses of all blocks in a cache, as shown by a wait or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The work before the frees of the blocks has completed.
    Completed,
    /// All blocks in the cache were freed before a new moment. The caller then records that moment
    /// in the cache. `earlier_completed` is `true` if the work before the last recorded moment has
    /// completed.
    Marked { earlier_completed: bool },
}

/// Returns the bin of a size. Each doubling from 512 bytes on has four bins. All smaller sizes
/// share one bin.
#[inline]
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
    use std::collections::{BTreeMap, BTreeSet};

    use gpuheap_pool::testing::{cases, fewer};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bins_grow_by_quarter_doublings() {
        let sizes: Vec<u64> = (0..=LARGEST.ilog2())
            .flat_map(|log| [1 << log, (1 << log) + 1, (1_u64 << log) * 3 / 2])
            .filter(|bytes| *bytes <= LARGEST)
            .collect();
        for pair in sizes.windows(2) {
            assert!(bin(pair[0]) <= bin(pair[1]) || pair[0] > pair[1], "{pair:?}");
        }
        assert_eq!((bin(1), bin(511), bin(512)), (0, 0, 1));
        assert_eq!((bin(1024), bin(1279), bin(1280)), (5, 5, 6));
        assert_eq!(bin(LARGEST), BINS - 1);
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn stored_blocks_come_out_once(
            actions in prop::collection::vec((0_u8..5, 512_u64..4096), 1..fewer(200)),
        ) {
            const MOMENT: u64 = 7;
            let slots = CacheSlots::default();
            let mut inside = BTreeSet::new();
            // Expected [`CachedBlock::before`] of each marked block, keyed by address.
            let mut before = BTreeMap::new();
            for (key, (action, bytes)) in actions.into_iter().enumerate() {
                let address = bytes << 20 | (key as u64) << 8;
                let block = CachedBlock { key: key as u32, address, bytes, before: NEVER };
                let in_bin = |other: &(u64, u64)| bin(other.1) == bin(bytes);
                match action {
                    0 => {
                        let has_place = inside.iter().filter(|other| in_bin(other)).count() < DEPTH;
                        prop_assert_eq!(slots.put(block), has_place);
                        if has_place {
                            inside.insert((block.address, bytes));
                        }
                    }
                    1 => {
                        let near = inside.iter().filter(|other| in_bin(other));
                        let fits = near.map(|(_, other)| *other);
                        let smallest = fits.filter(|o| (bytes..=bytes + 100).contains(o)).min();
                        let found = slots.find(bytes, bytes + 100).and_then(CacheSlot::take);
                        prop_assert_eq!(found.map(|found| found.bytes), smallest);
                        if let Some(found) = found {
                            prop_assert!(inside.remove(&(found.address, found.bytes)));
                        }
                    }
                    2 => slots.drain_half(bytes, MOMENT, |found| {
                        assert!(inside.remove(&(found.address, found.bytes)));
                        let known = before.get(&found.address).copied().unwrap_or(NEVER);
                        assert_eq!(found.before, known);
                    }),
                    3 => {
                        slots.mark(Note::Completed);
                        before.extend(inside.iter().map(|(address, _)| (*address, 0)));
                    }
                    _ => {
                        let earlier_completed = bytes % 2 == 0;
                        slots.mark(Note::Marked { earlier_completed });
                        for (address, _) in &inside {
                            let known = before.get(address).copied().unwrap_or(NEVER);
                            let is_over = known == 0 || known == MOMENT && earlier_completed;
                            before.insert(*address, if is_over { 0 } else { MOMENT });
                        }
                    }
                }
            }
            slots.drain(MOMENT, |found| {
                assert!(inside.remove(&(found.address, found.bytes)));
                assert_eq!(found.before, before.get(&found.address).copied().unwrap_or(NEVER));
            });
            prop_assert!(inside.is_empty());
        }
    }
}
