//! A stitched range maps chunks with separate primary addresses one after the other, at new
//! addresses.
//!
//! ```text
//! primary     ──┤live├── a ──┤chunk border│   │── b ──│   │border├─ c ─┤live├──
//! range                ├─ a ─┼── b ──┼─ c ─┤
//! ```
//!
//! In the picture, `a`, `b` and `c` are free. The first part may begin inside a chunk, and the last
//! part may end inside a chunk. All parts in between are whole chunks.
//!
//! A free range keeps its mappings. Once all its bytes are free at their primary addresses, it can
//! be used again from its start, without a driver call. The uses of its bytes are recorded at the
//! primary addresses. The range itself records only the uses that must be completed before it is
//! unmapped.

mod addresses;
mod plan;

use std::collections::BTreeSet;

use super::memory::Memory;
use crate::order::Order;
use crate::pool::slot_map::SlotMap;
use crate::pool::{Environment, Shortage};
use crate::source::{Segment, SourceResult};
use crate::stream::Stuck;
use crate::stream::Ticket;
use addresses::Addresses;
pub(crate) use addresses::reserve;
pub(crate) use plan::{Packing, Plan, Run, plan_runs};

#[derive(Debug)]
pub(crate) struct Range {
    /// Address at which the first chunk is mapped.
    pub(crate) mapped_at: u64,
    /// Bytes of addresses that the range occupies.
    length: u64,
    /// Offset of the range in its first chunk.
    pub(crate) head: u64,
    /// Memory that the range maps, in order. Each address is the memory's primary address, not an
    /// address in this range.
    pub(crate) runs: Vec<Segment>,
    /// Sum of `runs` in bytes; zero once the range is being unmapped.
    pub(crate) bytes: u64,
    /// Primary address (not in this range) and size of each chunk, in the range's order.
    mapped: Vec<(u64, u64)>,
    /// Last use of the range on each stream, unless that use is known to be completed.
    last: Vec<Ticket>,
    /// Value of [`Ranges::uses`] at the last use of this range.
    used: u64,
    /// Keys of the blocks, at primary addresses, that the range holds while it is live.
    pub(crate) held: Vec<u32>,
}

impl Range {
    pub(crate) fn is_live(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn address(&self) -> u64 {
        self.mapped_at + self.head
    }

    /// Returns `true` if one of the range's uses is stuck: no wait can complete it now.
    pub(crate) fn is_stuck(&self, stuck: &Stuck) -> bool {
        self.last.iter().any(|ticket| stuck.holds(*ticket))
    }

    fn is_completed(&self, order: &Order) -> bool {
        !self.is_live() && self.last.iter().all(|ticket| order.is_fence_reached(*ticket))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ranges {
    ranges: SlotMap<Range>,
    by_size: BTreeSet<(u64, u32)>,
    addresses: Addresses,
    /// Number of mappings in all ranges now.
    maps: usize,
    mapped: u64,
    uses: u64,
}

impl Ranges {
    pub(crate) fn maps(&self) -> usize {
        self.maps
    }

    /// Returns the number of mappings ever made.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Range> {
        self.ranges.get(id)
    }

    /// Returns the free ranges of at least `bytes`, smallest first.
    pub(crate) fn fitting(&self, bytes: u64) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.by_size.range((bytes, 0)..).map(|(_, id)| *id)
    }

    /// Maps the chunks of `runs` one after the other as a new range, and returns its number.
    pub(crate) fn add(
        &mut self,
        runs: Vec<Segment>,
        memory: &mut Memory,
        env: &mut Environment<'_>,
    ) -> Result<u32, Shortage> {
        let (mut mapped, mut chunks, mut length) = (Vec::new(), Vec::new(), 0);
        for run in &runs {
            for (primary, piece) in memory.touching(run.address, run.address + run.bytes) {
                mapped.push((primary, piece.bytes));
                chunks.extend(piece.chunk);
                length += piece.bytes;
            }
        }
        let (Some(first), Some((primary, _))) = (runs.first(), mapped.first()) else {
            return Err(Shortage::Device(0));
        };
        let head = first.address - primary;
        let address = self.addresses.take(length, env)?;
        let pages = env.pages();
        if let Err(error) = pages.and_then(|pages| pages.map(address, &chunks)) {
            self.addresses.give(address, length);
            return Err(Shortage::Failed(error));
        }
        let bytes = runs.iter().map(|run| run.bytes).sum();
        self.maps += mapped.len();
        self.mapped += mapped.len() as u64;
        let range = Range {
            mapped_at: address,
            length,
            head,
            runs,
            bytes,
            mapped,
            last: Vec::new(),
            used: 0,
            held: Vec::new(),
        };
        let id = self.ranges.insert(range);
        for (primary, _) in self.ranges.get(id).iter().flat_map(|range| &range.mapped) {
            if let Some(piece) = memory.get_mut(*primary) {
                piece.ranges.push(id);
            }
        }
        self.by_size.insert((bytes, id));
        Ok(id)
    }

    /// Marks a range as live. `held` has the keys of the blocks that it uses, at primary addresses.
    pub(crate) fn store_held(&mut self, id: u32, held: Vec<u32>) {
        self.uses += 1;
        if let Some(range) = self.ranges.get_mut(id) {
            self.by_size.remove(&(range.bytes, id));
            range.held = held;
            range.used = self.uses;
        }
    }

    /// Frees a range. Returns the keys of the blocks, at primary addresses, that the range used.
    pub(crate) fn release(&mut self, id: u32, ticket: Ticket, order: &Order) -> Vec<u32> {
        let Some(range) = self.ranges.get_mut(id) else { return Vec::new() };
        range.last.retain(|last| last.slot() != ticket.slot() && !order.is_fence_reached(*last));
        range.last.push(ticket);
        self.by_size.insert((range.bytes, id));
        std::mem::take(&mut range.held)
    }

    /// Unmaps the least recently used ranges until at most `most` mappings are left. Skips ranges
    /// whose uses are not known to be completed.
    pub(crate) fn shrink(
        &mut self,
        most: usize,
        memory: &mut Memory,
        env: &mut Environment<'_>,
    ) -> SourceResult {
        if self.maps <= most {
            return Ok(());
        }
        let mut completed: Vec<_> = self
            .ranges
            .iter()
            .filter(|(_, range)| range.is_completed(env.order))
            .map(|(id, range)| (range.used, id))
            .collect();
        completed.sort_unstable();
        for (_, id) in completed {
            if self.maps <= most {
                break;
            }
            self.unmap(id, memory, env)?;
        }
        Ok(())
    }

    /// Returns `true` if all ranges in which a chunk is mapped can be unmapped.
    pub(crate) fn are_completed(&self, ids: &[u32], order: &Order) -> bool {
        ids.iter().all(|id| self.get(*id).is_none_or(|range| range.is_completed(order)))
    }

    /// Unmaps a range whose uses are completed. If a driver call fails, the range is never used
    /// again, and the next call for it continues the unmapping.
    pub(crate) fn unmap(
        &mut self,
        id: u32,
        memory: &mut Memory,
        env: &mut Environment<'_>,
    ) -> SourceResult {
        let Some(range) = self.ranges.get_mut(id) else { return Ok(()) };
        self.by_size.remove(&(range.bytes, id));
        range.bytes = 0;
        let mut left: u64 = range.mapped.iter().map(|(_, bytes)| bytes).sum();
        while let Some(&(primary, bytes)) = range.mapped.last() {
            left -= bytes;
            env.pages()?.unmap(range.mapped_at + left, bytes)?;
            range.mapped.pop();
            self.maps -= 1;
            if let Some(piece) = memory.get_mut(primary)
                && let Some(at) = piece.ranges.iter().position(|user| *user == id)
            {
                piece.ranges.swap_remove(at);
            }
        }
        self.addresses.give(range.mapped_at, range.length);
        self.ranges.remove(id);
        Ok(())
    }

    pub(crate) fn holding(&self, address: u64) -> Option<u32> {
        let holds =
            |range: &Range| (range.mapped_at..range.mapped_at + range.length).contains(&address);
        self.ranges.iter().find_map(|(id, range)| holds(range).then_some(id))
    }

    /// Gives back all addresses to the driver, if no range exists.
    pub(crate) fn clear(&mut self, env: &mut Environment<'_>) -> SourceResult {
        if self.ranges.iter().next().is_some() {
            return Ok(());
        }
        self.addresses.clear(env)
    }
}
