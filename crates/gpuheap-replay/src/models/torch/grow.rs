//! Lets segments grow in place. Maps memory at a segment's addresses when a request needs it.

use super::Torch;
use super::block::{Block, Growing, SMALL_SEGMENT, State, Wanted};

impl Torch {
    pub(super) fn grown_bytes(&self, block: u32) -> u64 {
        let Block { bytes, next, .. } = self.blocks[block as usize];
        match self.blocks.get(next as usize) {
            Some(next) if next.state == State::Unmapped => bytes.saturating_add(next.bytes),
            _ => bytes,
        }
    }

    /// Maps enough memory for a block of a growing segment. Removes the block from its pool.
    pub(super) fn grow(&mut self, wanted: Wanted) -> Option<u32> {
        let mut block = self.room_to_grow(wanted)?;
        if self.blocks[block as usize].state == State::Unmapped {
            let bytes = wanted.bytes.min(self.blocks[block as usize].bytes);
            self.map(block, bytes)?;
        }
        while self.blocks[block as usize].bytes < wanted.bytes {
            let Block { bytes, next, .. } = self.blocks[block as usize];
            let missing = (wanted.bytes - bytes).min(self.blocks.get(next as usize)?.bytes);
            self.map(next, missing)?;
            block = next;
        }
        self.remove_free(block);
        Some(block)
    }

    /// Returns the lowest block that is large enough with its free and unmapped neighbours, or a
    /// new segment.
    fn room_to_grow(&mut self, wanted: Wanted) -> Option<u32> {
        if let Some(of) = self.pools[wanted.pool as usize].stream(wanted.stream) {
            for &unmapped in of.unmapped.values() {
                let before = self.blocks[unmapped as usize].previous;
                let start = if self.is_available(before) { before } else { unmapped };
                let (mut bytes, mut block) = (0_u64, start);
                while bytes < wanted.bytes && self.is_available(block) {
                    bytes = bytes.saturating_add(self.blocks[block as usize].bytes);
                    block = self.blocks[block as usize].next;
                }
                if bytes >= wanted.bytes {
                    return Some(start);
                }
            }
        }
        let is_small = self.pools[wanted.pool as usize].is_small;
        let piece = if is_small { SMALL_SEGMENT } else { self.settings.large_segment };
        let bytes = self
            .books
            .allowed
            .checked_add(self.books.allowed / 8)?
            .checked_next_multiple_of(piece)?;
        if bytes < wanted.bytes {
            return None;
        }
        let base = self.addresses.take_growing(bytes);
        let block = self.new_block(base, bytes, wanted.stream, wanted.pool);
        let growing = self.growing.len() as u32;
        self.growing.push(Growing { base, bytes, piece });
        let new = &mut self.blocks[block as usize];
        new.growing = growing;
        new.state = State::Unmapped;
        self.pools[wanted.pool as usize].stream_mut(wanted.stream).unmapped.insert(base, block);
        Some(block)
    }

    fn is_available(&self, block: u32) -> bool {
        let state = self.blocks.get(block as usize).map(|block| block.state);
        matches!(state, Some(State::Free | State::Unmapped))
    }

    /// Maps at least `bytes` at the start of an unmapped block. The mapped part becomes a free
    /// block. Returns `None` if the device is full.
    pub(super) fn map(&mut self, block: u32, bytes: u64) -> Option<()> {
        let Block { address, bytes: room, stream, pool, growing, next, .. } =
            self.blocks[block as usize];
        let Growing { piece, .. } = *self.growing.get(growing as usize)?;
        let mapped = bytes.checked_next_multiple_of(piece)?.min(room);
        if self.books.figures.reserved.checked_add(mapped)? > self.books.allowed {
            return None;
        }
        self.pools[pool as usize].stream_mut(stream).unmapped.remove(&address);
        if mapped < room {
            let rest = self.new_block(address + mapped, room - mapped, stream, pool);
            self.link(block, rest, next);
            let rest_block = &mut self.blocks[rest as usize];
            rest_block.growing = growing;
            rest_block.state = State::Unmapped;
            self.pools[pool as usize].stream_mut(stream).unmapped.insert(address + mapped, rest);
            self.blocks[block as usize].bytes = mapped;
        }
        self.blocks[block as usize].state = State::Free;
        self.merge_neighbours(block);
        self.insert_free(block);
        self.count_taken(mapped);
        self.books.count_call(true, mapped, stream, address);
        Some(())
    }

    /// Unmaps the pieces that lie wholly in a free block of a growing segment.
    pub(super) fn unmap(&mut self, block: u32) {
        let Block { address, bytes, stream, pool, growing, previous, next, .. } =
            self.blocks[block as usize];
        let Some(&Growing { base, bytes: of_segment, piece }) = self.growing.get(growing as usize)
        else {
            return;
        };
        let begin = base + (address - base).next_multiple_of(piece);
        let end = base + (address + bytes - base) / piece * piece;
        if begin >= end {
            return;
        }
        self.remove_free(block);
        if begin > address {
            let before = self.new_block(address, begin - address, stream, pool);
            self.blocks[before as usize].growing = growing;
            self.link(previous, before, block);
            self.insert_free(before);
        }
        if address + bytes > end {
            let after = self.new_block(end, address + bytes - end, stream, pool);
            self.blocks[after as usize].growing = growing;
            self.link(block, after, next);
            self.insert_free(after);
        }
        let unmapped = end - begin;
        let this = &mut self.blocks[block as usize];
        this.address = begin;
        this.bytes = unmapped;
        this.state = State::Unmapped;
        self.merge_neighbours(block);
        let this = self.blocks[block as usize];
        self.pools[pool as usize].stream_mut(stream).unmapped.insert(this.address, block);
        self.books.figures.reserved -= unmapped;
        self.books.count_call(false, unmapped, stream, begin);
        if this.bytes == of_segment {
            self.pools[pool as usize].stream_mut(stream).unmapped.remove(&this.address);
            self.discard(block);
        }
    }
}
