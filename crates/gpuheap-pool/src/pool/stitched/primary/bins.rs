//! Keeps free blocks in bins by size. Finds the smallest block that fits, or a block up to 1.6 %
//! larger, without a tree.
//!
//! Each size up to 64 KiB has a separate bin. A larger size shares its bin with sizes up to 1.6 %
//! larger. Two levels of bit sets mark the bins that contain blocks. The blocks of a bin are linked
//! through their records, last freed first.

use super::blocks::{Blocks, NONE};
use crate::pool::kind::ROUNDING;

/// Number of bins for each power of two.
const PER_CLASS: usize = 64;
/// Number of classes of bins, one for each power of two. The first class contains all sizes below
/// [`PER_CLASS`] units.
const CLASSES: usize = 36;
/// Number of bins that contain blocks of only one size.
const EXACT: usize = 2 * PER_CLASS;

#[derive(Debug)]
pub(crate) struct Bins {
    /// For each class, the bit set of its bins that contain blocks.
    bits: [u64; CLASSES],
    summary: u64,
    heads: Vec<u32>,
}

impl Default for Bins {
    fn default() -> Bins {
        Bins { bits: [0; CLASSES], summary: 0, heads: vec![NONE; CLASSES * PER_CLASS] }
    }
}

/// Returns the index of the bin for a size.
fn bin_of(bytes: u64) -> usize {
    let units = bytes.div_ceil(ROUNDING);
    if units < PER_CLASS as u64 {
        return units as usize;
    }
    let power = units.ilog2() as usize;
    let class = power - 5;
    if class >= CLASSES {
        return CLASSES * PER_CLASS - 1;
    }
    let sub = (units >> (power - 6)) as usize & (PER_CLASS - 1);
    class * PER_CLASS + sub
}

impl Bins {
    #[inline]
    pub(crate) fn insert(&mut self, key: u32, blocks: &mut Blocks) {
        let bin = bin_of(blocks[key].bytes);
        let head = self.heads[bin];
        let block = &mut blocks[key];
        (block.next, block.previous) = (head, NONE);
        if head != NONE {
            blocks[head].previous = key;
        }
        self.heads[bin] = key;
        self.bits[bin / PER_CLASS] |= 1 << (bin % PER_CLASS);
        self.summary |= 1 << (bin / PER_CLASS);
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: u32, blocks: &mut Blocks) {
        let (next, previous, bytes) = {
            let block = &blocks[key];
            (block.next, block.previous, block.bytes)
        };
        if next != NONE {
            blocks[next].previous = previous;
        }
        if previous != NONE {
            blocks[previous].next = next;
            return;
        }
        let bin = bin_of(bytes);
        self.heads[bin] = next;
        if next == NONE {
            let class = bin / PER_CLASS;
            self.bits[class] &= !(1 << (bin % PER_CLASS));
            if self.bits[class] == 0 {
                self.summary &= !(1 << class);
            }
        }
    }

    /// Searches the first `search_depth` blocks of at least `bytes`. Finds the smallest block for
    /// which `usable` is `true`, and the first other block for which `serves` is `true`.
    #[inline]
    pub(crate) fn best(
        &self,
        bytes: u64,
        search_depth: usize,
        blocks: &Blocks,
        usable: impl Fn(u32) -> bool,
        serves: impl Fn(u32) -> bool,
    ) -> Found {
        let mut found = Found::default();
        let first = bin_of(bytes);
        let (mut bin, mut left) = (Some(first), search_depth.max(1));
        while let Some(at) = bin {
            let mut key = self.heads[at];
            let mut steps = search_depth.max(1);
            let mut best = (u64::MAX, u64::MAX);
            while key != NONE && steps > 0 {
                let block = &blocks[key];
                if block.bytes >= bytes {
                    left = left.saturating_sub(1);
                    // Of blocks of equal size, the block at the lowest address is best, so that
                    // long-lived blocks gather at one end.
                    let rank = (block.bytes, block.address);
                    if usable(key) {
                        if rank < best {
                            best = rank;
                            found.usable = Some(key);
                        }
                        if at < EXACT {
                            break;
                        }
                    } else if found.other.is_none() && serves(key) {
                        found.other = Some(key);
                    }
                }
                steps -= 1;
                key = block.next;
            }
            if found.usable.is_some() || left == 0 {
                break;
            }
            bin = self.after(at);
        }
        found
    }

    pub(crate) fn keys<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = u32> + 'a {
        let first = if self.heads[0] == NONE { self.after(0) } else { Some(0) };
        // Skips empty bins: reading every bin took a third of the time of many requests.
        let bins = std::iter::successors(first, |bin| self.after(*bin));
        bins.flat_map(move |bin| {
            let link = |key: u32| (key != NONE).then_some(key);
            std::iter::successors(link(self.heads[bin]), move |key| link(blocks[*key].next))
        })
    }

    /// Returns the next bin after `bin` that contains blocks.
    fn after(&self, bin: usize) -> Option<usize> {
        let (class, sub) = (bin / PER_CLASS, bin % PER_CLASS);
        // Shifted in two steps: a shift by all bits would overflow.
        let here = self.bits[class] & ((u64::MAX << sub) << 1);
        if here != 0 {
            return Some(class * PER_CLASS + here.trailing_zeros() as usize);
        }
        let above = self.summary & ((u64::MAX << class) << 1);
        if above == 0 {
            return None;
        }
        let class = above.trailing_zeros() as usize;
        Some(class * PER_CLASS + self.bits[class].trailing_zeros() as usize)
    }
}

/// Result of [`Bins::best`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    pub(crate) usable: Option<u32>,
    /// Key of a block that fits but is not usable now.
    pub(crate) other: Option<u32>,
}
