//! Records of blocks in one vector, named by their index.

use std::ops::{Index, IndexMut};

use crate::heap::order::{Order, StreamRef, Ticket};

/// No block.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The record is not in use.
    Vacant,
    /// Handed out at its home.
    Live,
    /// Handed out as a part of a stitched range.
    Lent,
    Free,
    /// Addresses with no memory behind them.
    Gap,
}

/// When the last use of a free block is over, in twelve bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct Last {
    number: u64,
    slot: u32,
}

impl Last {
    /// It is over.
    pub(super) const OVER: Last = Last { number: 0, slot: u32::MAX };

    pub(super) fn of(ticket: Ticket, order: &Order) -> Last {
        if order.is_reached(ticket) {
            return Last::OVER;
        }
        Last { number: ticket.number, slot: ticket.slot() as u32 }
    }

    pub(super) fn ticket(self) -> Option<Ticket> {
        (self.slot != u32::MAX).then(|| Ticket::new(self.slot, self.number))
    }

    pub(super) fn is_over(self, order: &Order) -> bool {
        self.ticket().is_none_or(|ticket| order.is_reached(ticket))
    }

    pub(super) fn is_open(self, stream: StreamRef, order: &Order) -> bool {
        self.slot == stream.slot() as u32
            || self.ticket().is_none_or(|ticket| order.is_open(ticket, stream))
    }

    /// Of two neighbours, where one stream's order covers both.
    pub(super) fn with(self, other: Last, order: &Order) -> Option<Last> {
        let (slot, number) = (self.slot, self.number);
        if slot == other.slot {
            return Some(Last { number: number.max(other.number), slot });
        }
        if self.is_over(order) {
            Some(other)
        } else if other.is_over(order) {
            Some(self)
        } else {
            None
        }
    }
}

/// A range of home addresses.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Neighbours by address.
    pub(super) before: u32,
    pub(super) after: u32,
    /// Neighbours in the bin.
    pub(super) next: u32,
    pub(super) previous: u32,
    pub(super) last: Last,
    /// The stitched range that it is lent to.
    pub(super) range: u32,
    pub(super) state: State,
    /// Whether it is small requests that it is for.
    pub(super) small: bool,
    /// Whether it stands in the list of seams.
    pub(super) seam: bool,
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    pub(super) fn is_free(&self, small: bool) -> bool {
        self.state == State::Free && self.small == small
    }
}

#[derive(Debug, Default)]
pub(super) struct Blocks {
    records: Vec<Block>,
    holes: Vec<u32>,
}

impl Blocks {
    pub(super) fn insert(&mut self, block: Block) -> u32 {
        match self.holes.pop() {
            Some(key) => {
                self.records[key as usize] = block;
                key
            }
            None => {
                self.records.push(block);
                self.records.len() as u32 - 1
            }
        }
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.records[key as usize].state = State::Vacant;
        self.holes.push(key);
    }

    pub(super) fn get(&self, key: u32) -> Option<&Block> {
        self.records.get(key as usize).filter(|block| block.state != State::Vacant)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        let all = (0..).zip(&self.records);
        all.filter(|(_, block)| block.state != State::Vacant)
    }
}

impl Index<u32> for Blocks {
    type Output = Block;

    fn index(&self, key: u32) -> &Block {
        &self.records[key as usize]
    }
}

impl IndexMut<u32> for Blocks {
    fn index_mut(&mut self, key: u32) -> &mut Block {
        &mut self.records[key as usize]
    }
}
