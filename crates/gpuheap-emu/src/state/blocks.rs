//! Blocks of heaps, live and freed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpuheap_driver::BlockNote;
use rustc_hash::FxHashMap;

use crate::state::clock::Lane;

/// Maximum number of freed blocks that are remembered, which bounds host memory.
const FREED: usize = 1 << 16;

/// Blocks that heaps reported, keyed by address.
#[derive(Default)]
pub(crate) struct Blocks {
    /// Disjoint ranges, keyed by first address. A range belongs to a live block or a part of a live
    /// block, or to a freed block if no later block covers the range.
    ranges: BTreeMap<u64, Range>,
    /// Live whole blocks, keyed by address.
    live: FxHashMap<u64, Arc<Block>>,
    /// Freed blocks, oldest first.
    freed: VecDeque<Arc<Block>>,
}

struct Range {
    end: u64,
    block: Arc<Block>,
}

/// A block, or a part of a block that is used separately.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    /// Bytes of the block that the program may use.
    pub(crate) bytes: u64,
    /// Bytes of the block with the heap's rounding.
    pub(crate) room: u64,
    /// Number of the allocation's stream in vector clocks; `None` if the stream had ended.
    pub(crate) lane: Option<Lane>,
    /// If this is a part of a block: address and bytes of the whole block.
    pub(crate) whole: Option<(u64, u64)>,
    pub(crate) freed: Option<Freed>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) lane: Option<Lane>,
    /// Count of driver calls before the free.
    pub(crate) call: u64,
}

impl Block {
    pub(crate) fn new(note: &BlockNote, lane: Option<Lane>) -> Block {
        let &BlockNote { address, bytes, room, .. } = note;
        Block { address, bytes, room: room.max(bytes), lane, whole: None, freed: None }
    }

    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.room)
    }
}

impl Blocks {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the live or freed block that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<&Arc<Block>> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.end).then_some(&range.block)
    }

    /// Returns the first live block that overlaps a range.
    pub(crate) fn overlapping(&self, first: u64, end: u64) -> Option<&Arc<Block>> {
        let before = self.ranges.range(..first).next_back().filter(|(_, range)| range.end > first);
        let ranges = before.into_iter().chain(self.ranges.range(first..end));
        ranges.map(|(_, range)| &range.block).find(|block| block.freed.is_none())
    }

    /// Returns the block of each range whose first address is in `first..end`, in address order.
    pub(crate) fn beginning_in(
        &self,
        first: u64,
        end: u64,
    ) -> impl DoubleEndedIterator<Item = &Arc<Block>> {
        self.ranges.range(first..end).map(|(_, range)| &range.block)
    }

    /// Inserts a block in place of everything in its range.
    fn insert(&mut self, block: &Arc<Block>) {
        self.clear(block.address, block.end());
        if block.room > 0 {
            self.ranges.insert(block.address, Range { end: block.end(), block: block.clone() });
        }
    }

    /// Forgets the blocks in a range.
    pub(crate) fn clear(&mut self, first: u64, end: u64) {
        self.cut_at(first);
        self.cut_at(end);
        while let Some((&at, _)) = self.ranges.range(first..end).next() {
            self.ranges.remove(&at);
        }
    }

    fn cut_at(&mut self, at: u64) {
        if let Some((_, range)) = self.ranges.range_mut(..at).next_back()
            && range.end > at
        {
            let rest = Range { end: range.end, block: range.block.clone() };
            range.end = at;
            self.ranges.insert(at, rest);
        }
    }

    pub(crate) fn allocate(&mut self, block: Block) {
        let block = Arc::new(block);
        self.insert(&block);
        self.live.insert(block.address, block);
    }

    pub(crate) fn resize(&mut self, address: u64, bytes: u64) {
        let Some(block) = self.live.get(&address) else { return };
        let block = Arc::new(Block { bytes, room: block.room.max(bytes), ..Block::clone(block) });
        self.insert(&block);
        self.live.insert(address, block);
    }

    pub(crate) fn divide(&mut self, address: u64, bytes: u64) {
        let Some(found) = self.find(address).filter(|block| block.freed.is_none()) else { return };
        let (whole, lane) = (found.whole.unwrap_or((found.address, found.bytes)), found.lane);
        let room = bytes.min(found.end() - address);
        if found.whole.is_none() {
            // The rest of the block belongs to no part, so it may not be used.
            let rest = Block { bytes: 0, whole: Some(whole), ..Block::clone(found) };
            self.insert(&Arc::new(rest));
        }
        let part = Block { address, bytes: room, room, lane, whole: Some(whole), freed: None };
        self.insert(&Arc::new(part));
    }

    /// Marks the live block at `address` as freed, if such a block exists.
    pub(crate) fn free(&mut self, address: u64, freed: Freed) {
        let Some(block) = self.live.remove(&address) else { return };
        let block = Arc::new(Block { freed: Some(freed), ..Block::clone(&block) });
        self.insert(&block);
        self.freed.push_back(block);
        if self.freed.len() > FREED
            && let Some(oldest) = self.freed.pop_front()
        {
            let ranges = self.ranges.range(oldest.address..oldest.end());
            let is_its = |range: &Range| Arc::ptr_eq(&range.block, &oldest);
            let its: Vec<u64> =
                ranges.filter(|(_, range)| is_its(range)).map(|(&at, _)| at).collect();
            its.into_iter().for_each(|at| drop(self.ranges.remove(&at)));
        }
    }

    /// Marks all live blocks in a range as freed, because the memory of the range was freed.
    pub(crate) fn lose(&mut self, first: u64, end: u64, freed: Freed) {
        let lost = self.ranges.range(first..end).map(|(_, range)| &range.block);
        let lost = lost.filter(|block| block.freed.is_none());
        let lost: Vec<u64> =
            lost.map(|block| block.whole.map_or(block.address, |(at, _)| at)).collect();
        lost.into_iter().for_each(|address| self.free(address, freed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Freed = Freed { lane: None, call: 0 };

    fn block(address: u64, bytes: u64, room: u64) -> Block {
        Block { address, bytes, room, lane: None, whole: None, freed: None }
    }

    #[test]
    fn the_oldest_free_is_forgotten_first() {
        let mut blocks = Blocks::default();
        for nth in 0..=FREED as u64 {
            blocks.allocate(block(nth * 10, 10, 10));
            blocks.free(nth * 10, GONE);
        }
        assert!(blocks.find(0).is_none() && blocks.find(10).is_some());
    }
}
