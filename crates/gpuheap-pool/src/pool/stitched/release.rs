//! What goes back to the device, and what could.

use super::blocks::{Block, State};
use super::memory::LEAST;
use super::{ROUNDING, Stitched};
use crate::ledger::Account;
use crate::order::Order;
use crate::pool::{Environment, Outlook};
use crate::source::{Segment, SourceError, round_up};
use crate::stuck::Stuck;

impl Stitched {
    /// Gives whole chunks back until `target` bytes went: of those that nobody uses the smallest
    /// that covers what is left of it, else the largest.
    pub(super) fn release_chunks(
        &mut self,
        target: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.settle(environment.order);
        let spare: Vec<(u64, u64)> = self
            .memory
            .all()
            .filter(|(home, piece)| self.is_spare(*home, piece.bytes, environment.order))
            .map(|(home, piece)| (piece.bytes, home))
            .collect();
        self.release_of(spare, target, environment)
    }

    /// The same of the chunks that are noted as free. Those that are not any more are noted no longer.
    pub(super) fn release_noted(
        &mut self,
        target: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.settle(environment.order);
        let mut noted = std::mem::take(&mut self.freed);
        noted.retain(|home| {
            self.chunk_at(*home).is_some_and(|bytes| self.is_all_free(*home, bytes))
        });
        let spare = noted.iter().filter_map(|home| Some((self.chunk_at(*home)?, *home)));
        let spare: Vec<(u64, u64)> =
            spare.filter(|(bytes, home)| self.is_spare(*home, *bytes, environment.order)).collect();
        self.freed = noted;
        self.release_of(spare, target, environment)
    }

    /// Notes the chunks of a range that are all free, now that the range is.
    pub(super) fn note_freed(&mut self, address: u64, end: u64) {
        let touched = self.memory.touching(address, end);
        let freed = touched.filter(|(home, piece)| self.is_all_free(*home, piece.bytes));
        let freed: Vec<u64> = freed.map(|(home, _)| home).collect();
        self.freed.extend(freed);
    }

    /// Gives chunks back, each its bytes and its home.
    fn release_of(
        &mut self,
        mut spare: Vec<(u64, u64)>,
        target: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        let mut released = self.memory.destroy(target, environment)?;
        spare.sort_unstable();
        while released < target && !spare.is_empty() {
            let covering = spare.partition_point(|(bytes, _)| *bytes < target - released);
            let (_, home) = spare.remove(covering.min(spare.len() - 1));
            released += self.release_chunk(home, environment)?;
        }
        self.let_go(environment)?;
        Ok(released)
    }

    /// Gives the chunks back that nobody uses, of the run of free blocks at a home address, or of
    /// the range that has the address.
    pub(super) fn release_around(
        &mut self,
        address: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.settle(environment.order);
        let runs = match self.ranges.holding(address) {
            Some(id) => self.ranges.get(id).map_or(Vec::new(), |range| range.runs.clone()),
            None => self.run_around(address).into_iter().collect(),
        };
        let mut homes = Vec::new();
        for run in runs {
            homes.extend(
                self.memory
                    .touching(run.address, run.address + run.bytes)
                    .filter(|(home, piece)| self.is_spare(*home, piece.bytes, environment.order))
                    .map(|(home, _)| home),
            );
        }
        let mut released = 0;
        for home in homes {
            released += self.release_chunk(home, environment)?;
        }
        self.let_go(environment)?;
        Ok(released)
    }

    /// What could be done for a request, if all frees were over but those that are stuck.
    pub(super) fn prospect(&self, bytes: u64, ledger: &Account, stuck: &Stuck) -> Outlook {
        let is_over = |block: &Block| !block.is_stuck(stuck);
        let rounded = round_up(bytes, ROUNDING);
        let runs = self.home.all_free().filter_map(|key| {
            Some(self.home.run_from(key, is_over)? - self.home.blocks[key].address)
        });
        // Of a block that is stuck in part the rest is as good as a block.
        let parts = self.home.all_free().map(|key| self.home.blocks[key].stuck(stuck));
        let rests = self.home.all_free().filter_map(|key| {
            let block = &self.home.blocks[key];
            let (from, to) = block.stuck(stuck);
            (from < to).then(|| (from - block.address).max(block.end() - to))
        });
        let largest = runs.chain(rests).max().unwrap_or(0);
        let (head, tail, longest) = self.edges(is_over);
        // With the free chunks given back, which the outlook counts as done.
        let edges = head + tail;
        let mut spare: Vec<Segment> = self
            .memory
            .all()
            .filter(|(home, piece)| self.could_go(*home, piece.bytes, stuck))
            .map(|(home, piece)| Segment { address: home, bytes: piece.bytes })
            .collect();
        // As good as a chunk that nobody uses.
        if self.memory.loose_bytes() > 0 {
            spare.push(Segment { address: 0, bytes: self.memory.loose_bytes() });
        }
        Outlook {
            takings: self.takings(rounded, ledger, stuck),
            is_cached: largest >= rounded || self.stitchable(is_over) >= rounded,
            take: round_up(rounded.saturating_sub(edges), LEAST).max(LEAST),
            take_whole: round_up(rounded, LEAST),
            spare,
            largest_left: longest,
            stuck: parts.map(|(from, to)| to.saturating_sub(from)).sum(),
            driver_is_stuck: false,
        }
    }

    /// Merges what can be merged.
    pub(super) fn settle(&mut self, order: &Order) {
        self.home.join_left(order);
        self.home.join_seams(order);
        self.home.reclaim_islands(order);
    }

    /// The bytes of the chunk with that home, if there is one.
    fn chunk_at(&self, home: u64) -> Option<u64> {
        let (start, piece) = self.memory.holding(home)?;
        (start == home).then_some(piece.bytes)
    }

    /// Returns `true` if nobody has anything of a chunk.
    fn is_all_free(&self, home: u64, bytes: u64) -> bool {
        let Some(first) = self.home.at(home) else { return false };
        self.home.run(first, home + bytes).all(|block| block.state == State::Free)
    }

    /// Returns `true` if a chunk is all free and all its uses can be waited for.
    fn could_go(&self, home: u64, bytes: u64, stuck: &Stuck) -> bool {
        let Some(first) = self.home.free_at(home, bytes) else { return false };
        let is_over = self.home.run(first, home + bytes).all(|block| {
            let (from, to) = block.stuck(stuck);
            to <= home || home + bytes <= from
        });
        let ranges = self.memory.holding(home).map(|(_, piece)| &piece.ranges);
        let mut ranges = ranges.into_iter().flatten();
        is_over && !ranges.any(|id| self.ranges.get(*id).is_some_and(|one| one.is_stuck(stuck)))
    }

    /// Returns `true` if a chunk is all free and all its uses are known to be over.
    fn is_spare(&self, home: u64, bytes: u64, order: &Order) -> bool {
        let Some(first) = self.home.free_at(home, bytes) else { return false };
        let over = self.home.run(first, home + bytes).all(|block| {
            let (from, to) = block.in_use(order);
            to <= home || home + bytes <= from
        });
        let ranges = self.memory.holding(home).map(|(_, piece)| &piece.ranges);
        over && ranges.is_some_and(|ids| self.ranges.are_over(ids, order))
    }

    /// Gives one chunk back that [is spare](Stitched::is_spare); the ranges with it go.
    pub(super) fn release_chunk(
        &mut self,
        home: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        let Some((_, piece)) = self.memory.holding(home) else { return Ok(0) };
        let (bytes, ranges) = (piece.bytes, piece.ranges.clone());
        for id in ranges {
            self.ranges.unmap(id, &mut self.memory, environment)?;
        }
        self.memory.unmap(home, environment)?;
        if let Some(first) = self.home.free_at(home, bytes) {
            self.home.empty(first, home, bytes);
        }
        self.memory.destroy(u64::MAX, environment)
    }

    fn run_around(&self, address: u64) -> Option<Segment> {
        let blocks = &self.home.blocks;
        let is_free = |key: u32| blocks.get(key).is_some_and(|block| block.state == State::Free);
        let mut first = self.home.at(address).filter(|key| is_free(*key))?;
        while is_free(blocks[first].before) {
            first = blocks[first].before;
        }
        let start = blocks[first].address;
        Some(Segment { address: start, bytes: self.home.run_from(first, |_| true)? - start })
    }

    /// Gives the addresses back where there is no memory any more.
    fn let_go(&mut self, environment: &mut Environment<'_>) -> Result<(), SourceError> {
        if !self.memory.is_empty() {
            return Ok(());
        }
        self.ranges.clear(environment)?;
        while let Some(arena) = self.home.arena_to_go() {
            environment.pages()?.unreserve(arena.address, arena.bytes)?;
            self.home.forget_arena();
        }
        Ok(())
    }
}
