//! Free blocks by size. Finds the smallest that fits, at a cost that does not depend on their
//! number.
//!
//! Up to 2 MiB every size has a bin of its own, found through a bitmap. Larger blocks, of which a
//! device holds few, are in a tree. With a tree for all sizes an event cost 260 ns at 1,000 live
//! blocks and 730 ns at 100,000, most of it in cache misses on the way down.

use std::collections::BTreeSet;

/// Unit of sizes, in bytes: the alignment of the driver's allocations (H200, driver 580).
pub(super) const ROUNDING: u64 = 512;

/// Number of sizes with a bin, one for each multiple of [`ROUNDING`], up to 2 MiB.
const BINS: usize = 4096;
const WORDS: usize = BINS / 64;
const _: () = assert!(WORDS == u64::BITS as usize);

/// Size and key of a free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// A multiple of [`ROUNDING`], or the size of a request; not zero.
    pub(super) bytes: u64,
    pub(super) key: u32,
}

impl Entry {
    /// Returns the number of the entry's size; `None` if that size has no bin.
    fn size(self) -> Option<usize> {
        let size = (self.bytes.div_ceil(ROUNDING) as usize).wrapping_sub(1);
        (size < BINS).then_some(size)
    }
}

/// Position of each block in its bin, by key. One table serves all bins, since a block is in one at
/// most.
#[derive(Debug, Default)]
pub(super) struct Positions(Vec<u32>);

impl Positions {
    fn set(&mut self, key: u32, position: usize) {
        if self.0.len() <= key as usize {
            self.0.resize(key as usize + 1, 0);
        }
        self.0[key as usize] = position as u32;
    }
}

#[derive(Debug)]
pub(super) struct SizeBins {
    /// Bit set of the sizes with blocks in their bins, and the bit set of its non-zero words.
    bitmap: [u64; WORDS],
    summary: u64,
    /// Index in `bins` of each size's bin, or [`NO_BIN`]. Empty before the first bin. With a hash
    /// map a pair took 120 instructions more.
    places: Vec<u16>,
    bins: Vec<Bin>,
    large: Large,
    len: usize,
}

const NO_BIN: u16 = u16::MAX;

/// Blocks of one size, last in first out: the last one's memory is the likeliest to be in the
/// device's cache.
#[derive(Debug)]
struct Bin {
    bytes: u64,
    keys: Vec<u32>,
}

impl Default for SizeBins {
    fn default() -> SizeBins {
        SizeBins {
            bitmap: [0; WORDS],
            summary: 0,
            places: Vec::new(),
            bins: Vec::new(),
            large: Large::default(),
            len: 0,
        }
    }
}

impl SizeBins {
    pub(super) fn insert(&mut self, entry: Entry, positions: &mut Positions) {
        self.len += 1;
        let Some(size) = entry.size() else {
            self.large.insert(entry);
            return;
        };
        if self.bin(size).is_none() {
            self.make_bin(size);
        }
        let Some(bin) = self.bin(size) else { return };
        positions.set(entry.key, bin.keys.len());
        bin.keys.push(entry.key);
        self.bitmap[size / 64] |= 1 << (size % 64);
        self.summary |= 1 << (size / 64);
    }

    pub(super) fn remove(&mut self, entry: Entry, positions: &mut Positions) {
        let Some(size) = entry.size() else {
            self.len -= usize::from(self.large.remove(entry));
            return;
        };
        let Some(keys) = self.bin(size).map(|bin| &mut bin.keys) else { return };
        let Some(position) = positions.0.get(entry.key as usize).map(|at| *at as usize) else {
            return;
        };
        if keys.get(position) != Some(&entry.key) {
            return;
        }
        keys.swap_remove(position);
        if let Some(moved) = keys.get(position) {
            positions.set(*moved, position);
        }
        if keys.is_empty() {
            let word = &mut self.bitmap[size / 64];
            *word &= !(1 << (size % 64));
            if *word == 0 {
                self.summary &= !(1 << (size / 64));
            }
        }
        self.len -= 1;
    }

    /// Returns the smallest block of at least `bytes`.
    pub(super) fn best(&self, bytes: u64) -> Option<Entry> {
        if self.len == 0 {
            return None;
        }
        let wanted = Entry { bytes, key: 0 };
        let binned = wanted.size().and_then(|size| self.binned(size));
        binned.or_else(|| self.large.best(wanted))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        let binned = self
            .bins
            .iter()
            .flat_map(|bin| bin.keys.iter().map(|&key| Entry { bytes: bin.bytes, key }));
        binned.chain(self.large.iter())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the smallest block of at least `size` that is in a bin.
    fn binned(&self, size: usize) -> Option<Entry> {
        let first = size / 64;
        let here = self.bitmap[first] & (u64::MAX << (size % 64));
        let (word, bits) = if here != 0 {
            (first, here)
        } else {
            // Shifted in two steps: a shift by all 64 bits would overflow.
            let above = self.summary & ((u64::MAX << first) << 1);
            if above == 0 {
                return None;
            }
            let word = above.trailing_zeros() as usize;
            (word, self.bitmap[word])
        };
        let size = word * 64 + bits.trailing_zeros() as usize;
        let bin = self.bins.get(usize::from(*self.places.get(size)?))?;
        Some(Entry { bytes: bin.bytes, key: *bin.keys.last()? })
    }

    fn bin(&mut self, size: usize) -> Option<&mut Bin> {
        self.bins.get_mut(usize::from(*self.places.get(size)?))
    }

    #[cold]
    fn make_bin(&mut self, size: usize) {
        if self.places.is_empty() {
            self.places.resize(BINS, NO_BIN);
        }
        self.places[size] = self.bins.len() as u16;
        self.bins.push(Bin { bytes: (size as u64 + 1) * ROUNDING, keys: Vec::new() });
    }
}

/// Blocks whose sizes have no bins. The last one inserted is kept apart, so that a program that
/// allocates again what it just freed never touches the tree. Through the tree such a pair cost 320
/// instructions more than 1,040.
#[derive(Debug, Default)]
struct Large {
    tree: BTreeSet<Entry>,
    latest: Option<Entry>,
}

impl Large {
    fn insert(&mut self, entry: Entry) {
        if let Some(earlier) = self.latest.replace(entry) {
            self.tree.insert(earlier);
        }
    }

    fn remove(&mut self, entry: Entry) -> bool {
        if self.latest == Some(entry) {
            self.latest = None;
            return true;
        }
        !self.tree.is_empty() && self.tree.remove(&entry)
    }

    fn best(&self, wanted: Entry) -> Option<Entry> {
        let latest = self.latest.filter(|latest| *latest >= wanted);
        if self.tree.is_empty() {
            return latest;
        }
        let other = self.tree.range(wanted..).next().copied();
        match (latest, other) {
            (Some(latest), Some(other)) => Some(latest.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn iter(&self) -> impl Iterator<Item = Entry> {
        self.tree.iter().copied().chain(self.latest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{cases, fewer};

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn finds_the_smallest_that_fits(
            sizes in prop::collection::vec(prop_oneof![1_u64..200, 1_u64..5000, 4000_u64..9000], 1..fewer(60)),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..fewer(40)),
            asked in prop::collection::vec(1_u64..9500, 1..20),
        ) {
            let (mut size_bins, mut positions) = (SizeBins::default(), Positions::default());
            let mut naive: Vec<(u64, u32)> =
                sizes.iter().enumerate().map(|(key, units)| (units * ROUNDING, key as u32)).collect();
            for &(bytes, key) in &naive {
                size_bins.insert(Entry { bytes, key }, &mut positions);
            }
            for index in removed {
                if naive.is_empty() {
                    break;
                }
                let (bytes, key) = naive.swap_remove(index.index(naive.len()));
                size_bins.remove(Entry { bytes, key }, &mut positions);
                // Removing an entry twice is harmless.
                size_bins.remove(Entry { bytes, key }, &mut positions);
            }
            let mut left: Vec<_> = size_bins.iter().map(|entry| (entry.bytes, entry.key)).collect();
            left.sort_unstable();
            naive.sort_unstable();
            prop_assert_eq!(&left, &naive);
            prop_assert_eq!(size_bins.len(), naive.len());
            for units in asked {
                let best = naive.iter().map(|found| found.0).find(|bytes| *bytes >= units * ROUNDING);
                prop_assert_eq!(size_bins.best(units * ROUNDING).map(|entry| entry.bytes), best);
            }
        }
    }
}
