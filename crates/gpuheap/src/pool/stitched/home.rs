//! The home of all physical memory: every byte has one home address, and what is known of it is
//! kept there alone.
//!
//! ```text
//! arena  ├ live ┼ free ┼ lent ┼─── free ───┼ live ┼────────────── gap ──────────────┤  blocks
//!        ├ chunk ┼ chunk ┼──── chunk ──────┼ chunk┤                                    memory
//! ```
//!
//! Blocks are linked by address; a table says for each page which block covers its first byte, so
//! that an address leads to its block in a few steps. When blocks merge or split, the larger part
//! keeps the record, so that the table costs what the smaller part has of pages.

use super::bins::{Bins, Found};
use super::blocks::{Block, Blocks, Last, NONE, State};
use crate::heap::order::{Order, StreamRef};
use crate::source::Segment;

/// What the table of covering blocks goes by: the least that a chunk may be.
const PAGE: u64 = crate::source::GRANULE;

/// Free ranges of small requests that nothing is left in, so many of which are kept for the next.
const ISLANDS: usize = 2;

/// So many seams may be noted before they are looked through.
const SEAMS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Home {
    pub(super) blocks: Blocks,
    large: Bins,
    small: Bins,
    arenas: Vec<Arena>,
    pub(super) gaps: Vec<u32>,
    /// Free blocks that could not merge with the one after them, as other streams freed it.
    seams: Vec<u32>,
    /// How many of them are too many.
    crowded: usize,
    /// Free blocks of small requests with none of them at either side.
    islands: Vec<u32>,
}

#[derive(Debug)]
struct Arena {
    base: u64,
    bytes: u64,
    /// By page: the block that covers its first byte.
    cover: Vec<u32>,
}

impl Home {
    /// Takes addresses with nothing behind them.
    pub(super) fn add_arena(&mut self, base: u64, bytes: u64) {
        let key = self.blocks.insert(Block {
            address: base,
            bytes,
            before: NONE,
            after: NONE,
            next: NONE,
            previous: NONE,
            last: Last::OVER,
            range: NONE,
            state: State::Gap,
            small: false,
            seam: false,
        });
        self.gaps.push(key);
        self.arenas.push(Arena { base, bytes, cover: vec![key; (bytes / PAGE) as usize] });
    }

    /// Addresses to be given back, where there is nothing but gaps.
    pub(super) fn arena_to_go(&self) -> Option<Segment> {
        self.arenas.last().map(|arena| Segment { address: arena.base, bytes: arena.bytes })
    }

    /// They are given back.
    pub(super) fn forget_arena(&mut self) {
        let Some(arena) = self.arenas.pop() else { return };
        let holds = |gap: &u32| self.blocks[*gap].address == arena.base;
        if let Some(at) = self.gaps.iter().position(holds) {
            self.blocks.remove(self.gaps.swap_remove(at));
        }
    }

    /// The best free block, of the first few.
    #[inline]
    pub(super) fn find(
        &self,
        bytes: u64,
        small: bool,
        look: usize,
        stream: StreamRef,
        order: &Order,
    ) -> Found {
        let bins = if small { &self.small } else { &self.large };
        bins.best(bytes, look, &self.blocks, |key| self.blocks[key].last.is_open(stream, order))
    }

    /// The keys of all free blocks of one class.
    pub(super) fn free(&self, small: bool) -> impl Iterator<Item = u32> + '_ {
        let bins = if small { &self.small } else { &self.large };
        bins.keys(&self.blocks)
    }

    /// The block that holds `address`.
    pub(super) fn at(&self, address: u64) -> Option<u32> {
        let holds = |arena: &&Arena| address >= arena.base && address - arena.base < arena.bytes;
        let arena = self.arenas.iter().find(holds)?;
        let mut key = *arena.cover.get(((address - arena.base) / PAGE) as usize)?;
        loop {
            let block = self.blocks.get(key)?;
            if address < block.end() {
                return (address >= block.address).then_some(key);
            }
            key = block.after;
        }
    }

    /// The run of free blocks, of large requests, that covers a range: its first block.
    pub(super) fn run_at(&self, address: u64, bytes: u64) -> Option<u32> {
        let first = self.at(address)?;
        let (mut key, end) = (first, address + bytes);
        loop {
            let block = self.blocks.get(key)?;
            if !block.is_free(false) {
                return None;
            }
            if block.end() >= end {
                return Some(first);
            }
            key = block.after;
        }
    }

    /// Whether `key` begins a run of free blocks, and where the run ends.
    pub(super) fn run_from(&self, key: u32) -> Option<u64> {
        let first = &self.blocks[key];
        if self.blocks.get(first.before).is_some_and(|before| before.is_free(first.small)) {
            return None;
        }
        let mut block = first;
        while let Some(next) = self.blocks.get(block.after).filter(|next| next.is_free(first.small))
        {
            block = next;
        }
        Some(block.end())
    }

    /// The blocks of the run that begins with the block `first`, up to `end`.
    pub(super) fn run(&self, first: u32, end: u64) -> impl Iterator<Item = &Block> {
        let first = self.blocks.get(first);
        std::iter::successors(first, move |block| {
            (block.end() < end).then(|| self.blocks.get(block.after)).flatten()
        })
    }

    /// Makes one block of a range that a run of free blocks covers, which begins with `first`; it is
    /// in no bin.
    pub(super) fn take(&mut self, first: u32, address: u64, bytes: u64, state: State) -> u32 {
        let end = address + bytes;
        let mut key = first;
        self.unbin(key);
        if self.blocks[key].address < address {
            let (left, right) = self.split(key, address);
            self.bin(left);
            key = right;
        }
        while self.blocks[key].end() < end {
            let next = self.blocks[key].after;
            self.unbin(next);
            if self.blocks[next].end() > end {
                let (left, right) = self.split(next, end);
                self.bin(right);
                key = self.join(key, left);
            } else {
                key = self.join(key, next);
            }
        }
        if self.blocks[key].end() > end {
            let (left, right) = self.split(key, end);
            self.bin(right);
            key = left;
        }
        let block = &mut self.blocks[key];
        block.state = state;
        block.range = NONE;
        key
    }

    /// A block becomes free, and merges with its neighbours.
    pub(super) fn put(&mut self, mut key: u32, last: Last, order: &Order) {
        let small = {
            let block = &mut self.blocks[key];
            block.state = State::Free;
            block.last = last;
            block.small
        };
        // More than one at a side where their streams got further since they were freed.
        loop {
            let after = self.blocks[key].after;
            let Some(merged) = self.mergeable(key, after, order) else { break };
            self.unbin(after);
            key = self.join(key, after);
            self.blocks[key].last = merged;
        }
        loop {
            let before = self.blocks[key].before;
            let Some(merged) = self.mergeable(before, key, order) else { break };
            self.unbin(before);
            key = self.join(before, key);
            self.blocks[key].last = merged;
        }
        if small && self.is_island(key) {
            if self.islands.len() < ISLANDS || self.islands.contains(&key) {
                if !self.islands.contains(&key) {
                    self.islands.push(key);
                }
            } else {
                self.blocks[key].small = false;
                let last = self.blocks[key].last;
                return self.put(key, last, order);
            }
        }
        self.note_seams(key);
        self.bin(key);
    }

    /// A block becomes free that stays as it is for the moment.
    pub(super) fn put_apart(&mut self, key: u32, last: Last) {
        let block = &mut self.blocks[key];
        block.state = State::Free;
        block.last = last;
        self.note_seams(key);
        self.bin(key);
    }

    /// Gives what small requests left empty to the large ones: whether there was something.
    pub(super) fn reclaim_islands(&mut self, order: &Order) -> bool {
        let mut any = false;
        for key in std::mem::take(&mut self.islands) {
            let free = self.blocks.get(key).is_some_and(|block| block.is_free(true));
            if free && self.is_island(key) {
                self.unbin(key);
                self.blocks[key].small = false;
                let last = self.blocks[key].last;
                self.put(key, last, order);
                any = true;
            }
        }
        any
    }

    /// Merges free neighbours whose streams are known to be past their frees by now.
    pub(super) fn join_seams(&mut self, order: &Order) {
        let seams = std::mem::take(&mut self.seams);
        for &key in &seams {
            self.blocks[key].seam = false;
        }
        for key in seams {
            // The record may have become another block's: harmless, as neighbours are looked at.
            let Some(block) = self.blocks.get(key).filter(|block| block.state == State::Free)
            else {
                continue;
            };
            let last = block.last;
            self.unbin(key);
            self.put(key, last, order);
        }
        self.crowded = (2 * self.seams.len()).max(SEAMS);
    }

    /// The first blocks of runs that streams have a part in each.
    pub(super) fn seams(&self) -> impl Iterator<Item = u32> + '_ {
        self.seams.iter().map(|seam| {
            let mut key = *seam;
            while let Some(before) = self.blocks.get(key).map(|block| block.before)
                && self.blocks.get(before).is_some_and(|block| block.is_free(false))
            {
                key = before;
            }
            key
        })
    }

    /// Memory was put behind the first `bytes` of a gap: a free block.
    pub(super) fn fill(&mut self, gap: u32, bytes: u64, order: &Order) {
        let mut key = gap;
        if self.blocks[gap].bytes > bytes {
            let (left, right) = self.split(gap, self.blocks[gap].address + bytes);
            self.gaps.retain(|kept| *kept != gap);
            self.gaps.push(right);
            key = left;
        } else {
            self.gaps.retain(|kept| *kept != gap);
        }
        self.put(key, Last::OVER, order);
    }

    /// The memory behind a range that is all free went away.
    pub(super) fn empty(&mut self, first: u32, address: u64, bytes: u64) {
        let mut key = self.take(first, address, bytes, State::Gap);
        let (before, after) = (self.blocks[key].before, self.blocks[key].after);
        for neighbour in [before, after] {
            if self.blocks.get(neighbour).is_some_and(|block| block.state == State::Gap) {
                self.gaps.retain(|kept| *kept != neighbour);
                let first = if neighbour == before { neighbour } else { key };
                let second = if neighbour == before { key } else { neighbour };
                key = self.join(first, second);
            }
        }
        self.blocks[key].last = Last::OVER;
        self.gaps.push(key);
    }

    /// What two neighbours' last use is together, where they may become one block.
    #[inline]
    fn mergeable(&self, first: u32, second: u32, order: &Order) -> Option<Last> {
        let (first, second) = (self.blocks.get(first)?, self.blocks.get(second)?);
        let both = first.state == State::Free
            && second.state == State::Free
            && first.small == second.small;
        if both { first.last.with(second.last, order) } else { None }
    }

    fn note_seams(&mut self, key: u32) {
        let Block { before, after, small, .. } = self.blocks[key];
        for (first, second) in [(before, key), (key, after)] {
            let both = [first, second]
                .map(|key| self.blocks.get(key).is_some_and(|block| block.is_free(small)));
            if both == [true, true] && !self.blocks[first].seam {
                self.blocks[first].seam = true;
                self.seams.push(first);
            }
        }
    }

    pub(super) fn has_seams(&self) -> bool {
        !self.seams.is_empty()
    }

    pub(super) fn has_islands(&self) -> bool {
        !self.islands.is_empty()
    }

    /// Whether so many seams were noted that those that are none any more should go.
    pub(super) fn is_crowded(&self) -> bool {
        self.seams.len() > self.crowded.max(SEAMS)
    }

    fn is_island(&self, key: u32) -> bool {
        let Block { before, after, .. } = self.blocks[key];
        [before, after].iter().all(|key| self.blocks.get(*key).is_none_or(|block| !block.small))
    }

    fn bin(&mut self, key: u32) {
        let bins = if self.blocks[key].small { &mut self.small } else { &mut self.large };
        bins.insert(key, &mut self.blocks);
    }

    fn unbin(&mut self, key: u32) {
        let bins = if self.blocks[key].small { &mut self.small } else { &mut self.large };
        bins.remove(key, &mut self.blocks);
    }

    /// Cuts a block that is in no bin in two. The larger part keeps the record.
    fn split(&mut self, key: u32, at: u64) -> (u32, u32) {
        let old = self.blocks[key].clone();
        let (left, right) = (at - old.address, old.end() - at);
        let mut fresh = old.clone();
        fresh.seam = false;
        if left >= right {
            (fresh.address, fresh.bytes, fresh.before) = (at, right, key);
            fresh.seam = old.seam;
            let fresh = self.blocks.insert(fresh);
            if old.seam {
                self.seams.push(fresh);
            }
            let kept = &mut self.blocks[key];
            (kept.bytes, kept.after) = (left, fresh);
            if old.after != NONE {
                self.blocks[old.after].before = fresh;
            }
            self.cover(fresh);
            (key, fresh)
        } else {
            (fresh.bytes, fresh.after) = (left, key);
            let fresh = self.blocks.insert(fresh);
            let kept = &mut self.blocks[key];
            (kept.address, kept.bytes, kept.before) = (at, right, fresh);
            if old.before != NONE {
                self.blocks[old.before].after = fresh;
            }
            self.cover(fresh);
            (fresh, key)
        }
    }

    /// Makes one block of two neighbours in no bin. The larger one keeps its record.
    fn join(&mut self, first: u32, second: u32) -> u32 {
        let (before, after) = (self.blocks[first].before, self.blocks[second].after);
        let (address, end) = (self.blocks[first].address, self.blocks[second].end());
        let (kept, gone) = if self.blocks[first].bytes >= self.blocks[second].bytes {
            (first, second)
        } else {
            (second, first)
        };
        let (from, to) = (self.blocks[gone].address, self.blocks[gone].end());
        let block = &mut self.blocks[kept];
        (block.address, block.bytes) = (address, end - address);
        (block.before, block.after) = (before, after);
        if before != NONE {
            self.blocks[before].after = kept;
        }
        if after != NONE {
            self.blocks[after].before = kept;
        }
        self.blocks.remove(gone);
        self.cover_range(kept, from, to);
        kept
    }

    fn cover(&mut self, key: u32) {
        let block = &self.blocks[key];
        let (from, to) = (block.address, block.end());
        self.cover_range(key, from, to);
    }

    /// Notes the block that covers the pages that begin in a range.
    #[inline]
    fn cover_range(&mut self, key: u32, from: u64, to: u64) {
        let holds = |arena: &&mut Arena| from >= arena.base && from - arena.base < arena.bytes;
        let Some(arena) = self.arenas.iter_mut().find(holds) else { return };
        let first = (from - arena.base).div_ceil(PAGE) as usize;
        let end = (to - arena.base).div_ceil(PAGE) as usize;
        if let Some(pages) = arena.cover.get_mut(first..end) {
            pages.fill(key);
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self, order: &Order) {
        let binned: std::collections::HashSet<u32> =
            self.free(true).chain(self.free(false)).collect();
        for (key, block) in self.blocks.iter() {
            assert!(block.bytes > 0, "{key} is empty");
            assert_eq!(binned.contains(&key), block.state == State::Free, "{key} {block:?}");
            assert_eq!(self.gaps.contains(&key), block.state == State::Gap, "{key} {block:?}");
            if let Some(next) = self.blocks.get(block.after) {
                assert_eq!((next.address, next.before), (block.end(), key));
                let merge = self.mergeable(key, block.after, order).is_some();
                assert!(!merge || self.seams.contains(&key) && block.seam, "{block:?} {next:?}");
            }
        }
        for arena in &self.arenas {
            let (mut at, end) = (arena.base, arena.base + arena.bytes);
            let mut key = self.at(at).expect("a block at the base");
            while at < end {
                let block = &self.blocks[key];
                assert_eq!(block.address, at);
                for page in
                    (at - arena.base).div_ceil(PAGE)..(block.end() - arena.base).div_ceil(PAGE)
                {
                    if page < 4096 {
                        assert_eq!(arena.cover[page as usize], key, "page {page}");
                    }
                }
                (at, key) = (block.end(), block.after);
            }
        }
    }
}
