//! Records of blocks in one vector. The index of a record is the key of the block.

use std::ops::{Index, IndexMut};

use crate::order::Order;
use crate::pool::kind::ROUNDING;
use crate::stream::Stuck;
use crate::stream::{StreamRef, Ticket};

/// Key that stands for no block.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The record is free.
    Vacant,
    /// Live at its primary address.
    Live,
    /// The block is live as a part of a stitched range.
    Mapped,
    Free,
    /// Addresses without memory.
    Unbacked,
}

/// Last use of a free block, in twelve bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(crate) struct LastUse {
    number: u64,
    slot: u32,
}

impl LastUse {
    /// A last use that is completed.
    pub(crate) const COMPLETED: LastUse = LastUse { number: 0, slot: u32::MAX };

    pub(crate) fn from_ticket(ticket: Ticket, order: &Order) -> LastUse {
        if order.is_fence_reached(ticket) {
            return LastUse::COMPLETED;
        }
        LastUse { number: ticket.number, slot: ticket.slot() as u32 }
    }

    pub(crate) fn ticket(self) -> Option<Ticket> {
        (self.slot != u32::MAX).then(|| Ticket::new(self.slot, self.number))
    }

    pub(crate) fn is_completed(self, order: &Order) -> bool {
        self.ticket().is_none_or(|ticket| order.is_fence_reached(ticket))
    }

    pub(crate) fn is_usable_on(self, stream: StreamRef, order: &Order) -> bool {
        self.slot == stream.slot() as u32
            || self.ticket().is_none_or(|ticket| order.is_usable_on(ticket, stream))
    }
}

/// Part of a free block that the block's last use covered, in units of [`STEP`]. Enqueued work may
/// still use this part, but no other bytes of the block.
///
/// Two free blocks merge into one that records only one last use. A stream that cannot wait for
/// that use can still take the bytes outside the used part.
///
/// Each end has 40 bits, enough for addresses of 49 bits. Higher addresses count as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(2))]
pub(crate) struct UsedPart {
    from: u32,
    to: u32,
    from_above: u8,
    to_above: u8,
}

/// Unit of the ends of a [`UsedPart`], in bytes. Block sizes are multiples of it, so no end is
/// rounded. With a unit of 64 KiB, 5 MiB of free memory next to a used block counted as 4.96 MiB.
const STEP: u64 = ROUNDING;

/// Highest end that a [`UsedPart`] can record, in units of [`STEP`]. A part with this end reaches
/// to the end of the address space.
const MOST: u64 = (1 << 40) - 1;

/// Least distance, in bytes, at which the [used parts](UsedPart) of two free neighbours prevent a
/// merge. If the parts are closer, the blocks merge, and the bytes between the parts count as used
/// too. If the uses are in a capture, these bytes cannot be used until the capture ends. A smaller
/// distance is expensive: a block that does not merge is a worse fit for later requests. With an
/// eighth of this distance, the utilisation of `serve_threads` was lower by 0.02.
const BETWEEN: u64 = 256 << 20;

impl UsedPart {
    pub(crate) const ALL: UsedPart = UsedPart::new(0, MOST);
    const NOTHING: UsedPart = UsedPart::new(MOST, 0);

    const fn new(from: u64, to: u64) -> UsedPart {
        let (from_above, to_above) = ((from >> 32) as u8, (to >> 32) as u8);
        UsedPart { from: from as u32, to: to as u32, from_above, to_above }
    }

    /// Returns the part from address `from` to address `to`.
    #[inline]
    fn from_range((from, to): (u64, u64)) -> UsedPart {
        UsedPart::new((from / STEP).min(MOST - 1), to.div_ceil(STEP).min(MOST))
    }

    #[inline]
    fn from(self) -> u64 {
        u64::from(self.from_above) << 32 | u64::from(self.from)
    }

    #[inline]
    fn to(self) -> u64 {
        u64::from(self.to_above) << 32 | u64::from(self.to)
    }
}

/// A range of primary addresses.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Key of the block at the next lower address; [`NONE`] if no such block exists.
    pub(crate) before: u32,
    pub(crate) after: u32,
    /// Keys of the neighbours in the block's bin (list of free blocks of similar size).
    pub(crate) next: u32,
    pub(crate) previous: u32,
    pub(crate) last: LastUse,
    pub(crate) part: UsedPart,
    /// Number of the stitched range that the block is mapped to.
    pub(crate) range: u32,
    pub(crate) state: State,
    pub(crate) small: bool,
    /// `true` if the block is listed as a boundary: it could not merge with the next block.
    pub(crate) boundary: bool,
    /// `true` if the block is in a bin.
    pub(crate) binned: bool,
    /// `true` if the record is in the list of deferred merges. The block may have been reused
    /// meanwhile.
    pub(crate) listed: bool,
}

const _: () = assert!(size_of::<Block>() == 64);

/// Start and end of an empty part.
const NOWHERE: (u64, u64) = (u64::MAX, 0);

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// Returns the start and the end of the bytes that may be in use. If the last use is completed,
    /// the start is above the end.
    pub(crate) fn in_use(&self, order: &Order) -> (u64, u64) {
        if self.last.is_completed(order) { NOWHERE } else { self.used() }
    }

    /// Returns the start and the end of the bytes that the last use covered.
    fn used(&self) -> (u64, u64) {
        let to = if self.part.to() == MOST { u64::MAX } else { self.part.to() * STEP };
        let (from, to) = (self.address.max(self.part.from() * STEP), self.end().min(to));
        if from < to { (from, to) } else { NOWHERE }
    }

    /// Returns the start and the end of the bytes that the last use covered, if this use is stuck:
    /// no wait can complete it now. Otherwise the start is above the end.
    pub(crate) fn stuck(&self, stuck: &Stuck) -> (u64, u64) {
        match self.last.ticket().filter(|ticket| stuck.holds(*ticket)) {
            Some(_) => self.used(),
            None => NOWHERE,
        }
    }

    /// Returns `true` if the block's last use is stuck: no wait can complete it now.
    pub(crate) fn is_stuck(&self, stuck: &Stuck) -> bool {
        self.stuck(stuck) != NOWHERE
    }

    /// Returns the last use of a range within the block. If the block's last use covers no byte of
    /// the range, returns a completed use.
    pub(crate) fn last_use_in(&self, address: u64, end: u64, order: &Order) -> LastUse {
        let (from, to) = self.in_use(order);
        if from < end && address < to { self.last } else { LastUse::COMPLETED }
    }

    /// Returns the last use and the used part of the block that two free neighbours would form.
    /// Returns `None` if they may not merge: different streams freed them and neither free is
    /// completed, or their used parts are far apart (see [`BETWEEN`]).
    #[inline(always)]
    pub(crate) fn merged_use(&self, other: &Block, order: &Order) -> Option<(LastUse, UsedPart)> {
        let (first, second) = (self.last, other.last);
        if { first.slot } != second.slot {
            return if first.is_completed(order) {
                Some((second, other.clipped()))
            } else if second.is_completed(order) {
                Some((first, self.clipped()))
            } else {
                None
            };
        }
        let (earlier, later) =
            if { first.number } <= second.number { (first, second) } else { (second, first) };
        let alike = self.part == UsedPart::ALL
            && other.part == UsedPart::ALL
            && !earlier.is_completed(order);
        let part = if alike { UsedPart::ALL } else { self.merged_part(other, order)? };
        Some((later, part))
    }

    #[inline]
    fn clipped(&self) -> UsedPart {
        let whole = UsedPart::from_range((self.address, self.end()));
        let (from, to) = (self.part.from().max(whole.from()), self.part.to().min(whole.to()));
        if from < to { UsedPart::new(from, to) } else { UsedPart::NOTHING }
    }

    /// Returns the used part of the block that two free neighbours would form. It includes the
    /// bytes between the neighbours' used parts. Returns `None` if these bytes are too many
    /// ([`BETWEEN`]).
    #[inline]
    fn merged_part(&self, other: &Block, order: &Order) -> Option<UsedPart> {
        let part = |block: &Block| {
            if block.last.is_completed(order) { UsedPart::NOTHING } else { block.clipped() }
        };
        let (first, second) = (part(self), part(other));
        let (from, to) = (first.from().min(second.from()), first.to().max(second.to()));
        let (begins, ends) = (first.from().max(second.from()), first.to().min(second.to()));
        let between = begins.saturating_sub(ends);
        let both = first != UsedPart::NOTHING && second != UsedPart::NOTHING;
        if both && between >= BETWEEN / STEP {
            return None;
        }
        Some(UsedPart::new(from, to))
    }

    pub(crate) fn is_free(&self, small: bool) -> bool {
        self.state == State::Free && self.small == small
    }
}

#[derive(Debug, Default)]
pub(crate) struct Blocks {
    records: Vec<Block>,
    holes: Vec<u32>,
}

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) -> u32 {
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

    pub(crate) fn remove(&mut self, key: u32) {
        self.records[key as usize].state = State::Vacant;
        self.holes.push(key);
    }

    pub(crate) fn get(&self, key: u32) -> Option<&Block> {
        self.records.get(key as usize).filter(|block| block.state != State::Vacant)
    }

    /// Notes that the record, even a vacant one, is no longer in the list of deferred merges.
    pub(crate) fn unlist(&mut self, key: u32) {
        if let Some(record) = self.records.get_mut(key as usize) {
            record.listed = false;
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
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
