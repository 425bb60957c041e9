//! The blocks of heaps: what a heap tells of them, and what uses of memory are judged by it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpuheap_driver::{BlockChecks, BlockNote, CUstream};
use rustc_hash::FxHashMap;

use crate::Emulator;
use crate::emulator::{Call, null_is_per_thread};
use crate::finding::FindingKind;
use crate::state::clock::Lane;
use crate::state::context::this_thread;

/// The most freed blocks that are remembered.
const FREED: usize = 1 << 16;

/// Every block that a heap told of, by address.
#[derive(Default)]
pub(crate) struct Blocks {
    /// Disjoint ranges by first address: live blocks or their parts, and of freed blocks what later
    /// blocks left.
    ranges: BTreeMap<u64, Range>,
    /// Live blocks, undivided, by address.
    live: FxHashMap<u64, Arc<Block>>,
    /// Freed blocks, oldest first.
    freed: VecDeque<Arc<Block>>,
}

struct Range {
    end: u64,
    block: Arc<Block>,
}

/// One block, or a part of one that is used on its own.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    address: u64,
    /// Bytes that its user may use.
    bytes: u64,
    /// Bytes with the heap's rounding.
    room: u64,
    /// The stream that it was allocated on, if that was alive.
    lane: Option<Lane>,
    /// The block that it is a part of: address and bytes.
    whole: Option<(u64, u64)>,
    freed: Option<Freed>,
}

/// The free of a block.
#[derive(Clone, Copy, Debug)]
struct Freed {
    lane: Option<Lane>,
    /// How many driver calls there were before.
    call: u64,
}

/// How a use of memory breaks the rules of blocks.
enum Misuse {
    /// It goes past the bytes of the block that it starts in, or starts in the block's rounding.
    OutOfBounds(Arc<Block>),
    /// It starts in a block that was freed.
    AfterFree(Arc<Block>),
    /// It starts in memory of a heap that is of no block; the block before it.
    Outside(Option<Arc<Block>>),
}

impl Block {
    fn new(note: &BlockNote, lane: Option<Lane>) -> Block {
        let &BlockNote { address, bytes, room, .. } = note;
        Block { address, bytes, room: room.max(bytes), lane, whole: None, freed: None }
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.room)
    }
}

impl Blocks {
    /// The block, live or freed, that an address lies in.
    fn find(&self, address: u64) -> Option<&Arc<Block>> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address < range.end).then_some(&range.block)
    }

    /// The first live block that overlaps a range.
    fn overlapping(&self, first: u64, end: u64) -> Option<&Arc<Block>> {
        let before = self.ranges.range(..first).next_back().filter(|(_, range)| range.end > first);
        let ranges = before.into_iter().chain(self.ranges.range(first..end));
        ranges.map(|(_, range)| &range.block).find(|block| block.freed.is_none())
    }

    /// Judges a use that starts in the allocation at `base..base_end`, if there is one.
    fn judge(&self, address: u64, bytes: u64, base: Option<(u64, u64)>) -> Option<Misuse> {
        if let Some(block) = self.find(address) {
            return if block.freed.is_some() {
                Some(Misuse::AfterFree(block.clone()))
            } else if address.saturating_add(bytes) <= block.address.saturating_add(block.bytes) {
                None
            } else if block.whole == Some((address, bytes)) {
                // The heap's library brings all parts to the host by one copy of the block.
                None
            } else {
                Some(Misuse::OutOfBounds(block.clone()))
            };
        }
        let (base, end) = base?;
        self.ranges.range(base..end).next()?;
        let before = self.ranges.range(base..address).next_back();
        Some(Misuse::Outside(before.map(|(_, range)| range.block.clone())))
    }

    /// Puts a block in the place of all that was in its range.
    fn insert(&mut self, block: &Arc<Block>) {
        self.clear(block.address, block.end());
        if block.room > 0 {
            self.ranges.insert(block.address, Range { end: block.end(), block: block.clone() });
        }
    }

    /// Forgets what is in a range.
    fn clear(&mut self, first: u64, end: u64) {
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

    fn allocate(&mut self, block: Block) {
        let block = Arc::new(block);
        self.insert(&block);
        self.live.insert(block.address, block);
    }

    fn resize(&mut self, address: u64, bytes: u64) {
        let Some(block) = self.live.get(&address) else { return };
        let block = Arc::new(Block { bytes, room: block.room.max(bytes), ..Block::clone(block) });
        self.insert(&block);
        self.live.insert(address, block);
    }

    fn divide(&mut self, address: u64, bytes: u64) {
        let Some(found) = self.find(address).filter(|block| block.freed.is_none()) else { return };
        let (whole, lane) = (found.whole.unwrap_or((found.address, found.bytes)), found.lane);
        let room = bytes.min(found.end() - address);
        if found.whole.is_none() {
            // The rest of the block is of no part, and so may not be used.
            let rest = Block { bytes: 0, whole: Some(whole), ..Block::clone(found) };
            self.insert(&Arc::new(rest));
        }
        let part = Block { address, bytes: room, room, lane, whole: Some(whole), freed: None };
        self.insert(&Arc::new(part));
    }

    /// Ends a live block: it, if there is one at `address`.
    fn free(&mut self, address: u64, freed: Freed) {
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

    /// Ends all live blocks in a range whose memory went.
    fn lose(&mut self, first: u64, end: u64, freed: Freed) {
        let lost = self.ranges.range(first..end).map(|(_, range)| &range.block);
        let lost = lost.filter(|block| block.freed.is_none());
        let lost: Vec<u64> =
            lost.map(|block| block.whole.map_or(block.address, |(at, _)| at)).collect();
        lost.into_iter().for_each(|address| self.free(address, freed));
    }
}

impl BlockChecks for Emulator {
    fn allocated(&self, block: &BlockNote) {
        if let Some(mut call) = self.shared.call(HEAP) {
            call.block_allocated(block);
        }
    }

    fn resized(&self, block: &BlockNote) {
        let Some(mut call) = self.shared.call(HEAP) else { return };
        if let Some(checker) = &mut call.state.checker {
            checker.blocks.resize(block.address, block.bytes);
        }
    }

    fn divided(&self, part: &BlockNote) {
        let Some(mut call) = self.shared.call(HEAP) else { return };
        if let Some(checker) = &mut call.state.checker {
            checker.blocks.divide(part.address, part.bytes);
        }
    }

    fn freed(&self, block: &BlockNote, zeroed: bool) {
        if let Some(mut call) = self.shared.call(HEAP) {
            call.block_freed(block, zeroed);
        }
    }
}

/// Name that findings give to the one who hands out and frees.
const HEAP: &str = "a heap";

impl Call<'_> {
    fn block_allocated(&mut self, note: &BlockNote) {
        if self.state.checker.is_none() {
            return;
        }
        let stream = self.stream_of_block(note);
        if let Some(stream) = stream {
            self.begin(stream);
        }
        self.find_unordered_reuse(note, stream);
        let lane = stream.and_then(|stream| self.lane(stream));
        let calls = self.state.calls.total;
        let Some(checker) = &mut self.state.checker else { return };
        let block = Block::new(note, lane);
        let overlap = checker.blocks.overlapping(block.address, block.end()).cloned();
        if let Some(other) = overlap {
            let text = format!(
                "{HEAP} hands out {}, over {}, which is live",
                checker.name_block(&block, calls),
                checker.name_block(&other, calls),
            );
            checker.blocks.allocate(block);
            self.find(FindingKind::OverlappingBlocks, text);
        } else {
            checker.blocks.allocate(block);
        }
    }

    fn block_freed(&mut self, note: &BlockNote, zeroed: bool) {
        let stream = self.stream_of_block(note);
        let lane = stream.and_then(|stream| self.lane(stream));
        if !zeroed {
            // What the host writes unseen always holds something.
            let on_host =
                self.state.space.find(note.address).is_some_and(|(_, f)| f.kind.is_host());
            if !on_host {
                self.note_unwritten(note.address, note.room);
            }
        }
        let freed = Freed { lane, call: self.state.calls.total };
        if let Some(checker) = &mut self.state.checker {
            checker.blocks.free(note.address, freed);
        }
    }

    /// Memory that is handed out while something that used it before may still run.
    fn find_unordered_reuse(&mut self, note: &BlockNote, stream: Option<u32>) {
        let Some(stream) = stream.filter(|stream| !self.state.captures.is_recording(*stream))
        else {
            return;
        };
        let ranges = self.physical_ranges(note.address, note.room);
        let calls = self.state.calls.total;
        let Some(checker) = &self.state.checker else { return };
        let Some((lane, clock)) = checker.streams.get(&stream) else { return };
        let found = ranges.into_iter().find_map(|(offset, physical, length)| {
            let conflict = checker.ranges.conflict(physical, length, clock, true)?;
            Some((note.address + offset, physical, conflict))
        });
        if let Some((address, physical, conflict)) = found {
            let name = checker.name_block(&Block::new(note, Some(*lane)), calls);
            let verb = format!("hands out {name}, with");
            let text = checker.describe(&conflict, *lane, HEAP, &verb, (address, physical), calls);
            self.find(FindingKind::Unordered, text);
        }
    }

    /// The stream of a note, if it is alive.
    fn stream_of_block(&self, note: &BlockNote) -> Option<u32> {
        let stream = note.stream;
        let is_null = stream.is_null();
        let is_per_thread = stream == CUstream::PER_THREAD || is_null && null_is_per_thread();
        if !is_null && !is_per_thread && stream != CUstream::LEGACY {
            let index = self.state.streams.index(stream.0)?;
            return self.state.streams.at(index).filter(|found| !found.destroyed).map(|_| index);
        }
        let context = self.state.contexts.get(note.context.0)?;
        if is_per_thread {
            return context.per_thread.get(&this_thread()).copied();
        }
        Some(context.legacy)
    }

    fn lane(&self, stream: u32) -> Option<Lane> {
        let checker = self.state.checker.as_ref()?;
        checker.streams.get(&stream).map(|(lane, _)| *lane)
    }

    /// Reports a use of memory that the rules of blocks forbid: whether there was one. The call itself
    /// goes on, as on a real device.
    pub(crate) fn find_block_misuse(&mut self, address: u64, bytes: u64) -> bool {
        let calls = self.state.calls.total;
        let Some(checker) = &self.state.checker else { return false };
        if checker.blocks.ranges.is_empty() {
            return false;
        }
        let base = self.state.space.find(address).map(|(base, f)| (base, base + f.bytes));
        let Some(misuse) = checker.blocks.judge(address, bytes, base) else { return false };
        let uses = format!("{} uses {bytes} bytes at {address:#x}", self.symbol);
        let into = |block: &Block| {
            let name = checker.name_block(block, calls);
            format!("{uses}, {} bytes into {name}", address - block.address)
        };
        let (kind, text) = match &misuse {
            Misuse::OutOfBounds(block) => (FindingKind::OutOfBounds, into(block)),
            Misuse::AfterFree(block) => (FindingKind::UseAfterFree, into(block)),
            Misuse::Outside(Some(block)) => (FindingKind::OutOfBounds, into(block)),
            Misuse::Outside(None) => {
                (FindingKind::OutOfBounds, format!("{uses}, memory of a heap that is of no block"))
            }
        };
        self.find(kind, text);
        true
    }

    /// The block at an address in words, after a comma; nothing if there is none.
    pub(crate) fn block_at(&self, address: u64) -> String {
        let Some(checker) = &self.state.checker else { return String::new() };
        checker.block_at(address, self.state.calls.total)
    }

    /// The addresses of a driver's allocation are given up, with all blocks in it.
    pub(super) fn lose_blocks(&mut self, address: u64, bytes: u64) {
        let freed = Freed { lane: None, call: self.state.calls.total };
        if let Some(checker) = &mut self.state.checker {
            checker.blocks.lose(address, address.saturating_add(bytes), freed);
        }
    }
}

impl super::Checker {
    /// A new allocation of the driver's has these addresses: no block of old times.
    pub(super) fn forget_blocks(&mut self, address: u64, bytes: u64) {
        self.blocks.clear(address, address.saturating_add(bytes));
    }

    /// The block at an address, for what is kept of a use: its address and bytes.
    pub(super) fn block_of(&self, address: u64) -> Option<(u64, u64)> {
        self.blocks.find(address).map(|block| (block.address, block.bytes))
    }

    pub(super) fn block_at(&self, address: u64, calls: u64) -> String {
        let block = self.blocks.find(address);
        block.map_or_else(String::new, |block| format!(", of {}", self.name_block(block, calls)))
    }

    /// A block that was used before, by what was kept of the use: with its free, if it is still known.
    pub(super) fn name_former(&self, (address, bytes): (u64, u64), calls: u64) -> String {
        match self.blocks.find(address).filter(|b| (b.address, b.bytes) == (address, bytes)) {
            Some(block) => self.name_block(block, calls),
            None => format!("a block of {bytes} bytes at {address:#x}"),
        }
    }

    /// A block in words: where, how large, of which stream, and when it was freed.
    fn name_block(&self, block: &Block, calls: u64) -> String {
        let lane = |lane: Option<Lane>| match lane.and_then(|lane| self.names.get(lane)) {
            Some(name) => name,
            None => "a stream that is gone",
        };
        let Block { address, bytes, whole, .. } = block;
        let mut text = match whole {
            None => format!("a block of {bytes} bytes at {address:#x}"),
            Some((whole, all)) => format!(
                "a part of {bytes} bytes at {address:#x} of the block of {all} bytes at {whole:#x}"
            ),
        };
        text += &format!(" allocated on {}", lane(block.lane));
        if let Some(freed) = block.freed {
            let ago = calls.saturating_sub(freed.call);
            let calls = if ago == 1 { "call" } else { "calls" };
            text += &format!(" and freed on {} {ago} driver {calls} ago", lane(freed.lane));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Freed = Freed { lane: None, call: 0 };

    fn block(address: u64, bytes: u64, room: u64) -> Block {
        Block { address, bytes, room, lane: None, whole: None, freed: None }
    }

    fn judged(blocks: &Blocks, address: u64, bytes: u64) -> &'static str {
        match blocks.judge(address, bytes, Some((0, 10_000))) {
            None => "fine",
            Some(Misuse::OutOfBounds(_)) => "out of bounds",
            Some(Misuse::AfterFree(_)) => "freed",
            Some(Misuse::Outside(_)) => "outside",
        }
    }

    #[test]
    fn uses_are_judged_by_the_size_requested() {
        let mut blocks = Blocks::default();
        assert_eq!(judged(&blocks, 0, 10), "fine");
        blocks.allocate(block(1000, 100, 512));
        assert_eq!(judged(&blocks, 1000, 100), "fine");
        assert_eq!(judged(&blocks, 1050, 51), "out of bounds");
        assert_eq!(judged(&blocks, 1100, 1), "out of bounds");
        assert_eq!(judged(&blocks, 999, 1), "outside");
        assert_eq!(judged(&blocks, 1512, 1), "outside");
        blocks.resize(1000, 512);
        assert_eq!(judged(&blocks, 1100, 412), "fine");
        blocks.free(1000, GONE);
        assert_eq!(judged(&blocks, 1511, 1), "freed");
        blocks.allocate(block(1100, 10, 12));
        assert_eq!([1099, 1100, 1112].map(|at| judged(&blocks, at, 1)), ["freed", "fine", "freed"]);
        assert!(blocks.overlapping(1000, 1100).is_none());
        assert!(blocks.overlapping(1000, 1101).is_some());
    }

    #[test]
    fn parts_are_judged_on_their_own_until_the_block_is_one_again() {
        let mut blocks = Blocks::default();
        blocks.allocate(block(1000, 600, 1024));
        for (address, bytes) in [(1000, 10), (1256, 20), (1512, 88)] {
            blocks.divide(address, bytes);
        }
        assert_eq!(judged(&blocks, 1256, 20), "fine");
        assert_eq!(judged(&blocks, 1256, 21), "out of bounds");
        assert_eq!(judged(&blocks, 1010, 1), "out of bounds");
        assert_eq!(judged(&blocks, 1000, 600), "fine");
        assert_eq!(judged(&blocks, 1000, 599), "out of bounds");
        assert_eq!(judged(&blocks, 1512, 88), "fine");
        blocks.resize(1000, 1024);
        assert_eq!(judged(&blocks, 1000, 1024), "fine");
        blocks.divide(1256, 20);
        blocks.free(1000, GONE);
        assert_eq!([1000, 1256, 2000].map(|at| judged(&blocks, at, 1)), ["freed"; 3]);
        blocks.allocate(block(3000, 10, 10));
        blocks.lose(0, 5000, GONE);
        assert_eq!(judged(&blocks, 3000, 1), "freed");
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
