//! Selects the addresses at which new memory is mapped, and the number of bytes to add.

use super::Stitched;
use super::growth::{Bound, Growth};
use super::memory::LEAST;
use super::primary::{Block, Eligibility};
use super::ranges::reserve;
use crate::order::Order;
use crate::pool::{Environment, Request, Served, Shortage};
use crate::source::{Segment, round_up};
use crate::stream::StreamRef;

/// Place for new memory in an unbacked range (addresses without memory). The new memory and the
/// free blocks next to it form one free piece that begins at `start`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) start: u64,
    pub(super) memory: Segment,
    /// Size of the whole unbacked range.
    pub(super) unbacked: u64,
}

impl Room {
    /// Returns the free memory before and after the new memory. Leaves out all bytes after the
    /// first `bytes` of the whole piece.
    fn neighbour_parts(self, bytes: u64) -> Vec<Segment> {
        let between =
            |address: u64, end: u64| Segment { address, bytes: end.saturating_sub(address) };
        let (from, to) = (self.memory.address, self.memory.address + self.memory.bytes);
        let end = self.start + bytes;
        let parts = [between(self.start, from.min(end)), between(to, end)];
        parts.into_iter().filter(|part| part.bytes > 0).collect()
    }
}

impl Stitched {
    /// Takes new memory for a request, in one piece that is not stitched. Returns `None` if the
    /// pool's memory would exceed [`Growth::most`]. If the driver refuses the memory, returns
    /// `None` too, because stitching may serve the request without new memory.
    pub(super) fn grow_for_request(
        &mut self,
        request: Request,
        env: &mut Environment<'_>,
    ) -> Served {
        match self.grow_at_primary(request, Bound::Slack, env) {
            Ok(Some(address)) => self.take_at_primary(address, request, env),
            Ok(None) => Ok(None),
            Err(Shortage::Limit(_) | Shortage::Device(_)) if !self.in_segments => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds new memory to an unbacked range to make a free piece of the requested bytes. Makes the
    /// request's stream wait for all uses of the piece. Returns the address of the piece.
    pub(super) fn grow_at_primary(
        &mut self,
        request: Request,
        bound: Bound,
        env: &mut Environment<'_>,
    ) -> Result<Option<u64>, Shortage> {
        let Request { bytes, stream } = request;
        if self.in_segments {
            return self.grow_segment(request, bound == Bound::None, env).map(Some);
        }
        let headroom = env.headroom();
        let growth = self.growth_bounds(bytes, env.stats, headroom);
        let exceeds = |memory: u64, add: u64| {
            bound == Bound::Slack && memory.saturating_add(add) > growth.most
        };
        let mut eligibility = Eligibility::All;
        loop {
            let mut room = self.find_room(bytes, eligibility, stream, env.order);
            if room.is_none() {
                if exceeds(self.memory.bytes(), LEAST) {
                    return Ok(None);
                }
                let reserved = reserve(round_up(bytes, LEAST), env)?;
                self.primary.add_address_range(reserved.address, reserved.bytes);
                room = self.find_room(bytes, eligibility, stream, env.order);
            }
            let Some(room) = room else { return Ok(None) };
            let loose = self.memory.loose_bytes();
            if exceeds(self.memory.bytes(), room.memory.bytes.saturating_sub(loose)) {
                return Ok(None);
            }
            // The piece includes free neighbours, and the stream must wait for their last uses.
            // This wait may be impossible, so it comes before new memory is taken.
            if self.order_after_uses(&room.neighbour_parts(bytes), stream, env)? {
                self.add_memory_ahead(room, growth, env)?;
                return Ok(Some(room.start));
            }
            let Some(less) = self.narrow_eligibility(eligibility, stream, env.order) else {
                return Ok(None);
            };
            eligibility = less;
        }
    }

    /// Returns the next stricter eligibility: a rule for the free memory that `stream` may use.
    /// Also splits the blocks that this rule excludes. Their parts without a pending use become
    /// separate blocks that can merge with new memory.
    pub(super) fn narrow_eligibility(
        &mut self,
        eligibility: Eligibility,
        stream: StreamRef,
        order: &Order,
    ) -> Option<Eligibility> {
        let less = eligibility.narrower()?;
        self.cut_completed_parts(less, stream, order);
        Some(less)
    }

    pub(super) fn cut_completed_parts(
        &mut self,
        eligibility: Eligibility,
        stream: StreamRef,
        order: &Order,
    ) {
        if eligibility != Eligibility::All {
            self.primary.cut_completed_parts(order, |last| eligibility.allows(last, stream, order));
        }
    }

    /// Maps the new memory of `room`. If `growth` allows, also maps the addresses that follow.
    fn add_memory_ahead(
        &mut self,
        room: Room,
        growth: Growth,
        env: &mut Environment<'_>,
    ) -> Result<(), Shortage> {
        let Segment { address, bytes } = room.memory;
        let ahead = self.bytes_to_add(room, growth);
        if ahead > bytes {
            match self.add_memory(address, ahead, growth.most_piece, env) {
                Err(Shortage::Limit(_) | Shortage::Device(_)) => {}
                put => return put,
            }
        }
        self.add_memory(address, bytes, growth.most_piece, env)
    }

    /// Returns the bytes of new memory for `room`: the needed bytes, or more if `growth` allows
    /// that.
    pub(super) fn bytes_to_add(&self, room: Room, growth: Growth) -> u64 {
        let ahead = growth.ahead(room.memory.bytes, self.memory.bytes());
        // Chunks that failed calls left unmapped are used first, so no memory is taken ahead then.
        let fits = ahead <= room.unbacked && self.memory.loose_bytes() == 0;
        if fits { ahead } else { room.memory.bytes }
    }

    /// Adds new memory to a part of an unbacked range, in chunks.
    /// [`Memory::add`](super::memory::Memory::add) bounds their size. If a chunk cannot be taken,
    /// gives back the chunks added so far.
    fn add_memory(
        &mut self,
        address: u64,
        bytes: u64,
        most_piece: u64,
        env: &mut Environment<'_>,
    ) -> Result<(), Shortage> {
        // The reserved bytes already include chunks that are mapped nowhere.
        env.allow(bytes.saturating_sub(self.memory.loose_bytes()))?;
        let (mut at, end) = (address, address + bytes);
        while at < end {
            match self.memory.add(at, end - at, most_piece, env) {
                Ok(added) => {
                    if let Some(unbacked) = self.primary.block_at(at) {
                        self.primary.back(unbacked, added, env.order);
                    }
                    at += added;
                }
                Err(shortage) => {
                    self.give_back_added(address, at, env);
                    return Err(match shortage {
                        Shortage::Device(_) => Shortage::Device(bytes),
                        shortage => shortage,
                    });
                }
            }
        }
        Ok(())
    }

    /// Gives back memory that was just added. If that fails, the memory stays cached.
    #[cold]
    pub(super) fn give_back_added(&mut self, from: u64, to: u64, env: &mut Environment<'_>) {
        let primaries: Vec<u64> =
            self.memory.touching(from, to).map(|(primary, _)| primary).collect();
        for primary in primaries.into_iter().filter(|primary| *primary >= from) {
            let _ = self.release_chunk(primary, env);
        }
    }

    /// Adds new memory to any unbacked ranges, and notes the addresses of the memory.
    pub(super) fn add_memory_anywhere(
        &mut self,
        mut bytes: u64,
        grown: &mut Vec<Segment>,
        env: &mut Environment<'_>,
    ) -> Result<(), Shortage> {
        bytes = round_up(bytes, LEAST);
        while bytes > 0 {
            let ranges =
                self.primary.unbacked.iter().map(|unbacked| &self.primary.blocks[*unbacked]);
            // Uses the first unbacked range that is large enough for the memory, else the largest
            // range.
            let Some((_, _, address, length)) = ranges
                .map(|unbacked| {
                    (
                        unbacked.bytes < bytes,
                        u64::MAX - unbacked.bytes.min(bytes),
                        unbacked.address,
                        unbacked.bytes,
                    )
                })
                .min()
            else {
                let reserved = reserve(bytes, env)?;
                self.primary.add_address_range(reserved.address, reserved.bytes);
                continue;
            };
            let part = length.min(bytes);
            self.add_memory(address, part, 0, env)?;
            grown.push(Segment { address, bytes: part });
            bytes -= part;
        }
        Ok(())
    }

    /// Returns the unbacked range in which a free piece of `bytes` needs the least new memory. Free
    /// blocks next to the range are parts of the piece if `eligibility` allows them for `stream`.
    fn find_room(
        &self,
        bytes: u64,
        eligibility: Eligibility,
        stream: StreamRef,
        order: &Order,
    ) -> Option<Room> {
        self.find_room_among(bytes, |block| {
            block.is_free(false) && eligibility.allows(block.last, stream, order)
        })
    }

    /// Returns the unbacked range in which a free piece of `bytes` needs the least new memory. Free
    /// blocks next to the range are parts of the piece if `usable` returns `true` for them.
    pub(super) fn find_room_among(
        &self,
        bytes: u64,
        usable: impl Fn(&Block) -> bool,
    ) -> Option<Room> {
        let usable = |block: &&Block| usable(block);
        let mut best: Option<Room> = None;
        for key in &self.primary.unbacked {
            let unbacked = &self.primary.blocks[*key];
            let (mut start, mut end) = (unbacked.address, unbacked.end());
            let mut next = unbacked.before;
            while let Some(block) = self.primary.blocks.get(next).filter(usable) {
                start = block.address;
                next = block.before;
            }
            let mut need =
                round_up(bytes.saturating_sub(unbacked.address - start), LEAST).max(LEAST);
            if need > unbacked.bytes {
                next = unbacked.after;
                while let Some(block) = self.primary.blocks.get(next).filter(usable) {
                    end = block.end();
                    next = block.after;
                }
                if end - start < bytes {
                    continue;
                }
                need = unbacked.bytes;
            }
            let memory = Segment { address: unbacked.address, bytes: need };
            let rank = |room: &Room| (room.memory.bytes, room.memory.address);
            let room = Room { start, memory, unbacked: unbacked.bytes };
            if best.is_none_or(|best| rank(&room) < rank(&best)) {
                best = Some(room);
            }
        }
        best
    }
}
