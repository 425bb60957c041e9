//! Serves a request: finds the best free block or takes new memory, and splits off the rest.

use super::Torch;
use super::block::{Block, FIXED, MIN_BLOCK, SMALL, SMALL_SEGMENT, State, Wanted};
use super::pool::BlockPool;
use crate::models::Ticket;

/// Smallest request, in bytes, that gets a separate segment. The segment's size is a multiple of 2
/// MiB.
const OWN_SEGMENT: u64 = 10 << 20;
/// Granularity of segments, in bytes.
const SEGMENT_GRANULE: u64 = 2 << 20;

impl Torch {
    pub(super) fn segment_bytes(&self, bytes: u64) -> u64 {
        if bytes <= SMALL {
            SMALL_SEGMENT
        } else if bytes < OWN_SEGMENT {
            self.settings.large_segment
        } else {
            bytes.next_multiple_of(SEGMENT_GRANULE)
        }
    }

    /// Returns the pool's index in `pools`. The first request of a private pool makes that pool.
    pub(super) fn pool_of(&mut self, bytes: u64, private: u32) -> u32 {
        let first = match private {
            0 => 0,
            _ => match self.private_pools.iter().position(|&known| known == private) {
                Some(index) => 2 + 2 * index,
                None => {
                    self.private_pools.push(private);
                    self.pools.extend([BlockPool::new(false), BlockPool::new(true)]);
                    self.pools.len() - 2
                }
            },
        };
        first as u32 + u32::from(bytes <= SMALL)
    }

    pub(super) fn find_block(&mut self, wanted: Wanted) -> Option<u32> {
        if let Some(block) = self.find_free(wanted) {
            return Some(block);
        }
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(block) = self.take_segment(wanted) {
            return Some(block);
        }
        if self.release_oversize(wanted)
            && let Some(block) = self.take_segment(wanted)
        {
            return Some(block);
        }
        self.release_cached();
        self.books.figures.retries += 1;
        self.take_segment(wanted)
    }

    /// Removes the best free block from its pool.
    fn find_free(&mut self, wanted: Wanted) -> Option<u32> {
        if self.collects_garbage() {
            self.pools[wanted.pool as usize].searches += 1;
        }
        let free = &self.pools[wanted.pool as usize].stream(wanted.stream)?.free;
        let mut position = free.find(wanted.bytes);
        let (mut found_bytes, mut found) = free.get(position)?;
        let is_fixed = |block: u32| self.blocks[block as usize].growing == FIXED;
        if !is_fixed(found) && self.settings.expandable_segments {
            // PyTorch compares the blocks of growing segments by size. The unmapped addresses right
            // after a block count too, because the block could grow into them.
            let mut next = free.next(position);
            while let Some((next_bytes, next_block)) = free.get(next)
                && !is_fixed(found)
                && self.grown_bytes(next_block) < self.grown_bytes(found)
            {
                (position, found_bytes, found) = (next, next_bytes, next_block);
                next = free.next(next);
            }
        } else {
            while !is_fixed(found) {
                position = free.next(position);
                (found_bytes, found) = free.get(position)?;
            }
        }
        let most = self.settings.max_split_size;
        if wanted.bytes < most && found_bytes >= most {
            return None;
        }
        let slack = self.settings.max_non_split_rounding;
        if wanted.bytes >= most && found_bytes >= wanted.bytes.saturating_add(slack) {
            return None;
        }
        self.pools[wanted.pool as usize].stream_mut(wanted.stream).free.remove_at(position);
        Some(found)
    }

    /// Takes a new segment, as a block that is in no pool yet.
    fn take_segment(&mut self, wanted: Wanted) -> Option<u32> {
        let bytes = wanted.segment_bytes;
        let after = self.books.figures.reserved.checked_add(bytes)?;
        if self.allowed.is_some_and(|allowed| after > allowed) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.grow(wanted);
        }
        if after > self.books.allowed {
            return None;
        }
        let address = self.addresses.take(bytes);
        let block = self.new_block(address, bytes, wanted.stream, wanted.pool);
        self.books.figures.segments += 1;
        self.count_taken(bytes);
        self.books.count_call(true, bytes, wanted.stream, address);
        Some(block)
    }

    /// Hands out the front of a block that is in no pool.
    pub(super) fn hand_out(
        &mut self,
        found: u32,
        wanted: Wanted,
        requested: u64,
        splits: bool,
    ) -> Ticket {
        let block = if splits {
            self.count_split(found, wanted.bytes);
            let front = self.split_front(found, wanted.bytes);
            self.insert_free(found);
            front
        } else {
            let Block { bytes, .. } = self.blocks[found as usize];
            if self.counts_as_split(found) {
                self.books.figures.inactive_split =
                    self.books.figures.inactive_split.saturating_sub(bytes);
            }
            found
        };
        let this = &mut self.blocks[block as usize];
        this.state = State::Allocated;
        this.requested = requested;
        this.generation = this.generation.wrapping_add(1);
        let (bytes, generation) = (this.bytes, this.generation);
        let figures = &mut self.books.figures;
        figures.allocated += bytes;
        figures.active += bytes;
        figures.peak_active = figures.peak_active.max(figures.active);
        figures.requested = figures.requested.saturating_add(requested);
        Ticket { slot: block, generation }
    }

    fn count_split(&mut self, block: u32, front: u64) {
        let Block { bytes, growing, .. } = self.blocks[block as usize];
        if growing != FIXED {
            return;
        }
        let inactive = &mut self.books.figures.inactive_split;
        if self.blocks[block as usize].is_split() {
            *inactive = inactive.saturating_sub(front);
        } else {
            *inactive += bytes - front;
        }
    }

    fn counts_as_split(&self, block: u32) -> bool {
        let block = &self.blocks[block as usize];
        block.is_split() && block.growing == FIXED
    }

    pub(super) fn should_split(&self, block: u32, wanted: Wanted) -> bool {
        let rest = self.blocks[block as usize].bytes.saturating_sub(wanted.bytes);
        if self.pools[wanted.pool as usize].is_small || self.settings.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            wanted.bytes < self.settings.max_split_size && rest > SMALL
        }
    }
}
