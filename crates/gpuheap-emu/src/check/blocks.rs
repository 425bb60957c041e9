//! Checks of the blocks that heaps report, and checks of memory uses against those blocks.

use std::sync::Arc;

use gpuheap_driver::{BlockChecks, BlockEvent, BlockNote, CUstream};

use crate::Emulator;
use crate::emulator::{Call, null_is_per_thread};
use crate::finding::FindingKind;
use crate::state::blocks::{Block, Blocks, Freed};
use crate::state::checker::Checker;
use crate::state::clock::Lane;
use crate::state::context::this_thread;

/// Way in which a use of memory violates the rules of blocks.
enum Misuse {
    /// A use that extends past the bytes that the program requested, or starts after them, in the
    /// bytes that the heap's rounding added.
    OutOfBounds(Arc<Block>),
    /// A use whose first byte is in a freed block.
    AfterFree(Arc<Block>),
    /// A use whose first byte is in a heap's memory, but in no block. Contains the preceding block,
    /// if one exists.
    Outside(Option<Arc<Block>>),
}

/// Checks a use against the blocks. `base` has the first address and the end of the driver
/// allocation in which the use starts.
fn judge(blocks: &Blocks, address: u64, bytes: u64, base: Option<(u64, u64)>) -> Option<Misuse> {
    if let Some(block) = blocks.find(address) {
        return if block.freed.is_some() {
            Some(Misuse::AfterFree(block.clone()))
        } else if address.saturating_add(bytes) <= block.address.saturating_add(block.bytes) {
            None
        } else if block.whole == Some((address, bytes)) {
            // This block is a part, and the use covers the whole block. gpuheap copies a divided
            // block to the host in one copy, so this is no misuse.
            None
        } else {
            Some(Misuse::OutOfBounds(block.clone()))
        };
    }
    let (base, end) = base?;
    blocks.beginning_in(base, end).next()?;
    Some(Misuse::Outside(blocks.beginning_in(base, address).next_back().cloned()))
}

impl BlockChecks for Emulator {
    fn note(&self, event: BlockEvent, block: &BlockNote) {
        let Some(mut call) = self.shared.call(HEAP) else { return };
        match event {
            BlockEvent::Ask => {}
            BlockEvent::Allocated => call.block_allocated(block),
            BlockEvent::Resized => call.change_blocks(|it| it.resize(block.address, block.bytes)),
            BlockEvent::Divided => call.change_blocks(|it| it.divide(block.address, block.bytes)),
            BlockEvent::Freed => call.block_freed(block, false),
            BlockEvent::FreedZeroed => call.block_freed(block, true),
        }
    }
}

/// Name of the heap in findings.
const HEAP: &str = "a heap";

impl Call<'_> {
    fn change_blocks(&mut self, change: impl FnOnce(&mut Blocks)) {
        if let Some(checker) = &mut self.state.checker {
            change(&mut checker.blocks);
        }
    }

    fn block_allocated(&mut self, note: &BlockNote) {
        if self.state.checker.is_none() {
            return;
        }
        let stream = self.stream_of_block(note);
        self.find_unordered_reuse(note, stream);
        let lane = stream.and_then(|stream| self.lane(stream));
        let calls = self.state.calls.total;
        let Some(checker) = &mut self.state.checker else { return };
        let block = Block::new(note, lane);
        let text = checker.blocks.overlapping(block.address, block.end()).map(|other| {
            let names = [&block, other].map(|block| checker.name_block(block, calls));
            format!("{HEAP} hands out {}, over {}, which is live", names[0], names[1])
        });
        checker.blocks.allocate(block);
        if let Some(text) = text {
            self.find(FindingKind::OverlappingBlocks, text);
        }
    }

    fn block_freed(&mut self, note: &BlockNote, zeroed: bool) {
        let stream = self.stream_of_block(note);
        let lane = stream.and_then(|stream| self.lane(stream));
        if !zeroed {
            // The host can write host memory unseen, so host memory always counts as written.
            let on_host =
                self.state.space.find(note.address).is_some_and(|(_, f)| f.kind.is_host());
            if !on_host {
                self.note_unwritten(note.address, note.room);
            }
        }
        let freed = Freed { lane, call: self.state.calls.total };
        self.change_blocks(|blocks| blocks.free(note.address, freed));
    }

    /// Reports memory that is handed out while earlier work may still use it.
    fn find_unordered_reuse(&mut self, note: &BlockNote, stream: Option<u32>) {
        let Some(stream) = stream else { return };
        // Reads the vector clock that new work would have. The stream's own clock stays the same.
        let Some(clock) = self.clock_of_new_work(stream) else { return };
        let ranges = self.physical_ranges(note.address, note.room);
        let calls = self.state.calls.total;
        let Some(checker) = &self.state.checker else { return };
        let Some((lane, _)) = checker.streams.get(&stream) else { return };
        let found = ranges.into_iter().find_map(|(offset, physical, length)| {
            let conflict = checker.ranges.conflict(physical, length, &clock, true)?;
            Some((note.address + offset, physical, conflict))
        });
        if let Some((address, physical, conflict)) = found {
            let name = checker.name_block(&Block::new(note, Some(*lane)), calls);
            let verb = format!("hands out {name}, with");
            let text = checker.describe(&conflict, *lane, HEAP, &verb, (address, physical), calls);
            self.find(FindingKind::Unordered, text);
        }
    }

    /// Returns the index of the stream that a heap's `note` names; `None` if the stream has ended.
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

    /// Checks a use of memory against the rules of blocks. If the use violates them, adds a finding
    /// and returns true. The call itself continues, as on a real device.
    pub(crate) fn find_block_misuse(&mut self, address: u64, bytes: u64) -> bool {
        let calls = self.state.calls.total;
        let Some(checker) = &self.state.checker else { return false };
        if checker.blocks.is_empty() {
            return false;
        }
        let base = self.state.space.find(address).map(|(base, f)| (base, base + f.bytes));
        let Some(misuse) = judge(&checker.blocks, address, bytes, base) else { return false };
        let uses = format!("{} uses {bytes} bytes at {address:#x}", self.symbol);
        let into = |block: &Block| {
            let name = checker.name_block(block, calls);
            format!("{uses}, {} bytes into {name}", address - block.address)
        };
        let (kind, text) = match &misuse {
            Misuse::AfterFree(block) => (FindingKind::UseAfterFree, into(block)),
            Misuse::OutOfBounds(block) | Misuse::Outside(Some(block)) => {
                (FindingKind::OutOfBounds, into(block))
            }
            Misuse::Outside(None) => {
                (FindingKind::OutOfBounds, format!("{uses}, memory of a heap that is of no block"))
            }
        };
        self.find(kind, text);
        true
    }

    /// Describes the block at an address, with a leading comma; returns an empty string if no block
    /// is there.
    pub(crate) fn block_at(&self, address: u64) -> String {
        let Some(checker) = &self.state.checker else { return String::new() };
        checker.block_at(address, self.state.calls.total)
    }

    /// Marks all blocks in a driver's allocation as freed, because the allocation itself is freed.
    pub(super) fn lose_blocks(&mut self, address: u64, bytes: u64) {
        let freed = Freed { lane: None, call: self.state.calls.total };
        self.change_blocks(|blocks| blocks.lose(address, address.saturating_add(bytes), freed));
    }
}

impl Checker {
    /// Forgets the blocks in the address range of a new driver allocation.
    pub(super) fn forget_blocks(&mut self, address: u64, bytes: u64) {
        self.blocks.clear(address, address.saturating_add(bytes));
    }

    /// Returns the start and size of the block at an address. The record of a use contains both.
    pub(super) fn block_of(&self, address: u64) -> Option<(u64, u64)> {
        self.blocks.find(address).map(|block| (block.address, block.bytes))
    }

    pub(super) fn block_at(&self, address: u64, calls: u64) -> String {
        let block = self.blocks.find(address);
        block.map_or_else(String::new, |block| format!(", of {}", self.name_block(block, calls)))
    }

    /// Describes the block of an earlier use, given the block's address and bytes. If the block is
    /// still known, the description says when it was freed.
    pub(super) fn name_former(&self, (address, bytes): (u64, u64), calls: u64) -> String {
        match self.blocks.find(address).filter(|b| (b.address, b.bytes) == (address, bytes)) {
            Some(block) => self.name_block(block, calls),
            None => format!("a block of {bytes} bytes at {address:#x}"),
        }
    }

    /// Describes a block by its address, size and stream, and says when it was freed.
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
        match judge(blocks, address, bytes, Some((0, 10_000))) {
            None => "fine",
            Some(Misuse::OutOfBounds(_)) => "out of bounds",
            Some(Misuse::AfterFree(_)) => "freed",
            Some(Misuse::Outside(_)) => "outside",
        }
    }

    #[test]
    fn use_beyond_requested_size_is_found() {
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
    fn divided_block_parts_are_checked_apart() {
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
}
