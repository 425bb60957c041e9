//! Forecasts the bytes that a request would take, and the bytes that could be given back first.

use super::memory::LEAST;
use super::new_memory::Room;
use super::primary::{Block, State};
use super::ranges::Packing;
use super::{LOOK_RANGES, SMALL_RUN, Stitched};
use crate::pool::kind::ROUNDING;
use crate::pool::{Forecast, Outlook, Taking};
use crate::source::{Segment, round_up};
use crate::stream::Stuck;

impl Stitched {
    /// Forecasts a request, as if every free that a wait can complete were already completed.
    pub(super) fn forecast_steps(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
        let stuck = outlook.stuck;
        let is_completed = |block: &Block| !block.is_stuck(stuck);
        let rounded = round_up(bytes, ROUNDING);
        let runs = self.primary.all_free_blocks().filter_map(|key| {
            Some(self.primary.run_from(key, is_completed)? - self.primary.blocks[key].address)
        });
        // A part of a free block may be stuck: no wait can complete the part's last use. Then only
        // the larger rest, before or after that part, counts as a free block.
        let parts = self.primary.all_free_blocks().map(|key| self.primary.blocks[key].stuck(stuck));
        let rests = self.primary.all_free_blocks().filter_map(|key| {
            let block = &self.primary.blocks[key];
            let (from, to) = block.stuck(stuck);
            (from < to).then(|| (from - block.address).max(block.end() - to))
        });
        let largest = runs.chain(rests).max().unwrap_or(0);
        let (head, tail, longest) = self.edges(is_completed);
        // A stitched range may begin with the free end of a partly live chunk, and end with the
        // free beginning of another. Entirely free chunks are in `spare` instead. With segments
        // (`split`), nothing is stitched.
        let edges = if self.in_segments { 0 } else { head + tail };
        let mut spare: Vec<Segment> = self
            .memory
            .all()
            .filter(|(primary, piece)| self.can_be_spare(*primary, piece.bytes, stuck))
            .map(|(primary, piece)| Segment { address: primary, bytes: piece.bytes })
            .collect();
        // Chunks that are mapped nowhere count as spare chunks.
        if self.memory.loose_bytes() > 0 {
            spare.push(Segment { address: 0, bytes: self.memory.loose_bytes() });
        }
        let spare_bytes = spare.iter().map(|segment| segment.bytes).sum();
        Forecast {
            takings: self.takings(rounded, spare_bytes, outlook),
            is_cached: largest >= rounded || self.stitchable(is_completed) >= rounded,
            take: round_up(rounded.saturating_sub(edges), LEAST).max(LEAST),
            take_whole: round_up(rounded, LEAST),
            spare,
            largest_left: longest,
            stuck: parts.map(|(from, to)| to.saturating_sub(from)).sum(),
            driver_is_stuck: false,
        }
    }

    /// Returns the amounts that a request would try to take from the driver, given the memory
    /// cached now. Frees count as completed, unless no wait can complete them. `spare` is the bytes
    /// of chunks that could be given back. Follows the list of steps in the parent module.
    pub(super) fn takings(&self, bytes: u64, spare: u64, outlook: &Outlook<'_>) -> Vec<Taking> {
        let (small, empty_runs) = (bytes <= self.small, self.primary.empty_small_runs());
        let &Outlook { stats, headroom, stuck } = outlook;
        let is_completed = |block: &Block| !block.is_stuck(stuck);
        // Small runs are kept for small requests. Large requests may use one only if it is empty.
        let usable = |block: &Block| {
            is_completed(block) && (block.is_free(false) || empty_runs.contains(&block.address))
        };
        let runs = |allowed: &dyn Fn(&Block) -> bool| -> Vec<u64> {
            let runs = self.primary.all_free_blocks().filter_map(|key| {
                Some(self.primary.run_from(key, allowed)? - self.primary.blocks[key].address)
            });
            runs.collect()
        };
        let longest =
            |allowed: &dyn Fn(&Block) -> bool| runs(allowed).into_iter().max().unwrap_or(0);
        let fits_large = match small && self.in_segments {
            true => runs(&usable).contains(&SMALL_RUN),
            false => longest(&usable) >= bytes,
        };
        let fits_small =
            small && longest(&|block| is_completed(block) && block.is_free(true)) >= bytes;
        let is_range_free = || self.is_range_free(bytes, stuck, usable);
        if fits_small || fits_large || !small && is_range_free() {
            return vec![Taking::new(0)];
        }
        let all = |block: &Block| is_completed(block) && block.state == State::Free;
        if self.in_segments {
            return self.segment_takings(bytes, spare, longest(&all) >= bytes);
        }
        let grown = if small { SMALL_RUN } else { bytes };
        let room = self.find_room_among(grown, usable);
        let growth = self.growth_bounds(grown, stats, headroom);
        let fresh = Segment { address: 0, bytes: round_up(grown, LEAST) };
        let room = room.unwrap_or(Room { start: 0, memory: fresh, unbacked: u64::MAX });
        let loose = self.memory.loose_bytes();
        let at_primary = room.memory.bytes.saturating_sub(loose);
        let ahead = Taking::new(self.bytes_to_add(room, growth).saturating_sub(loose));
        let mut takings = Vec::new();
        if small {
            takings.extend([ahead, Taking::new(at_primary)]);
        } else {
            if self.memory.bytes().saturating_add(at_primary) <= growth.most {
                takings.extend([ahead, Taking::new(at_primary)]);
            }
            let missing = self.plan_in(bytes, Packing::Few, usable).missing;
            let more = if missing == bytes { at_primary } else { round_up(missing, LEAST) };
            takings.push(Taking::new(more));
        }
        // As a last resort, a request may also use the free memory of small runs (set apart for
        // small requests) that contain live blocks.
        let missing = match longest(&all) {
            longest if longest >= bytes => 0,
            _ => self.plan_in(bytes, Packing::Most, all).missing,
        };
        if missing < bytes {
            takings.push(Taking::new(round_up(missing, LEAST)));
        }
        takings
    }

    /// Returns `true` if the first `bytes` of some stitched range consist of `usable` blocks.
    fn is_range_free(&self, bytes: u64, stuck: &Stuck, usable: impl Fn(&Block) -> bool) -> bool {
        self.ranges.fitting(bytes).take(LOOK_RANGES).any(|id| {
            let range =
                self.ranges.get(id).filter(|range| !range.is_live() && !range.is_stuck(stuck));
            let mut left = bytes;
            range.is_some_and(|range| {
                range.runs.iter().all(|run| {
                    let part = run.bytes.min(left);
                    left -= part;
                    part == 0 || self.primary.run_where(run.address, part, &usable).is_some()
                })
            })
        })
    }

    /// Returns `true` if no byte of a chunk is live and all its uses can be waited for.
    fn can_be_spare(&self, primary: u64, bytes: u64, stuck: &Stuck) -> bool {
        let Some(first) = self.primary.free_run_at(primary, bytes) else { return false };
        let is_completed = self.primary.blocks_from(first, primary + bytes).all(|block| {
            let (from, to) = block.stuck(stuck);
            to <= primary || primary + bytes <= from
        });
        let ranges = self.memory.holding(primary).map(|(_, piece)| &piece.ranges);
        let mut ranges = ranges.into_iter().flatten();
        is_completed
            && !ranges.any(|id| self.ranges.get(*id).is_some_and(|one| one.is_stuck(stuck)))
    }
}
