//! Release of memory to the device, and the forecast of it.

use super::blocks::{Block, State};
use super::memory::LEAST;
use super::{ROUNDING, Stitched};
use crate::order::Order;
use crate::pool::{Environment, Forecast, Held, Outlook};
use crate::source::{Segment, SourceError, round_up};
use crate::stuck::Stuck;

impl Stitched {
    /// Gives whole chunks back until `target` bytes are given back. Of the chunks without live
    /// bytes, takes the smallest that covers the rest of the target, else the largest.
    pub(super) fn release_chunks(
        &mut self,
        target: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.merge_all(env.order);
        self.release_of(self.spare(env.order), target, env)
    }

    /// Returns the chunks that [are spare](Stitched::is_spare), by their bytes and their primary
    /// addresses.
    pub(super) fn spare(&self, order: &Order) -> Vec<(u64, u64)> {
        let all = self.memory.all();
        let spare = all.filter(|(primary, piece)| self.is_spare(*primary, piece.bytes, order));
        spare.map(|(primary, piece)| (piece.bytes, primary)).collect()
    }

    /// Gives back chunks that are noted as free, until `target` bytes are given back. Removes the
    /// notes of chunks that are not free any more.
    pub(super) fn release_noted(
        &mut self,
        target: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.merge_all(env.order);
        let mut noted = std::mem::take(&mut self.freed);
        noted.retain(|primary| {
            self.chunk_at(*primary).is_some_and(|bytes| self.is_all_free(*primary, bytes))
        });
        let spare = noted.iter().filter_map(|primary| Some((self.chunk_at(*primary)?, *primary)));
        let spare: Vec<(u64, u64)> =
            spare.filter(|(bytes, primary)| self.is_spare(*primary, *bytes, env.order)).collect();
        self.freed = noted;
        self.release_of(spare, target, env)
    }

    /// Notes the chunks of a range that became all free with the range.
    pub(super) fn note_freed(&mut self, address: u64, end: u64) {
        let touched = self.memory.touching(address, end);
        let freed = touched.filter(|(primary, piece)| self.is_all_free(*primary, piece.bytes));
        let freed: Vec<u64> = freed.map(|(primary, _)| primary).collect();
        self.freed.extend(freed);
    }

    /// Gives chunks back. Each is named by its bytes and its primary address.
    pub(super) fn release_of(
        &mut self,
        mut spare: Vec<(u64, u64)>,
        target: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        let mut released = self.memory.destroy(target, env)?;
        spare.sort_unstable();
        while released < target && !spare.is_empty() {
            let covering = spare.partition_point(|(bytes, _)| *bytes < target - released);
            let (_, primary) = spare.remove(covering.min(spare.len() - 1));
            released += self.release_chunk(primary, env)?;
        }
        self.unreserve_unused(env)?;
        Ok(released)
    }

    /// Gives back the chunks without live bytes, of the run of free blocks at a primary address, or
    /// of the range that holds the address.
    pub(super) fn release_around(
        &mut self,
        address: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.merge_all(env.order);
        let runs = match self.ranges.holding(address) {
            Some(id) => self.ranges.get(id).map_or(Vec::new(), |range| range.runs.clone()),
            None => self.run_around(address).into_iter().collect(),
        };
        let mut primaries = Vec::new();
        for run in runs {
            primaries.extend(
                self.memory
                    .touching(run.address, run.address + run.bytes)
                    .filter(|(primary, piece)| self.is_spare(*primary, piece.bytes, env.order))
                    .map(|(primary, _)| primary),
            );
        }
        let mut released = 0;
        for primary in primaries {
            released += self.release_chunk(primary, env)?;
        }
        self.unreserve_unused(env)?;
        Ok(released)
    }

    /// Returns the chunks and segments with a live byte.
    pub(super) fn held_by_live(&self) -> Held {
        let mut held = Held::default();
        for (primary, piece) in self.memory.all() {
            let end = primary + piece.bytes;
            let Some(first) = self.primary.at(primary) else { continue };
            let free = self.primary.run(first, end).filter(|block| block.state == State::Free);
            let free = free.map(|block| block.end().min(end) - block.address.max(primary)).sum();
            if free < piece.bytes {
                held.add(piece.bytes, free);
            }
        }
        held
    }

    /// Returns what the policy could do for a request, once all frees but the stuck ones are
    /// completed.
    pub(super) fn prospect(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
        let stuck = outlook.stuck;
        let is_completed = |block: &Block| !block.is_stuck(stuck);
        let rounded = round_up(bytes, ROUNDING);
        let runs = self.primary.all_free().filter_map(|key| {
            Some(self.primary.run_from(key, is_completed)? - self.primary.blocks[key].address)
        });
        // If only a part of a block is stuck, the rest counts as a free block.
        let parts = self.primary.all_free().map(|key| self.primary.blocks[key].stuck(stuck));
        let rests = self.primary.all_free().filter_map(|key| {
            let block = &self.primary.blocks[key];
            let (from, to) = block.stuck(stuck);
            (from < to).then(|| (from - block.address).max(block.end() - to))
        });
        let largest = runs.chain(rests).max().unwrap_or(0);
        let (head, tail, longest) = self.edges(is_completed);
        // The forecast counts the free chunks as given back.
        let edges = if self.in_segments { 0 } else { head + tail };
        let mut spare: Vec<Segment> = self
            .memory
            .all()
            .filter(|(primary, piece)| self.could_go(*primary, piece.bytes, stuck))
            .map(|(primary, piece)| Segment { address: primary, bytes: piece.bytes })
            .collect();
        // Chunks that are mapped nowhere count as spare chunks.
        if self.memory.loose_bytes() > 0 {
            spare.push(Segment { address: 0, bytes: self.memory.loose_bytes() });
        }
        let could_go = spare.iter().map(|segment| segment.bytes).sum();
        Forecast {
            takings: self.takings(rounded, could_go, outlook),
            is_cached: largest >= rounded || self.stitchable(is_completed) >= rounded,
            take: round_up(rounded.saturating_sub(edges), LEAST).max(LEAST),
            take_whole: round_up(rounded, LEAST),
            spare,
            largest_left: longest,
            stuck: parts.map(|(from, to)| to.saturating_sub(from)).sum(),
            driver_is_stuck: false,
        }
    }

    /// Merges all neighbours that may merge.
    pub(super) fn merge_all(&mut self, order: &Order) {
        self.primary.join_deferred(order);
        self.primary.join_boundaries(order);
        self.primary.merge_empty_small_runs(order);
    }

    /// Returns the size of the chunk with that primary address, if it exists.
    fn chunk_at(&self, primary: u64) -> Option<u64> {
        let (start, piece) = self.memory.holding(primary)?;
        (start == primary).then_some(piece.bytes)
    }

    /// Returns `true` if no byte of a chunk is live.
    fn is_all_free(&self, primary: u64, bytes: u64) -> bool {
        let Some(first) = self.primary.at(primary) else { return false };
        self.primary.run(first, primary + bytes).all(|block| block.state == State::Free)
    }

    /// Returns `true` if no byte of a chunk is live and all its uses can be waited for.
    fn could_go(&self, primary: u64, bytes: u64, stuck: &Stuck) -> bool {
        let Some(first) = self.primary.free_at(primary, bytes) else { return false };
        let is_completed = self.primary.run(first, primary + bytes).all(|block| {
            let (from, to) = block.stuck(stuck);
            to <= primary || primary + bytes <= from
        });
        let ranges = self.memory.holding(primary).map(|(_, piece)| &piece.ranges);
        let mut ranges = ranges.into_iter().flatten();
        is_completed
            && !ranges.any(|id| self.ranges.get(*id).is_some_and(|one| one.is_stuck(stuck)))
    }

    /// Returns `true` if no byte of a chunk is live and all its uses are known to be completed.
    fn is_spare(&self, primary: u64, bytes: u64, order: &Order) -> bool {
        let Some(first) = self.primary.free_at(primary, bytes) else { return false };
        let completed = self.primary.run(first, primary + bytes).all(|block| {
            let (from, to) = block.in_use(order);
            to <= primary || primary + bytes <= from
        });
        let ranges = self.memory.holding(primary).map(|(_, piece)| &piece.ranges);
        completed && ranges.is_some_and(|ids| self.ranges.are_completed(ids, order))
    }

    /// Gives back one chunk that [is spare](Stitched::is_spare), and unmaps the ranges that contain
    /// it.
    pub(super) fn release_chunk(
        &mut self,
        primary: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        let Some((_, piece)) = self.memory.holding(primary) else { return Ok(0) };
        let (bytes, ranges) = (piece.bytes, piece.ranges.clone());
        if piece.chunk.is_none() {
            return self.release_segment(Segment { address: primary, bytes }, env);
        }
        for id in ranges {
            self.ranges.unmap(id, &mut self.memory, env)?;
        }
        self.memory.unmap(primary, env)?;
        if let Some(first) = self.primary.free_at(primary, bytes) {
            self.primary.empty(first, primary, bytes);
        }
        self.memory.destroy(u64::MAX, env)
    }

    fn run_around(&self, address: u64) -> Option<Segment> {
        let blocks = &self.primary.blocks;
        let is_free = |key: u32| blocks.get(key).is_some_and(|block| block.state == State::Free);
        let mut first = self.primary.at(address).filter(|key| is_free(*key))?;
        while is_free(blocks[first].before) {
            first = blocks[first].before;
        }
        let start = blocks[first].address;
        Some(Segment { address: start, bytes: self.primary.run_from(first, |_| true)? - start })
    }

    /// Unreserves all address ranges, if no memory is left.
    fn unreserve_unused(&mut self, env: &mut Environment<'_>) -> Result<(), SourceError> {
        if !self.memory.is_empty() {
            return Ok(());
        }
        self.ranges.clear(env)?;
        while let Some(reserved) = self.primary.last_unused_address_range() {
            env.pages()?.unreserve(reserved.address, reserved.bytes)?;
            self.primary.remove_last_address_range();
        }
        Ok(())
    }
}
