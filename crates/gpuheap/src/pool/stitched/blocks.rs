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
}

/// The part of a free block that its last use was of, in steps of [`STEP`]: nothing else of it is in
/// use. Free memory takes its neighbour's last use over when they merge, and must be told from it
/// where that use cannot be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    from: u32,
    to: u32,
}

/// So addresses of 48 bits can be said in 32; of what is above them all counts as used.
const STEP: u64 = 64 << 10;

/// So much between two uses is not counted as used with them; less is, and is out of reach with what a
/// capture freed at both sides of it. To count less would be dear: a block that does not merge is a
/// worse fit for what comes (0.02 of `serve_threads` with an eighth of it).
const BETWEEN: u64 = 256 << 20;

impl Part {
    pub(super) const ALL: Part = Part { from: 0, to: u32::MAX };
    const NOTHING: Part = Part { from: u32::MAX, to: 0 };

    #[inline]
    fn of((from, to): (u64, u64)) -> Part {
        let step = |steps: u64, most: u32| steps.min(u64::from(most)) as u32;
        Part { from: step(from / STEP, u32::MAX - 1), to: step(to.div_ceil(STEP), u32::MAX) }
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
    pub(super) part: Part,
    /// The stitched range that it is lent to.
    pub(super) range: u32,
    pub(super) state: State,
    /// Whether it is small requests that it is for.
    pub(super) small: bool,
    /// Whether it stands in the list of seams.
    pub(super) seam: bool,
    /// Whether it is in a bin.
    pub(super) binned: bool,
    /// Whether the record stands in the list of what was left as it is, whatever it is by now.
    pub(super) listed: bool,
}

const _: () = assert!(size_of::<Block>() == 64);

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// From where to where its last use is not over; from above to below where it is.
    pub(super) fn in_use(&self, order: &Order) -> (u64, u64) {
        if self.last.is_over(order) {
            return (u64::MAX, 0);
        }
        let Part { from, to } = self.part;
        let to = if to == u32::MAX { u64::MAX } else { u64::from(to) * STEP };
        let (from, to) = (self.address.max(u64::from(from) * STEP), self.end().min(to));
        if from < to { (from, to) } else { (u64::MAX, 0) }
    }

    /// The last use of a range, as far as it is in this free block.
    pub(super) fn last_of(&self, address: u64, end: u64, order: &Order) -> Last {
        let (from, to) = self.in_use(order);
        if from < end && address < to { self.last } else { Last::OVER }
    }

    /// When two neighbours' last use together is over, and what it is of, where they may become one:
    /// where one stream's order covers both.
    #[inline(always)]
    pub(super) fn with(&self, other: &Block, order: &Order) -> Option<(Last, Part)> {
        let (first, second) = (self.last, other.last);
        if { first.slot } != second.slot {
            return if first.is_over(order) {
                Some((second, other.clipped()))
            } else if second.is_over(order) {
                Some((first, self.clipped()))
            } else {
                None
            };
        }
        let (earlier, later) =
            if { first.number } <= second.number { (first, second) } else { (second, first) };
        let alike = self.part == Part::ALL && other.part == Part::ALL && !earlier.is_over(order);
        let part = if alike { Part::ALL } else { self.part_with(other, order)? };
        Some((later, part))
    }

    #[inline]
    fn clipped(&self) -> Part {
        let Part { from, to } = Part::of((self.address, self.end()));
        let (from, to) = (self.part.from.max(from), self.part.to.min(to));
        if from < to { Part { from, to } } else { Part::NOTHING }
    }

    /// What the last use of two neighbours is of; none where too much between would count as used.
    #[inline]
    fn part_with(&self, other: &Block, order: &Order) -> Option<Part> {
        let part =
            |block: &Block| if block.last.is_over(order) { Part::NOTHING } else { block.clipped() };
        let (first, second) = (part(self), part(other));
        let between = first.from.max(second.from).saturating_sub(first.to.min(second.to));
        let both = first != Part::NOTHING && second != Part::NOTHING;
        if both && u64::from(between) >= BETWEEN / STEP {
            return None;
        }
        Some(Part { from: first.from.min(second.from), to: first.to.max(second.to) })
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
                let record = &mut self.records[key as usize];
                let listed = record.listed;
                *record = Block { listed, ..block };
                key
            }
            None => {
                self.records.push(Block { listed: false, ..block });
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

    /// The record stands in the list of what was left no more, whatever it is.
    pub(super) fn unlist(&mut self, key: u32) {
        if let Some(record) = self.records.get_mut(key as usize) {
            record.listed = false;
        }
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
