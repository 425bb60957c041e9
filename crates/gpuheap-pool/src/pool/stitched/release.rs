//! Releases memory to the device, and finds the chunks that can be released.

use super::Stitched;
use super::primary::State;
use crate::order::Order;
use crate::pool::{Environment, Held};
use crate::source::{Segment, SourceResult};

impl Stitched {
    /// Gives back whole chunks until `target` bytes are given back. Each time, takes the smallest
    /// spare chunk that covers the rest of the target, else the largest spare chunk.
    pub(super) fn release_chunks(
        &mut self,
        target: u64,
        env: &mut Environment<'_>,
    ) -> SourceResult<u64> {
        self.merge_all(env.order);
        self.release_pieces(self.spare_pieces(env.order), target, env)
    }

    /// Returns the size and the primary address of each chunk that [is spare](Stitched::is_spare).
    pub(super) fn spare_pieces(&self, order: &Order) -> Vec<(u64, u64)> {
        let all = self.memory.all();
        let spare = all.filter(|(primary, piece)| self.is_spare(*primary, piece.bytes, order));
        spare.map(|(primary, piece)| (piece.bytes, primary)).collect()
    }

    /// Gives back chunks that are noted as free, until `target` bytes are given back. Removes the
    /// notes of chunks that are no longer free.
    pub(super) fn release_noted(
        &mut self,
        target: u64,
        env: &mut Environment<'_>,
    ) -> SourceResult<u64> {
        self.merge_all(env.order);
        let mut noted = std::mem::take(&mut self.freed);
        noted.retain(|primary| {
            self.chunk_at(*primary).is_some_and(|bytes| self.is_all_free(*primary, bytes))
        });
        let spare = noted.iter().filter_map(|primary| Some((self.chunk_at(*primary)?, *primary)));
        let spare: Vec<(u64, u64)> =
            spare.filter(|(bytes, primary)| self.is_spare(*primary, *bytes, env.order)).collect();
        self.freed = noted;
        self.release_pieces(spare, target, env)
    }

    /// Notes the chunks that became entirely free when a range of addresses was freed.
    pub(super) fn note_freed(&mut self, address: u64, end: u64) {
        let touched = self.memory.touching(address, end);
        let freed = touched.filter(|(primary, piece)| self.is_all_free(*primary, piece.bytes));
        let freed: Vec<u64> = freed.map(|(primary, _)| primary).collect();
        self.freed.extend(freed);
    }

    /// Gives back chunks until `target` bytes are given back. Each entry of `spare` is the size and
    /// the primary address of a chunk.
    pub(super) fn release_pieces(
        &mut self,
        mut spare: Vec<(u64, u64)>,
        target: u64,
        env: &mut Environment<'_>,
    ) -> SourceResult<u64> {
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

    /// Gives back spare chunks around an address. If a stitched range contains the address, gives
    /// back chunks of that range, else chunks of the run of free blocks at the address.
    pub(super) fn release_around(
        &mut self,
        address: u64,
        env: &mut Environment<'_>,
    ) -> SourceResult<u64> {
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

    /// Returns the total of the chunks and segments that contain a live byte.
    pub(super) fn held_by_live(&self) -> Held {
        let mut held = Held::default();
        for (primary, piece) in self.memory.all() {
            let end = primary + piece.bytes;
            let Some(first) = self.primary.block_at(primary) else { continue };
            let free =
                self.primary.blocks_from(first, end).filter(|block| block.state == State::Free);
            let free = free.map(|block| block.end().min(end) - block.address.max(primary)).sum();
            if free < piece.bytes {
                held.add(piece.bytes, free);
            }
        }
        held
    }

    /// Merges all neighbouring free blocks that may merge.
    pub(super) fn merge_all(&mut self, order: &Order) {
        self.primary.merge_deferred(order);
        self.primary.merge_boundaries(order);
        self.primary.merge_empty_small_runs(order);
    }

    /// Returns the size of the chunk that begins at the address `primary`; `None` if no chunk does.
    fn chunk_at(&self, primary: u64) -> Option<u64> {
        let (start, piece) = self.memory.holding(primary)?;
        (start == primary).then_some(piece.bytes)
    }

    /// Returns `true` if no byte of a chunk is live.
    fn is_all_free(&self, primary: u64, bytes: u64) -> bool {
        let Some(first) = self.primary.block_at(primary) else { return false };
        self.primary.blocks_from(first, primary + bytes).all(|block| block.state == State::Free)
    }

    /// Returns `true` if no byte of a chunk is live and all its uses are known to be completed.
    fn is_spare(&self, primary: u64, bytes: u64, order: &Order) -> bool {
        let Some(first) = self.primary.free_run_at(primary, bytes) else { return false };
        let completed = self.primary.blocks_from(first, primary + bytes).all(|block| {
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
    ) -> SourceResult<u64> {
        let Some((_, piece)) = self.memory.holding(primary) else { return Ok(0) };
        let (bytes, ranges) = (piece.bytes, piece.ranges.clone());
        if piece.chunk.is_none() {
            return self.release_segment(Segment { address: primary, bytes }, env);
        }
        for id in ranges {
            self.ranges.unmap(id, &mut self.memory, env)?;
        }
        self.memory.unmap(primary, env)?;
        if let Some(first) = self.primary.free_run_at(primary, bytes) {
            self.primary.unback(first, primary, bytes);
        }
        self.memory.destroy(u64::MAX, env)
    }

    fn run_around(&self, address: u64) -> Option<Segment> {
        let blocks = &self.primary.blocks;
        let is_free = |key: u32| blocks.get(key).is_some_and(|block| block.state == State::Free);
        let mut first = self.primary.block_at(address).filter(|key| is_free(*key))?;
        while is_free(blocks[first].before) {
            first = blocks[first].before;
        }
        let start = blocks[first].address;
        Some(Segment { address: start, bytes: self.primary.run_from(first, |_| true)? - start })
    }

    /// Unreserves all address ranges, if the pool has given back all its memory.
    fn unreserve_unused(&mut self, env: &mut Environment<'_>) -> SourceResult {
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
