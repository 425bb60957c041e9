//! Stitches free chunks: maps them one after the other as a new range. Also computes the bytes that
//! could be stitched.

use super::Stitched;
use super::growth::Bound;
use super::memory::LEAST;
use super::primary::{Block, Eligibility, LastUse};
use super::ranges::{Packing, Plan, Run, plan_runs};
use crate::pool::{Environment, Granted, Request, Shortage};
use crate::source::{Segment, round_up};

/// Minimum number of chunks from which the bound on mappings is computed. A pool with fewer chunks
/// has the same bound as a pool with this many.
const CHUNKS: usize = 32;

/// Maximum number of additions of new memory to a plan. Then one new piece serves the request.
const TRIES: usize = 3;

impl Stitched {
    /// Finds the shortest run of at least `bytes` that consists of free blocks of several streams.
    /// Returns the address of the run.
    pub(super) fn find_shared_run(&self, bytes: u64) -> Option<u64> {
        let mut best = None;
        for key in self.primary.run_starts_with_boundaries() {
            let end = self.primary.run_from(key, |block| block.is_free(false));
            let Some(end) = end else { continue };
            let address = self.primary.blocks[key].address;
            let length = end - address;
            if length >= bytes && best.is_none_or(|best| (length, address) < best) {
                best = Some((length, address));
            }
        }
        best.map(|(_, address)| address)
    }

    /// Maps free chunks into one range, with new memory for the missing bytes. If the call fails,
    /// gives back the new memory.
    pub(super) fn stitch(
        &mut self,
        request: Request,
        packing: Packing,
        env: &mut Environment<'_>,
    ) -> Granted {
        let mut grown = Vec::new();
        let stitched = self.stitch_with(request, packing, &mut grown, env);
        if stitched.is_err() {
            for part in grown {
                self.give_back_added(part.address, part.address + part.bytes, env);
            }
        }
        stitched
    }

    fn stitch_with(
        &mut self,
        request: Request,
        packing: Packing,
        grown: &mut Vec<Segment>,
        env: &mut Environment<'_>,
    ) -> Granted {
        let Request { bytes, stream } = request;
        let most = self.tuning.maps * self.memory.count().max(CHUNKS);
        if self.ranges.maps() > most {
            // In a program with one stream, no other call polls, and ranges would stay mapped.
            env.order.poll(env.source).map_err(Shortage::Failed)?;
        }
        self.ranges.shrink(most, &mut self.memory, env).map_err(Shortage::Failed)?;
        let none = || Shortage::Device(round_up(bytes, LEAST));
        let (mut eligibility, mut tries) = (Eligibility::All, 0);
        let plan = loop {
            let order = &*env.order;
            let plan = self.plan(bytes, packing, |last| eligibility.allows(last, stream, order));
            // Nothing is stitched if no memory is free, if too many mappings are in use, or if
            // bytes are still missing after `TRIES` additions. The request then takes new memory in
            // one piece.
            let crowded = self.ranges.maps() > 2 * most;
            if crowded || plan.missing > 0 && (plan.missing == bytes || tries == TRIES) {
                match self.grow_at_primary(request, Bound::None, env) {
                    // Without memory for one piece, the request is stitched after all: too many
                    // mappings are better than a failed request.
                    Err(Shortage::Limit(_) | Shortage::Device(_)) if plan.missing == 0 => {}
                    grown => {
                        let address = grown?.ok_or_else(none)?;
                        let grant = self.take_at_primary(address, request, env)?;
                        return grant.ok_or_else(none);
                    }
                }
            }
            if !self.order_after_uses(&plan.runs, stream, env)? {
                eligibility =
                    self.narrow_eligibility(eligibility, stream, env.order).ok_or_else(none)?;
                continue;
            }
            if plan.missing == 0 {
                break plan;
            }
            self.add_memory_anywhere(plan.missing, grown, env)?;
            self.cut_completed_parts(eligibility, stream, env.order);
            tries += 1;
        };
        if let [one] = plan.runs[..]
            && let Some(grant) = self.take_at_primary(one.address, request, env)?
        {
            return Ok(grant);
        }
        let id = self.ranges.add(plan.runs, &mut self.memory, env)?;
        let grant = self.take_range(id, request, env)?;
        grant.ok_or_else(none)
    }

    /// Returns the maximum number of bytes that could be stitched without new memory, with nothing
    /// set apart for small requests. It is the sum of all whole free chunks, the longest free end
    /// of another chunk, and the longest free beginning of a chunk.
    pub(super) fn stitchable(&self, allowed: impl Fn(&Block) -> bool) -> u64 {
        if self.in_segments {
            return 0;
        }
        let (head, tail, _) = self.edges(&allowed);
        head + tail + self.free_runs(allowed).map(Run::whole).sum::<u64>()
    }

    /// Plans a range of `bytes`. If too few bytes are free, [`Plan::missing`] is the number of
    /// missing bytes. With [`Packing::Most`], the plan may use all
    /// [stitchable](Stitched::stitchable) bytes.
    pub(super) fn plan(
        &self,
        bytes: u64,
        packing: Packing,
        allowed: impl Fn(LastUse) -> bool,
    ) -> Plan {
        self.plan_in(bytes, packing, |block| block.is_free(false) && allowed(block.last))
    }

    pub(super) fn plan_in(
        &self,
        bytes: u64,
        packing: Packing,
        allowed: impl Fn(&Block) -> bool,
    ) -> Plan {
        let mut runs: Vec<Run> =
            self.free_runs(allowed).filter(|run| run.head() + run.tail() > 0).collect();
        runs.sort_unstable_by_key(|run| (run.whole(), run.start));
        plan_runs(runs, bytes, packing)
    }

    /// Returns the size of the largest stitched range that is mapped and entirely free.
    pub(super) fn largest_free_range(&self) -> u64 {
        let is_free = |id: &u32| {
            self.ranges.get(*id).is_some_and(|range| {
                let is_free =
                    |run: &Segment| self.primary.free_run_at(run.address, run.bytes).is_some();
                !range.is_live() && range.runs.iter().all(is_free)
            })
        };
        let largest = self.ranges.fitting(1).rev().find(is_free);
        largest.and_then(|id| self.ranges.get(id)).map_or(0, |range| range.bytes)
    }

    pub(super) fn free_runs(&self, allowed: impl Fn(&Block) -> bool) -> impl Iterator<Item = Run> {
        self.primary.all_free_blocks().filter_map(move |key| {
            let end = self.primary.run_from(key, &allowed)?;
            let start = self.primary.blocks[key].address;
            let (first, piece) = self.memory.holding(start)?;
            let from = if first == start { start } else { first + piece.bytes };
            let (last, piece) = self.memory.holding(end - 1)?;
            let to = if last + piece.bytes == end { end } else { last };
            Some(Run { start, end, whole: (from, to) })
        })
    }

    /// Returns three sizes, as if all whole free chunks had been given back. A stitched range could
    /// begin with the first: the longest free end of a chunk. It could end with the second: the
    /// longest free beginning of a chunk. The third is the longest free piece.
    pub(super) fn edges(&self, allowed: impl Fn(&Block) -> bool) -> (u64, u64, u64) {
        let (mut head, mut tail, mut longest) = (0, 0, 0);
        for run in self.free_runs(allowed) {
            let (before, after) = (run.before(), run.after());
            (head, tail) = (head.max(before), tail.max(after));
            // Without a whole chunk, no part of the run is given back, so the run stays in one
            // piece.
            let whole = if run.whole() == 0 { run.end - run.start } else { 0 };
            longest = longest.max(before).max(after).max(whole);
        }
        (head, tail, longest)
    }
}
