//! Manages the primary addresses of physical memory. Every byte has one primary address, and only
//! that address records the byte's state.
//!
//! ```text
//! addresses  ├ live ┼ free ┼ mapped ┼─── free ───┼ live ┼─────────── unbacked ────────────┤  blocks
//!            ├ chunk ┼ chunk ┼──── chunk ──────┼ chunk┤                                    memory
//! ```
//!
//! Blocks are linked by address. For each page, a table contains the key of the block that covers
//! the page's first byte. The search for the block of an address therefore takes a few steps. When
//! blocks merge or split, the larger part keeps its record, so the table changes only for the pages
//! of the smaller part.

mod bins;
mod blocks;
mod eligibility;
#[cfg(test)]
mod tests;

use rustc_hash::FxHashSet;

use bins::Bins;
pub(crate) use bins::Found;
use blocks::UsedPart;
pub(crate) use blocks::{Block, Blocks, LastUse, NONE, State};
pub(crate) use eligibility::Eligibility;

use crate::order::Order;
use crate::source::Segment;
use crate::stream::StreamRef;

/// Size, in bytes, of the pages in [`AddressRange::cover`]: the size of the smallest chunk.
const PAGE: u64 = crate::source::GRANULE;

/// Number of empty small runs that are kept for small requests. Others serve large requests too.
const KEPT_EMPTY_RUNS: usize = 2;

/// Least bound on the boundaries between unmerged free blocks. Above the bound, merging is retried.
const BOUNDARIES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub(crate) blocks: Blocks,
    large: Bins,
    small: Bins,
    /// Ranges of addresses, sorted by address. Blocks cover each range completely.
    address_ranges: Vec<AddressRange>,
    pub(crate) unbacked: Vec<u32>,
    /// Keys of free blocks that could not merge with the next block, because another stream freed
    /// that block.
    boundaries: Vec<u32>,
    /// Length of `boundaries` above which merging is tried again, at least [`BOUNDARIES`].
    crowded: usize,
    /// Keys of empty small runs. An empty run is a free block that is set apart for small requests,
    /// and its neighbours are not set apart.
    empty_runs: Vec<u32>,
    /// Keys of freed blocks whose merge with their neighbours is deferred. Some of these blocks may
    /// have been reused meanwhile.
    deferred: Vec<u32>,
}

#[derive(Debug)]
struct AddressRange {
    base: u64,
    bytes: u64,
    /// For each page, the key of the block that covers the page's first byte.
    cover: Vec<u32>,
}

impl Primary {
    /// Adds addresses without memory.
    pub(crate) fn add_address_range(&mut self, base: u64, bytes: u64) {
        let key = self.add_block(base, bytes, State::Unbacked);
        self.unbacked.push(key);
    }

    /// Adds a segment that was taken from the driver, as one free block.
    pub(crate) fn add_segment(&mut self, base: u64, bytes: u64) {
        let key = self.add_block(base, bytes, State::Free);
        self.bin(key);
    }

    /// Removes the addresses of a segment that was all free and has been given back.
    pub(crate) fn remove_segment(&mut self, first: u32, base: u64, bytes: u64) {
        let key = self.take(first, base, bytes, State::Unbacked);
        self.blocks.remove(key);
        self.address_ranges.retain(|addresses| addresses.base != base);
    }

    /// Adds a range of addresses that one new block covers. Returns the key of the block.
    fn add_block(&mut self, base: u64, bytes: u64, state: State) -> u32 {
        let key = self.blocks.insert(Block {
            address: base,
            bytes,
            before: NONE,
            after: NONE,
            next: NONE,
            previous: NONE,
            last: LastUse::COMPLETED,
            part: UsedPart::ALL,
            range: NONE,
            state,
            small: false,
            boundary: false,
            binned: false,
            listed: false,
        });
        let at = self.address_ranges.partition_point(|addresses| addresses.base < base);
        let cover = vec![key; bytes.div_ceil(PAGE) as usize];
        self.address_ranges.insert(at, AddressRange { base, bytes, cover });
        key
    }

    /// Returns the last address range if all of it is unbacked. Its addresses can then be given
    /// back.
    pub(crate) fn last_unused_address_range(&self) -> Option<Segment> {
        let &AddressRange { base, bytes, .. } = self.address_ranges.last()?;
        let is_all = |unbacked: &Block| (unbacked.address, unbacked.bytes) == (base, bytes);
        let is_unbacked = self.unbacked.iter().any(|unbacked| is_all(&self.blocks[*unbacked]));
        is_unbacked.then_some(Segment { address: base, bytes })
    }

    /// Removes the last address range. Its addresses were given back.
    pub(crate) fn remove_last_address_range(&mut self) {
        let Some(addresses) = self.address_ranges.pop() else { return };
        let holds = |unbacked: &u32| self.blocks[*unbacked].address == addresses.base;
        if let Some(at) = self.unbacked.iter().position(holds) {
            self.blocks.remove(self.unbacked.swap_remove(at));
        }
    }

    /// Searches the first few fitting free blocks for the best block that `stream` may use.
    #[inline]
    pub(crate) fn find(
        &self,
        bytes: u64,
        small: bool,
        search_depth: usize,
        stream: StreamRef,
        order: &Order,
    ) -> Found {
        self.find_among(bytes, small, search_depth, stream, order, |_| true)
    }

    /// Searches the first few fitting free blocks. Finds the best block that `stream` may use now,
    /// and the first other block that `eligibility` allows.
    pub(crate) fn find_eligible(
        &self,
        eligibility: Eligibility,
        bytes: u64,
        small: bool,
        search_depth: usize,
        stream: StreamRef,
        order: &Order,
    ) -> Found {
        let serves = |key: u32| eligibility.allows(self.blocks[key].last, stream, order);
        self.find_among(bytes, small, search_depth, stream, order, serves)
    }

    /// Searches the first few fitting free blocks. Finds the best block that `stream` may use now,
    /// and the first other block for which `serves` returns `true`.
    #[inline]
    fn find_among(
        &self,
        bytes: u64,
        small: bool,
        search_depth: usize,
        stream: StreamRef,
        order: &Order,
        serves: impl Fn(u32) -> bool,
    ) -> Found {
        let bins = if small { &self.small } else { &self.large };
        let usable = |key: u32| self.blocks[key].last.is_usable_on(stream, order);
        bins.best(bytes, search_depth, &self.blocks, usable, serves)
    }

    /// Returns the keys of all free blocks.
    pub(crate) fn all_free_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.free_blocks(true).chain(self.free_blocks(false))
    }

    /// Returns the keys of all free blocks for small or for large requests.
    pub(crate) fn free_blocks(&self, small: bool) -> impl Iterator<Item = u32> + '_ {
        let bins = if small { &self.small } else { &self.large };
        let is_deferred = move |key: &u32| {
            self.blocks.get(*key).is_some_and(|block| block.is_free(small) && !block.binned)
        };
        bins.keys(&self.blocks).chain(self.deferred.iter().copied().filter(is_deferred))
    }

    /// Returns `true` if `key` is a free block for large requests at `address` with at least
    /// `bytes`. This check avoids a search by address.
    #[inline]
    pub(crate) fn is_free_at(&self, key: u32, address: u64, bytes: u64) -> bool {
        self.blocks.get(key).is_some_and(|block| {
            block.address == address && block.bytes >= bytes && block.is_free(false)
        })
    }

    /// Returns the index of the address range that holds `address`.
    #[inline]
    fn address_range_at(&self, address: u64) -> Option<usize> {
        let at = self
            .address_ranges
            .partition_point(|addresses| addresses.base <= address)
            .checked_sub(1)?;
        (address - self.address_ranges[at].base < self.address_ranges[at].bytes).then_some(at)
    }

    pub(crate) fn block_at(&self, address: u64) -> Option<u32> {
        let addresses = &self.address_ranges[self.address_range_at(address)?];
        let mut key = *addresses.cover.get(((address - addresses.base) / PAGE) as usize)?;
        loop {
            let block = self.blocks.get(key)?;
            if address < block.end() {
                return (address >= block.address).then_some(key);
            }
            key = block.after;
        }
    }

    pub(crate) fn holds_memory(&self, address: u64) -> bool {
        self.block_at(address).is_some_and(|key| self.blocks[key].state != State::Unbacked)
    }

    /// If free blocks for large requests cover a range, returns the first of these blocks.
    pub(crate) fn large_run_at(&self, address: u64, bytes: u64) -> Option<u32> {
        self.run_where(address, bytes, |block| block.is_free(false))
    }

    /// If free blocks (for small or large requests) cover a range, returns the first of them.
    pub(crate) fn free_run_at(&self, address: u64, bytes: u64) -> Option<u32> {
        self.run_where(address, bytes, |block| block.state == State::Free)
    }

    /// If blocks that all pass `belong` cover a range, returns the first of these blocks.
    #[inline]
    pub(crate) fn run_where(
        &self,
        address: u64,
        bytes: u64,
        belongs: impl Fn(&Block) -> bool,
    ) -> Option<u32> {
        let first = self.block_at(address)?;
        let (mut key, end) = (first, address + bytes);
        loop {
            let block = self.blocks.get(key)?;
            if !belongs(block) {
                return None;
            }
            if block.end() >= end {
                return Some(first);
            }
            key = block.after;
        }
    }

    /// Returns the end of the run of `allowed` free blocks that begins with `key`. Returns `None`
    /// if no such run begins with `key`.
    pub(crate) fn run_from(&self, key: u32, allowed: impl Fn(&Block) -> bool) -> Option<u64> {
        let first = &self.blocks[key];
        let belongs = |block: &&Block| block.state == State::Free && allowed(block);
        if !belongs(&first) || self.blocks.get(first.before).is_some_and(|block| belongs(&block)) {
            return None;
        }
        let mut block = first;
        while let Some(next) = self.blocks.get(block.after).filter(belongs) {
            block = next;
        }
        Some(block.end())
    }

    /// Returns the size of the longest free block after all deferred merges, with [nothing set
    /// apart](Primary::merge_all_small) for small requests.
    pub(crate) fn longest_merged(&self, order: &Order) -> u64 {
        let mut longest = 0;
        for first in self.all_free_blocks() {
            let Some(end) = self.run_from(first, |_| true) else { continue };
            let mut whole: Option<Block> = None;
            for block in self.blocks_from(first, end) {
                let merged = whole.as_ref().and_then(|whole| whole.merged_use(block, order));
                whole = match (whole, merged) {
                    (Some(whole), Some((last, part))) => {
                        Some(Block { bytes: whole.bytes + block.bytes, last, part, ..whole })
                    }
                    _ => Some(block.clone()),
                };
                longest = longest.max(whole.as_ref().map_or(0, |whole| whole.bytes));
            }
        }
        longest
    }

    /// Returns the blocks of a run from the block `first` up to `end`.
    pub(crate) fn blocks_from(&self, first: u32, end: u64) -> impl Iterator<Item = &Block> {
        let first = self.blocks.get(first);
        std::iter::successors(first, move |block| {
            (block.end() < end).then(|| self.blocks.get(block.after)).flatten()
        })
    }

    /// Makes one block from a range of addresses. The run of free blocks that begins with `first`
    /// covers the range. The new block is in no bin.
    pub(crate) fn take(&mut self, first: u32, address: u64, bytes: u64, state: State) -> u32 {
        let end = address + bytes;
        let mut key = first;
        let was_binned = self.unbin(key);
        if self.blocks[key].address < address {
            let (left, right) = self.split(key, address);
            self.bin_or_defer(left, was_binned);
            key = right;
        }
        while self.blocks[key].end() < end {
            let next = self.blocks[key].after;
            let was_binned = self.unbin(next);
            if self.blocks[next].end() > end {
                let (left, right) = self.split(next, end);
                self.bin_or_defer(right, was_binned);
                key = self.join(key, left);
            } else {
                key = self.join(key, next);
            }
        }
        if self.blocks[key].end() > end {
            let (left, right) = self.split(key, end);
            self.bin_or_defer(right, was_binned);
            key = left;
        }
        let block = &mut self.blocks[key];
        block.state = state;
        block.range = NONE;
        key
    }

    /// Frees a block and merges it with its neighbours.
    #[inline]
    pub(crate) fn free_block(&mut self, key: u32, last: LastUse, order: &Order) {
        let block = &mut self.blocks[key];
        (block.state, block.last, block.part) = (State::Free, last, UsedPart::ALL);
        self.merge(key, order);
    }

    /// Merges a free block with its neighbours. The block is in no bin.
    fn merge(&mut self, mut key: u32, order: &Order) {
        let small = self.blocks[key].small;
        // Several neighbours on one side may merge now. Their frees may have been completed since
        // an earlier merge failed.
        loop {
            let after = self.blocks[key].after;
            let Some(merged) = self.merged_use(key, after, order) else { break };
            self.unbin(after);
            key = self.join(key, after);
            let block = &mut self.blocks[key];
            (block.last, block.part) = merged;
        }
        loop {
            let before = self.blocks[key].before;
            let Some(merged) = self.merged_use(before, key, order) else { break };
            self.unbin(before);
            key = self.join(before, key);
            let block = &mut self.blocks[key];
            (block.last, block.part) = merged;
        }
        if small && self.is_empty_small_run(key) {
            if self.empty_runs.len() < KEPT_EMPTY_RUNS || self.empty_runs.contains(&key) {
                if !self.empty_runs.contains(&key) {
                    self.empty_runs.push(key);
                }
            } else {
                self.blocks[key].small = false;
                return self.merge(key, order);
            }
        }
        self.note_boundaries(key);
        self.bin(key);
    }

    /// Frees a block without merging it for now.
    pub(crate) fn free_unmerged(&mut self, key: u32, last: LastUse) {
        let block = &mut self.blocks[key];
        (block.state, block.last, block.part) = (State::Free, last, UsedPart::ALL);
        self.note_boundaries(key);
        self.bin(key);
    }

    /// Splits free blocks whose last use is not `allowed`. The parts that no pending work uses
    /// become separate free blocks.
    pub(crate) fn cut_completed_parts(&mut self, order: &Order, allowed: impl Fn(LastUse) -> bool) {
        let held = |key: &u32| !allowed(self.blocks[*key].last);
        let held: Vec<u32> = self.all_free_blocks().filter(held).collect();
        for key in held {
            self.cut_around_use(key, self.blocks[key].in_use(order));
        }
    }

    /// Splits a free block around the part that pending work may use, from address `from` to `to`.
    fn cut_around_use(&mut self, mut key: u32, (from, to): (u64, u64)) {
        let block = &self.blocks[key];
        let (address, end) = (block.address, block.end());
        if (from, to) == (address, end) {
            return;
        }
        if from >= to {
            self.blocks[key].last = LastUse::COMPLETED;
            return;
        }
        self.unbin(key);
        if address < from {
            let (left, right) = self.split(key, from);
            self.free_unmerged(left, LastUse::COMPLETED);
            key = right;
        }
        if to < end {
            let (left, right) = self.split(key, to);
            self.free_unmerged(right, LastUse::COMPLETED);
            key = left;
        }
        self.note_boundaries(key);
        self.bin(key);
    }

    /// Frees a block of large requests without merging it, because the program is about to request
    /// the same size again. Merging the block and cutting it again would be half of the policy's
    /// cost. The block is [merged](Primary::merge_deferred) when the program requests another size.
    #[inline]
    pub(crate) fn free_deferred(&mut self, key: u32, last: LastUse) {
        let block = &mut self.blocks[key];
        (block.state, block.last, block.part) = (State::Free, last, UsedPart::ALL);
        self.defer_merge(key);
    }

    /// Handles the rest of a free block after a part was taken. If the merge of the block was
    /// deferred, the merge of the rest is deferred too.
    fn bin_or_defer(&mut self, key: u32, was_binned: bool) {
        if was_binned { self.bin(key) } else { self.defer_merge(key) }
    }

    fn defer_merge(&mut self, key: u32) {
        let block = &mut self.blocks[key];
        if !block.listed {
            block.listed = true;
            self.deferred.push(key);
        }
    }

    /// Carries out the deferred merges.
    #[inline]
    pub(crate) fn merge_deferred(&mut self, order: &Order) {
        if !self.deferred.is_empty() {
            self.merge_all_deferred(order);
        }
    }

    #[cold]
    fn merge_all_deferred(&mut self, order: &Order) {
        let mut left = std::mem::take(&mut self.deferred);
        for key in left.drain(..) {
            self.blocks.unlist(key);
            let block = self.blocks.get(key).filter(|block| block.is_free(false) && !block.binned);
            if block.is_some() {
                self.merge(key, order);
            }
        }
        self.deferred = left;
    }

    /// Turns empty small runs into free blocks for large requests. Returns `true` if some small run
    /// was empty.
    pub(crate) fn merge_empty_small_runs(&mut self, order: &Order) -> bool {
        let mut any = false;
        for key in std::mem::take(&mut self.empty_runs) {
            let free = self.blocks.get(key).is_some_and(|block| block.is_free(true));
            if free && self.is_empty_small_run(key) {
                self.unbin(key);
                self.blocks[key].small = false;
                self.merge(key, order);
                any = true;
            }
        }
        any
    }

    /// Returns the addresses of the small runs that would [become](Primary::merge_empty_small_runs)
    /// free blocks for large requests, once all frees are completed.
    pub(crate) fn empty_small_runs(&self) -> FxHashSet<u64> {
        let is_small = |key: u32| self.blocks.get(key).is_some_and(|block| block.small);
        let mut empty_runs = FxHashSet::default();
        for key in self.free_blocks(true) {
            let Some(end) = self.run_from(key, |block| block.small) else { continue };
            let mut run = vec![key];
            let mut last = key;
            while self.blocks[last].end() < end {
                last = self.blocks[last].after;
                run.push(last);
            }
            if !is_small(self.blocks[key].before) && !is_small(self.blocks[last].after) {
                empty_runs.extend(run.iter().map(|key| self.blocks[*key].address));
            }
        }
        empty_runs
    }

    /// Turns all free blocks for small requests into free blocks for large requests.
    pub(crate) fn merge_all_small(&mut self, order: &Order) {
        self.empty_runs.clear();
        let apart: Vec<u32> = self.free_blocks(true).collect();
        for key in apart {
            self.unbin(key);
            self.blocks[key].small = false;
            self.merge(key, order);
        }
    }

    /// Merges free neighbours at boundaries where an earlier merge failed, if that is possible now.
    pub(crate) fn merge_boundaries(&mut self, order: &Order) {
        let boundaries = std::mem::take(&mut self.boundaries);
        for &key in &boundaries {
            self.blocks[key].boundary = false;
        }
        for key in boundaries {
            // The record may now belong to another block. That is harmless, because the merge
            // checks the neighbours.
            if self.blocks.get(key).is_some_and(|block| block.state == State::Free) {
                self.unbin(key);
                self.merge(key, order);
            }
        }
        self.crowded = (2 * self.boundaries.len()).max(BOUNDARIES);
    }

    /// Returns the first block of each run of free blocks that different streams freed.
    /// `boundaries` contains each free block that did not merge with the next, and so the first of
    /// each run.
    pub(crate) fn run_starts_with_boundaries(&self) -> impl Iterator<Item = u32> + '_ {
        let is_free = |key: u32| self.blocks.get(key).is_some_and(|block| block.is_free(false));
        let begins = move |key: &u32| is_free(*key) && !is_free(self.blocks[*key].before);
        self.boundaries.iter().copied().filter(begins)
    }

    /// Turns the first `bytes` of an unbacked block into a free block, because these bytes
    /// have memory now.
    pub(crate) fn back(&mut self, unbacked: u32, bytes: u64, order: &Order) {
        let mut key = unbacked;
        if self.blocks[unbacked].bytes > bytes {
            let (left, right) = self.split(unbacked, self.blocks[unbacked].address + bytes);
            self.unbacked.retain(|kept| *kept != unbacked);
            self.unbacked.push(right);
            key = left;
        } else {
            self.unbacked.retain(|kept| *kept != unbacked);
        }
        // If pending work may still use a free neighbour, the new memory is not merged. The used
        // part of a block merged from both neighbours would include the new memory between them.
        let Block { before, after, .. } = self.blocks[key];
        let is_held = |key: u32| {
            self.blocks
                .get(key)
                .is_some_and(|block| block.is_free(false) && !block.last.is_completed(order))
        };
        if is_held(before) || is_held(after) {
            self.free_unmerged(key, LastUse::COMPLETED);
        } else {
            self.free_block(key, LastUse::COMPLETED, order);
        }
    }

    /// Marks an entirely free range as unbacked, because its memory was given back.
    pub(crate) fn unback(&mut self, first: u32, address: u64, bytes: u64) {
        let mut key = self.take(first, address, bytes, State::Unbacked);
        let (before, after) = (self.blocks[key].before, self.blocks[key].after);
        for neighbour in [before, after] {
            if self.blocks.get(neighbour).is_some_and(|block| block.state == State::Unbacked) {
                self.unbacked.retain(|kept| *kept != neighbour);
                let first = if neighbour == before { neighbour } else { key };
                let second = if neighbour == before { key } else { neighbour };
                key = self.join(first, second);
            }
        }
        let unbacked = &mut self.blocks[key];
        (unbacked.last, unbacked.small) = (LastUse::COMPLETED, false);
        self.unbacked.push(key);
    }

    /// Returns the last use of the block that two neighbours would form; `None` if they may not
    /// merge.
    #[inline(always)]
    fn merged_use(&self, first: u32, second: u32, order: &Order) -> Option<(LastUse, UsedPart)> {
        let (first, second) = (self.blocks.get(first)?, self.blocks.get(second)?);
        let both = first.state == State::Free
            && second.state == State::Free
            && first.small == second.small;
        if both { first.merged_use(second, order) } else { None }
    }

    fn note_boundaries(&mut self, key: u32) {
        let Block { before, after, small, .. } = self.blocks[key];
        for (first, second) in [(before, key), (key, after)] {
            let both = [first, second]
                .map(|key| self.blocks.get(key).is_some_and(|block| block.is_free(small)));
            if both == [true, true] && !self.blocks[first].boundary {
                self.blocks[first].boundary = true;
                self.boundaries.push(first);
            }
        }
    }

    pub(crate) fn has_boundaries(&self) -> bool {
        !self.boundaries.is_empty()
    }

    pub(crate) fn has_empty_small_runs(&self) -> bool {
        !self.empty_runs.is_empty()
    }

    /// Returns `true` if many free blocks are unmerged, and another merge should be tried.
    pub(crate) fn is_crowded(&self) -> bool {
        self.boundaries.len() > self.crowded.max(BOUNDARIES)
    }

    fn is_empty_small_run(&self, key: u32) -> bool {
        let Block { before, after, .. } = self.blocks[key];
        [before, after].iter().all(|key| self.blocks.get(*key).is_none_or(|block| !block.small))
    }

    fn bin(&mut self, key: u32) {
        self.blocks[key].binned = true;
        let bins = if self.blocks[key].small { &mut self.small } else { &mut self.large };
        bins.insert(key, &mut self.blocks);
    }

    /// Removes a block from its bin. Returns `true` if the block was in a bin.
    fn unbin(&mut self, key: u32) -> bool {
        let was_binned = std::mem::replace(&mut self.blocks[key].binned, false);
        if was_binned {
            let bins = if self.blocks[key].small { &mut self.small } else { &mut self.large };
            bins.remove(key, &mut self.blocks);
        }
        was_binned
    }

    /// Splits a block in two at the address `at`. The block is in no bin. The larger part keeps the
    /// record.
    fn split(&mut self, key: u32, at: u64) -> (u32, u32) {
        let old = self.blocks[key].clone();
        let (left, right) = (at - old.address, old.end() - at);
        let mut fresh = old.clone();
        fresh.boundary = false;
        if left >= right {
            (fresh.address, fresh.bytes, fresh.before) = (at, right, key);
            fresh.boundary = old.boundary;
            let fresh = self.blocks.insert(fresh);
            if old.boundary {
                self.boundaries.push(fresh);
            }
            let kept = &mut self.blocks[key];
            (kept.bytes, kept.after) = (left, fresh);
            if old.after != NONE {
                self.blocks[old.after].before = fresh;
            }
            self.note_cover(fresh);
            (key, fresh)
        } else {
            (fresh.bytes, fresh.after) = (left, key);
            let fresh = self.blocks.insert(fresh);
            let kept = &mut self.blocks[key];
            (kept.address, kept.bytes, kept.before) = (at, right, fresh);
            if old.before != NONE {
                self.blocks[old.before].after = fresh;
            }
            self.note_cover(fresh);
            (fresh, key)
        }
    }

    /// Merges two neighbours into one block. Both are in no bin. The larger block keeps its record.
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
        self.note_cover_of(kept, from, to);
        kept
    }

    fn note_cover(&mut self, key: u32) {
        let block = &self.blocks[key];
        let (from, to) = (block.address, block.end());
        self.note_cover_of(key, from, to);
    }

    /// Notes that block `key` contains the first byte of each page that begins in `from..to`.
    #[inline]
    fn note_cover_of(&mut self, key: u32, from: u64, to: u64) {
        let Some(addresses) = self.address_range_at(from).map(|at| &mut self.address_ranges[at])
        else {
            return;
        };
        let first = (from - addresses.base).div_ceil(PAGE) as usize;
        let end = (to - addresses.base).div_ceil(PAGE) as usize;
        if let Some(pages) = addresses.cover.get_mut(first..end) {
            pages.fill(key);
        }
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let bins = self.small.keys(&self.blocks).chain(self.large.keys(&self.blocks));
        let binned: std::collections::HashSet<u32> = bins.collect();
        let listed: std::collections::HashSet<u32> = self.deferred.iter().copied().collect();
        assert_eq!(listed.len(), self.deferred.len(), "each once");
        for (key, block) in self.blocks.iter() {
            assert!(block.bytes > 0, "{key} is empty");
            assert_eq!(binned.contains(&key), block.binned, "{key} {block:?}");
            assert_eq!(listed.contains(&key), block.listed, "{key} {block:?}");
            let is_deferred = block.is_free(false) && block.listed;
            assert!(!block.binned || block.state == State::Free, "{key} {block:?}");
            assert!(block.binned || is_deferred || block.state != State::Free, "{key} {block:?}");
            assert_eq!(
                self.unbacked.contains(&key),
                block.state == State::Unbacked,
                "{key} {block:?}"
            );
            if let Some(next) = self.blocks.get(block.after) {
                assert_eq!((next.address, next.before), (block.end(), key));
                let both = block.is_free(block.small) && next.is_free(block.small);
                let is_boundary = self.boundaries.contains(&key) && block.boundary;
                let are_merged = block.binned && next.binned;
                assert!(!both || is_boundary || !are_merged, "{block:?} {next:?}");
            }
        }
        for addresses in &self.address_ranges {
            let (mut at, end) = (addresses.base, addresses.base + addresses.bytes);
            let mut key = self.block_at(at).expect("a block at the base");
            while at < end {
                let block = &self.blocks[key];
                assert_eq!(block.address, at);
                for page in (at - addresses.base).div_ceil(PAGE)
                    ..(block.end() - addresses.base).div_ceil(PAGE)
                {
                    if page < 4096 {
                        assert_eq!(addresses.cover[page as usize], key, "page {page}");
                    }
                }
                (at, key) = (block.end(), block.after);
            }
        }
    }
}
