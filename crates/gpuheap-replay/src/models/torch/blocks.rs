//! Splits segments into blocks, and merges blocks.

use super::Torch;
use super::block::{Block, FIXED, NONE, State};
use crate::models::Ticket;

impl Torch {
    /// Splits the first `front` bytes off a block. Returns the new block of these bytes.
    pub(super) fn split_front(&mut self, block: u32, front: u64) -> u32 {
        let Block { address, stream, pool, growing, previous, .. } = self.blocks[block as usize];
        let new = self.new_block(address, front, stream, pool);
        self.blocks[new as usize].growing = growing;
        self.link(previous, new, block);
        let rest = &mut self.blocks[block as usize];
        rest.address += front;
        rest.bytes -= front;
        new
    }

    /// Merges neighbours into the block if they have the block's state. Returns the bytes of the
    /// merged neighbours.
    pub(super) fn merge_neighbours(&mut self, block: u32) -> u64 {
        let Block { previous, next, .. } = self.blocks[block as usize];
        self.merge(block, previous) + self.merge(block, next)
    }

    fn merge(&mut self, block: u32, neighbour: u32) -> u64 {
        let Some(other) = self.blocks.get(neighbour as usize) else { return 0 };
        let into = &self.blocks[block as usize];
        if other.state != into.state {
            return 0;
        }
        let (other, is_before) = (*other, into.previous == neighbour);
        let of_stream = self.pools[other.pool as usize].stream_mut(other.stream);
        if other.state == State::Free {
            of_stream.free.remove(other.bytes, other.address);
        } else {
            of_stream.unmapped.remove(&other.address);
        }
        if is_before {
            self.blocks[block as usize].address = other.address;
            self.join(other.previous, block);
        } else {
            self.join(block, other.next);
        }
        self.blocks[block as usize].bytes += other.bytes;
        self.discard(neighbour);
        other.bytes
    }

    pub(super) fn insert_free(&mut self, block: u32) {
        let Block { address, bytes, stream, pool, .. } = self.blocks[block as usize];
        let pool = &mut self.pools[pool as usize];
        let this = &mut self.blocks[block as usize];
        this.searches_before = pool.searches;
        this.state = State::Free;
        pool.stream_mut(stream).free.insert(bytes, address, block);
    }

    pub(super) fn remove_free(&mut self, block: u32) {
        let Block { address, bytes, stream, pool, .. } = self.blocks[block as usize];
        self.pools[pool as usize].stream_mut(stream).free.remove(bytes, address);
    }

    /// Merges an unused block with its free neighbours, and returns it to its pool.
    fn free_block(&mut self, block: u32) {
        let Block { bytes, growing, .. } = self.blocks[block as usize];
        self.books.figures.active -= bytes;
        self.blocks[block as usize].state = State::Free;
        let merged = self.merge_neighbours(block);
        self.insert_free(block);
        if growing == FIXED {
            let inactive = &mut self.books.figures.inactive_split;
            *inactive = inactive.saturating_sub(merged);
            if self.blocks[block as usize].is_split() {
                *inactive += self.blocks[block as usize].bytes;
            }
        }
    }

    pub(super) fn end_pending(&mut self, block: u32) {
        let index = self.blocks[block as usize].pending as usize;
        self.pending.swap_remove(index);
        if let Some(&moved) = self.pending.get(index) {
            self.blocks[moved as usize].pending = index as u32;
        }
        self.free_block(block);
    }

    pub(super) fn live_block(&self, ticket: Ticket, state: State) -> Option<u32> {
        let block = self.blocks.get(ticket.slot as usize)?;
        (block.generation == ticket.generation && block.state == state).then_some(ticket.slot)
    }

    pub(super) fn new_block(&mut self, address: u64, bytes: u64, stream: u64, pool: u32) -> u32 {
        let mut block = Block {
            address,
            bytes,
            requested: 0,
            stream,
            previous: NONE,
            next: NONE,
            pool,
            growing: FIXED,
            generation: 0,
            pending: 0,
            searches_before: 0,
            state: State::Free,
        };
        match self.spare.pop() {
            Some(slot) => {
                block.generation = self.blocks[slot as usize].generation;
                self.blocks[slot as usize] = block;
                slot
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    pub(super) fn discard(&mut self, block: u32) {
        self.blocks[block as usize].state = State::Spare;
        self.spare.push(block);
    }

    /// Links a block between two neighbours. Either neighbour may be missing.
    pub(super) fn link(&mut self, before: u32, block: u32, after: u32) {
        self.join(before, block);
        self.join(block, after);
    }

    fn join(&mut self, before: u32, after: u32) {
        if let Some(block) = self.blocks.get_mut(before as usize) {
            block.next = after;
        }
        if let Some(block) = self.blocks.get_mut(after as usize) {
            block.previous = before;
        }
    }
}
