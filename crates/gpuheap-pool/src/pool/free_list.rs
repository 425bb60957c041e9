//! A list of free segments that are never split. The policy `simple` caches memory in one list. The
//! policy `binned` has a list for each size class.

use super::{Cached, Environment, Shortage};
use crate::order::{Candidates, Order};
use crate::source::{Segment, SourceError, SourceResult};
use crate::stream::Stuck;
use crate::stream::{StreamRef, Ticket};

#[derive(Debug, Default)]
pub(super) struct FreeList {
    blocks: Vec<(Ticket, Segment)>,
}

impl FreeList {
    pub(super) fn push(&mut self, ticket: Ticket, segment: Segment) {
        self.blocks.push((ticket, segment));
    }

    /// Takes the last freed block that `fits` and may be used on `stream`. If no such block may be
    /// used immediately, polls the driver, then makes `stream` wait for a block.
    pub(super) fn find(
        &mut self,
        stream: StreamRef,
        env: &mut Environment<'_>,
        fits: impl Fn(u64) -> bool,
    ) -> Result<Option<Segment>, Shortage> {
        let blocks = &self.blocks;
        // The oldest block that fits was freed before the others, so its fence is most likely to be
        // reached.
        let oldest = blocks.iter().position(|(_, segment)| fits(segment.bytes));
        let found = env.order.find(stream, env.source, |order, _| Candidates {
            usable: blocks.iter().rposition(|(ticket, segment)| {
                fits(segment.bytes) && order.is_usable_on(*ticket, stream)
            }),
            other: oldest.map(|at| (at, blocks[at].0)),
            may_grow: oldest.is_some(),
        });
        match found {
            Ok(found) => Ok(found.map(|at| self.blocks.remove(at).1)),
            // `stream` cannot be made to wait for the block's stream, for example because one of
            // them is capturing a graph. The block stays in the list.
            Err(SourceError::StreamUnusable) => Ok(None),
            Err(error) => Err(Shortage::Failed(error)),
        }
    }

    /// Gives back blocks until `target` bytes are given back. Each time, takes the smallest block
    /// that covers the rest of the target. If no block covers it, takes the largest block.
    pub(super) fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        let reached = |(ticket, _): &mut (Ticket, Segment)| env.order.is_fence_reached(*ticket);
        let mut spare: Vec<_> = self.blocks.extract_if(.., reached).collect();
        spare.sort_unstable_by_key(|(_, segment)| segment.bytes);
        let (mut released, mut failed) = (0, None);
        while released < target {
            let covering = spare.partition_point(|(_, found)| found.bytes < target - released);
            let next =
                if covering < spare.len() { Some(covering) } else { spare.len().checked_sub(1) };
            let Some(position) = next else { break };
            let (ticket, segment) = spare.remove(position);
            match env.give_back(segment) {
                Ok(()) => released += segment.bytes,
                Err(error) => {
                    spare.push((ticket, segment));
                    failed = Some(error);
                    break;
                }
            }
        }
        self.blocks.append(&mut spare);
        failed.map_or(Ok(released), Err)
    }

    /// Gives back the block at `address`, if the block is in this list and out of use.
    pub(super) fn release_at(
        &mut self,
        address: u64,
        env: &mut Environment<'_>,
    ) -> SourceResult<u64> {
        let at = self.blocks.iter().position(|(ticket, segment)| {
            segment.address == address && env.order.is_fence_reached(*ticket)
        });
        let Some(at) = at else { return Ok(0) };
        let (_, segment) = self.blocks[at];
        env.give_back(segment)?;
        self.blocks.remove(at);
        Ok(segment.bytes)
    }

    /// Returns the segments of the list that become usable. A segment with a stuck free is left
    /// out, because no wait can complete that free now.
    pub(super) fn segments(&self, stuck: &Stuck) -> impl Iterator<Item = Segment> {
        let is_free = |(ticket, _): &&(Ticket, Segment)| !stuck.holds(*ticket);
        self.blocks.iter().filter(is_free).map(|(_, segment)| *segment)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the bytes of blocks whose frees are stuck: no wait can complete them now.
    pub(super) fn stuck(&self, stuck: &Stuck) -> u64 {
        let is_stuck = |(ticket, _): &&(Ticket, Segment)| stuck.holds(*ticket);
        self.blocks.iter().filter(is_stuck).map(|(_, segment)| segment.bytes).sum()
    }

    pub(super) fn count(&self, cached: &mut Cached, stream: Option<StreamRef>, order: &Order) {
        for (ticket, segment) in &self.blocks {
            cached.add(segment.bytes, *ticket, stream, order);
        }
    }
}
