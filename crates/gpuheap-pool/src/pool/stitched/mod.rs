//! The pool `stitched` maps physical memory at reserved addresses. So all free bytes are usable.
//!
//! ```text
//! primary    ├ live ┼─ a ─┼ live ┼── b ──┼ live ┼─ c ─┼─ live ─┼────── unbacked ─────┤
//!                   │             │             │
//! range             └──────┬──────┴──────┬──────┘       a request larger than a, b and c
//!                  ├─── a ─┼───── b ─────┼─ c ───┤
//! ```
//!
//! Every byte of memory has one primary address. Free blocks exist only at primary addresses. They
//! are linked by address, coalesced, and kept in bins by size. A request takes the first of the
//! following that serves it:
//!
//! 1. the place of the earlier equal request, if the program repeats itself ([`placement_log`]) and
//!    the place is free;
//! 2. the smallest free block at a primary address that fits and that the request's stream may use;
//! 3. such a block, found after polling the progress of other streams and merging the frees of
//!    several streams;
//! 4. a block that other streams freed: the part whose last use is completed; else the whole block,
//!    and the request's stream waits for its last use;
//! 5. a stitched range that is already mapped, if the bytes at its beginning are free;
//! 6. new memory, if the total then exceeds the high-water mark of live bytes by at most `slack`.
//!    While the device is far from full, the bound is at least a small part of the device
//!    ([`growth`]);
//! 7. a new stitched range: free chunks, with free parts of chunks at its ends, mapped one after
//!    the other without a copy; new memory supplies the missing bytes.
//!
//! Steps 1, 2 and 5 make no driver calls except for stream order. Bytes that a live range uses are
//! marked as mapped at their primary addresses, so two addresses never use one byte at a time.
//! Stream order is recorded for physical bytes, not for addresses. Different bytes of a chunk may
//! be used through two addresses at once.
//!
//! Small requests are carved from small runs of 2 MiB, so that a long-lived small block does not
//! split a large range. All but two empty small runs become free blocks for large requests. Before
//! a request fails, all free memory of small runs becomes free for large requests.
//!
//! The policy `split` is `stitched` over memory in [`segments`]. It follows steps 2 to 4 and then
//! takes a new segment.

mod forecast;
mod growth;
mod memory;
mod new_memory;
mod placement_log;
mod primary;
mod ranges;
mod release;
mod segments;
mod stitching;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use growth::{Bound, Growth, allowance};
use memory::{LEAST, Memory};
use placement_log::{Place, PlacementLog};
use primary::{Block, Eligibility, LastUse, NONE, Primary, State};
use ranges::{Packing, Ranges};

use super::kind::ROUNDING;
use super::{
    BlockRef, Cached, Environment, Forecast, Granted, Held, Outlook, Policy, Request, Served,
    Shortage,
};
use crate::order::{Candidates, Order};
use crate::pool::Headroom;
use crate::source::{Segment, SourceError, SourceResult, round_up};
use crate::stats::RunningStats;
use crate::stream::StreamRef;

/// Largest small request, in bytes, of `stitched` and of `split`. With `split`, 256 KiB and 64 KiB
/// give equal results on the example traces; 1 MiB costs `gpt_train_short` 0.06 of utilisation and
/// makes other traces grow more.
const SMALL: u64 = 64 << 10;
const SMALL_IN_SEGMENTS: u64 = 256 << 10;
/// Size, in bytes, of a small run: memory that is set apart for small requests.
const SMALL_RUN: u64 = 2 << 20;
/// Maximum number of small runs whose addresses are remembered.
const MOST_SMALL_RUNS: usize = 1024;

/// Key of a free block that serves a request; `None` if no block serves it.
type FoundKey = Result<Option<u32>, Shortage>;

/// Factor by which [`Tuning::search_depth`] grows in the search before a stream is made to wait.
const WIDE: usize = 8;

/// Trade-off of the policy between packing and time.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Memory that the pool may reserve above the high-water mark of live bytes, before it stitches
    /// chunks. The unit is a thousandth of that mark.
    pub slack: u64,
    /// `true` if the pool may exceed `slack`, and take larger pieces, while the device and the
    /// limits are far from full.
    pub allows_waste: bool,
    /// Number of free blocks that are searched for a block that the stream may use immediately.
    pub search_depth: usize,
    /// Maximum number of mappings in stitched ranges, for each chunk of the pool. Above it, the
    /// least recently used ranges are unmapped. A range with pending uses cannot be unmapped, so
    /// there may be up to twice as many mappings.
    pub maps: usize,
    /// `true` if a program that repeats its requests gets the same addresses for them again.
    pub follows: bool,
    /// Number of mappings made for stitched ranges before `slack` begins to grow, up to
    /// `most_slack`. If `slack` did not grow, a program that does not repeat itself would need new
    /// mappings all the time. 20,000 mappings take half a second.
    pub patience: u64,
    /// Upper bound of `slack` as it grows.
    pub most_slack: u64,
}

/// Number of mappings, beyond [`Tuning::patience`], that raise [`Tuning::slack`] by a thousandth.
const MAPS_A_THOUSANDTH: u64 = 64;

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            slack: 40,
            allows_waste: true,
            search_depth: 8,
            maps: 32,
            follows: true,
            patience: 20_000,
            most_slack: 350,
        }
    }
}

/// The policy `stitched`.
#[derive(Debug)]
pub struct Stitched {
    tuning: Tuning,
    /// `true` for the policy `split`: memory is taken in segments, and nothing is mapped.
    in_segments: bool,
    /// Largest small request, in bytes.
    small: u64,
    primary: Primary,
    memory: Memory,
    ranges: Ranges,
    placement_log: PlacementLog,
    /// Addresses of small runs (memory for small requests), also of earlier ones, by first use.
    small_runs: Vec<u64>,
    /// Primary addresses of chunks that became entirely free when a block was freed. Noted only if
    /// the heap has a soft limit.
    freed: BTreeSet<u64>,
}

impl Default for Stitched {
    fn default() -> Stitched {
        Stitched::with(Tuning::default())
    }
}

impl Policy for Stitched {
    #[inline]
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted {
        let grant = self.serve(request, true, env)?;
        grant.ok_or_else(|| Shortage::Device(round_up(request.bytes, LEAST)))
    }

    #[inline]
    fn reuse(&mut self, request: Request, env: &mut Environment<'_>) -> Served {
        let position = self.placement_log.position();
        let served = self.serve(request, false, env);
        if !matches!(served, Ok(Some(_))) {
            self.placement_log.return_to(position);
        }
        served
    }

    fn free(&mut self, key: u32, stream: StreamRef, env: &mut Environment<'_>) -> SourceResult {
        let Some(block) = self.primary.blocks.get(key) else { return Ok(()) };
        let (state, range) = (block.state, block.range);
        if state != State::Live && range == NONE {
            return Ok(());
        }
        let ticket = env.order.note_free(stream, env.source);
        let order = &*env.order;
        let last = LastUse::from_ticket(ticket, order);
        let notes = env.limits.soft.is_some();
        if state == State::Live {
            self.free_at_primary(key, last, notes, order);
        } else {
            for held in self.ranges.release(range, ticket, order) {
                self.primary.blocks[held].range = NONE;
                self.free_at_primary(held, last, notes, order);
            }
        }
        if self.primary.is_crowded() {
            self.primary.merge_boundaries(order);
        }
        Ok(())
    }

    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.release_chunks(target, env)
    }

    fn release_freed(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.release_noted(target, env)
    }

    fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    fn release_at(&mut self, address: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.release_around(address, env)
    }

    fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast {
        self.forecast_steps(bytes, outlook)
    }

    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached {
        let mut cached = Cached { bytes: self.memory.loose_bytes(), ..Cached::default() };
        for key in self.primary.all_free_blocks() {
            let block = &self.primary.blocks[key];
            let (from, to) = block.in_use(order);
            let pending = to.saturating_sub(from);
            cached.bytes += block.bytes - pending;
            if let Some(ticket) = block.last.ticket() {
                cached.add(pending, ticket, stream, order);
            }
        }
        cached.largest = self.primary.longest_merged(order).max(self.largest_free_range());
        cached.stitchable = self.stitchable(|_| true);
        cached
    }

    fn held(&self) -> Held {
        self.held_by_live()
    }

    #[cfg(any(test, feature = "testing"))]
    fn live(&self) -> Vec<Segment> {
        let mut live = Vec::new();
        for (_, block) in self.primary.blocks.iter() {
            if block.state == State::Live {
                live.push(Segment { address: block.address, bytes: block.bytes });
            } else if let Some(range) = self.ranges.get(block.range) {
                let held = range.held.iter().map(|key| self.primary.blocks[*key].bytes);
                live.push(Segment { address: range.address(), bytes: held.sum() });
            }
        }
        live
    }
}

impl Stitched {
    /// Makes an empty pool with this tuning.
    pub fn with(tuning: Tuning) -> Stitched {
        Stitched {
            tuning,
            in_segments: false,
            small: SMALL,
            primary: Primary::default(),
            memory: Memory::default(),
            ranges: Ranges::default(),
            placement_log: PlacementLog::default(),
            small_runs: Vec::new(),
            freed: BTreeSet::new(),
        }
    }

    /// Makes an empty pool of the kind `split`. It takes segments from the driver and never maps.
    pub fn in_segments() -> Stitched {
        let tuning = Tuning { follows: false, ..Tuning::default() };
        Stitched { in_segments: true, small: SMALL_IN_SEGMENTS, ..Stitched::with(tuning) }
    }

    /// Allocates from free memory: steps 1 to 5 of the module's list. If the pool `grows`, also
    /// takes steps 6 and 7.
    #[inline(always)]
    fn serve(&mut self, request: Request, grows: bool, env: &mut Environment<'_>) -> Served {
        let request = Request { bytes: round_up(request.bytes, ROUNDING), ..request };
        let grant = if request.bytes <= self.small {
            self.serve_small(request, grows, env)?
        } else {
            self.serve_large(request, grows, env)?
        };
        Ok(grant)
    }

    // The search steps are inlined, because each step uses the results of the step before. Without
    // inlining, they took a third of the time of a request that repeats an earlier one. The results
    // went through memory, and wide loads waited for narrower stores.
    #[inline(always)]
    fn serve_large(&mut self, request: Request, grows: bool, env: &mut Environment<'_>) -> Served {
        let Request { bytes, .. } = request;
        let (live, peak) = (env.stats.known_live(), env.stats.live_peak);
        self.placement_log.note_live(live, peak);
        let place = if self.tuning.follows { self.placement_log.find_place(bytes) } else { None };
        let mut grant = match place {
            Some(place) => match self.take_place(place, request, env)? {
                // Empty small runs may be in the way. This call frees them for large requests.
                None if self.primary.merge_empty_small_runs(env.order) => {
                    self.take_place(place, request, env)?
                }
                grant => grant,
            },
            None => None,
        };
        let followed = grant.is_some();
        if !followed && !grows && place.is_some_and(|place| self.is_among_small(place, bytes)) {
            return Ok(None);
        }
        if !followed && let Some(key) = self.find_at_primary(request, false, env)? {
            grant = Some(self.hand_out(key, bytes));
        }
        let grant = match grant {
            Some(grant) => grant,
            None => match self.serve_beyond_primary(request, grows, env)? {
                Some(grant) => grant,
                None => return Ok(None),
            },
        };
        if self.tuning.follows {
            let BlockRef { key, address, .. } = grant;
            let range = self.primary.blocks[key].range;
            let at_primary = range == NONE;
            let place = if at_primary { Place::Primary(address, key) } else { Place::Range(range) };
            self.placement_log.append(bytes, place, followed);
        }
        Ok(Some(grant))
    }

    /// Frees a block that is not stitched, or one part of a stitched block. If `notes` is `true`,
    /// notes the chunks that become entirely free.
    #[inline]
    fn free_at_primary(&mut self, key: u32, last: LastUse, notes: bool, order: &Order) {
        let block = &self.primary.blocks[key];
        let (address, end) = (block.address, block.end());
        if self.placement_log.is_followed() && !self.primary.blocks[key].small {
            self.primary.free_deferred(key, last);
        } else {
            self.primary.free_block(key, last, order);
        }
        if notes {
            self.note_freed(address, end);
        }
    }

    /// Takes the place that the placement log has for the request, if the place is free.
    #[inline(always)]
    fn take_place(&mut self, place: Place, request: Request, env: &mut Environment<'_>) -> Served {
        match place {
            Place::Primary(address, key) => {
                let first = if self.primary.is_free_at(key, address, request.bytes) {
                    Some(key)
                } else {
                    self.primary.large_run_at(address, request.bytes)
                };
                self.take_run(first, address, request, env)
            }
            Place::Range(id) => self.take_range(id, request, env),
        }
    }

    /// Returns `true` if small blocks, but no live large block, occupy `place`, the memory of an
    /// earlier request. Thread caches may hold these blocks. The caller then returns no memory, so
    /// that the heap flushes the caches first. Without this, the second pass of the trace
    /// `cupy_groupby` took new memory.
    #[cold]
    fn is_among_small(&self, place: Place, bytes: u64) -> bool {
        let Place::Primary(address, _) = place else { return false };
        let is_blocked = self.primary.large_run_at(address, bytes).is_none();
        let belongs = |block: &Block| block.small || block.state == State::Free;
        is_blocked && self.primary.run_where(address, bytes, belongs).is_some()
    }

    /// Finds a free block at a primary address (steps 2 to 4 of the module's list). Makes the
    /// stream wait for one other stream at most.
    #[inline]
    fn find_at_primary(
        &mut self,
        request: Request,
        small: bool,
        env: &mut Environment<'_>,
    ) -> FoundKey {
        let Request { bytes, stream } = request;
        self.primary.merge_deferred(env.order);
        let (primary, search_depth) = (&mut self.primary, self.tuning.search_depth);
        let found = env.order.find(stream, env.source, |order, polled| {
            if polled {
                primary.merge_boundaries(order);
                if !small {
                    primary.merge_empty_small_runs(order);
                }
            }
            // After a poll, only a wait or new memory is left to try, so the search goes deeper.
            let depth = if polled { search_depth.saturating_mul(WIDE) } else { search_depth };
            let found = primary.find(bytes, small, depth, stream, order);
            let other = found.other.and_then(|key| Some((key, primary.blocks[key].last.ticket()?)));
            let may_grow =
                other.is_some() || primary.has_boundaries() || primary.has_empty_small_runs();
            Candidates { usable: found.usable, other, may_grow }
        });
        match found {
            Err(SourceError::StreamUnusable) => {
                self.find_eligible(request, small, search_depth, env)
            }
            found => found.map_err(Shortage::Failed),
        }
    }

    /// Searches once more because no new memory can be taken. First looks at all free blocks, not
    /// only at a few. Then also searches the memory that is set apart for small requests, and
    /// stitches memory if no piece is large enough.
    #[cold]
    fn serve_before_failure(
        &mut self,
        request: Request,
        shortage: Shortage,
        env: &mut Environment<'_>,
    ) -> Granted {
        let Request { bytes, .. } = request;
        env.order.poll(env.source).map_err(Shortage::Failed)?;
        // If many streams exist, earlier steps polled only a few of them. Here the frees of all
        // streams are merged. Without this, a request for 40 KiB failed with 44 KiB free after a
        // minute of sixteen threads with two streams each.
        self.merge_all(env.order);
        for small in [false, true] {
            if let Some(key) = self.find_eligible(request, small, usize::MAX, env)? {
                return Ok(self.hand_out(key, bytes));
            }
        }
        self.primary.merge_all_small(env.order);
        if let Some(key) = self.find_eligible(request, false, usize::MAX, env)? {
            return Ok(self.hand_out(key, bytes));
        }
        if let Some(address) = self.find_shared_run(bytes)
            && let Some(grant) = self.take_at_primary(address, request, env)?
        {
            return Ok(grant);
        }
        // Here small requests may use stitched ranges too. Without this, in a test of sixteen
        // threads, a request for 40 KiB failed at a limit with 52 KiB free in two pieces.
        if let Some(grant) = self.take_any_range(request, env)? {
            return Ok(grant);
        }
        if self.in_segments {
            return Err(shortage);
        }
        match self.stitch(request, Packing::Most, env) {
            Err(Shortage::Limit(_) | Shortage::Device(_)) => Err(shortage),
            stitched => stitched,
        }
    }

    /// Takes a free block that `stream` may use now, or a free block for which `stream` can wait.
    #[cold]
    fn find_eligible(
        &mut self,
        request: Request,
        small: bool,
        search_depth: usize,
        env: &mut Environment<'_>,
    ) -> FoundKey {
        let Request { bytes, stream } = request;
        for eligibility in [Eligibility::Fenced, Eligibility::Usable] {
            let order = &*env.order;
            self.cut_completed_parts(eligibility, stream, order);
            let found =
                self.primary.find_eligible(eligibility, bytes, small, search_depth, stream, order);
            if found.usable.is_some() {
                return Ok(found.usable);
            }
            let Some(key) = found.other else { continue };
            let Some(ticket) = self.primary.blocks[key].last.ticket() else { return Ok(Some(key)) };
            match env.order.order_after(stream, ticket, env.source) {
                Err(SourceError::StreamUnusable) => {}
                waits => return waits.map(|()| Some(key)).map_err(Shortage::Failed),
            }
        }
        Ok(None)
    }

    /// Allocates by steps 4 to 7 of the module's list: adjacent free blocks, a stitched range, new
    /// memory, a new stitched range. Called if no single free block fits.
    #[cold]
    fn serve_beyond_primary(
        &mut self,
        request: Request,
        grows: bool,
        env: &mut Environment<'_>,
    ) -> Served {
        if let Some(address) = self.find_shared_run(request.bytes)
            && let Some(grant) = self.take_at_primary(address, request, env)?
        {
            return Ok(Some(grant));
        }
        if let Some(grant) = self.take_any_range(request, env)? {
            return Ok(Some(grant));
        }
        if !grows {
            return Ok(None);
        }
        if !env.order.polls_all() {
            // All streams are polled before new memory is taken.
            env.order.poll(env.source).map_err(Shortage::Failed)?;
            self.primary.merge_boundaries(env.order);
            if let Some(key) = self.find_at_primary(request, false, env)? {
                return Ok(Some(self.hand_out(key, request.bytes)));
            }
        }
        let taken = match self.grow_for_request(request, env) {
            Ok(None) => self.stitch(request, Packing::Few, env),
            Ok(Some(grown)) => return Ok(Some(grown)),
            Err(error) => Err(error),
        };
        match taken {
            Err(shortage @ (Shortage::Limit(_) | Shortage::Device(_))) => {
                self.serve_before_failure(request, shortage, env).map(Some)
            }
            stitched => stitched.map(Some),
        }
    }

    /// Returns the bounds of growth for a request of `bytes`. The high-water mark counts only
    /// memory that the program uses: blocks in thread caches are not live.
    fn growth_bounds(&self, bytes: u64, stats: &RunningStats, headroom: Headroom) -> Growth {
        let peak = stats.peak_with(bytes);
        let share = u128::from(peak) * u128::from(self.slack()) / 1000;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let allowance = if self.tuning.allows_waste { allowance(headroom) } else { 0 };
        let most = peak.saturating_add(share.max(allowance));
        Growth::new(most, allowance, headroom)
    }

    /// Returns the memory that may be taken above the high-water mark of live bytes, in thousandths
    /// of that mark.
    fn slack(&self) -> u64 {
        let Tuning { slack, most_slack, patience, .. } = self.tuning;
        let more = self.ranges.mapped().saturating_sub(patience) / MAPS_A_THOUSANDTH;
        slack.saturating_add(more).min(most_slack.max(slack))
    }

    fn serve_small(&mut self, request: Request, grows: bool, env: &mut Environment<'_>) -> Served {
        let Request { bytes, stream } = request;
        let search_depth = self.tuning.search_depth;
        let found = self.primary.find(bytes, true, search_depth, stream, env.order);
        let key = match found.usable {
            Some(key) => Some(key),
            None => match self.take_small_run(request, grows, env) {
                Err(shortage @ (Shortage::Limit(_) | Shortage::Device(_))) => {
                    let grant = self.serve_before_failure(request, shortage, env)?;
                    return Ok(Some(grant));
                }
                run => run?,
            },
        };
        Ok(key.map(|key| self.hand_out(key, bytes)))
    }

    /// Takes a small run (memory set apart for small requests) from the free blocks of large
    /// requests or from the driver.
    #[cold]
    fn take_small_run(
        &mut self,
        request: Request,
        grows: bool,
        env: &mut Environment<'_>,
    ) -> FoundKey {
        let Request { stream, .. } = request;
        let search_depth = self.tuning.search_depth;
        // Prefers the address of an earlier small run. A small run at another address could occupy
        // memory that a large request needs when the program repeats it.
        let mut key = self.small_runs.iter().find_map(|address| {
            let key = self.primary.large_run_at(*address, SMALL_RUN)?;
            let block = &self.primary.blocks[key];
            let usable =
                block.end() >= address + SMALL_RUN && block.last.is_usable_on(stream, env.order);
            (usable && self.may_hold_small(key)).then_some((key, *address))
        });
        if key.is_none() {
            self.primary.merge_deferred(env.order);
            key = self
                .primary
                .find(SMALL_RUN, false, search_depth, stream, env.order)
                .usable
                .filter(|key| self.may_hold_small(*key))
                .map(|key| (key, self.primary.blocks[key].address));
        }
        if key.is_none() {
            if let Some(key) = self.find_at_primary(request, true, env)? {
                return Ok(Some(key));
            }
            if !self.in_segments {
                key = self
                    .find_at_primary(request, false, env)?
                    .map(|key| (key, self.primary.blocks[key].address));
            }
        }
        let grown = key.is_none();
        if grown && !grows {
            return Ok(None);
        }
        if grown {
            let address =
                self.grow_at_primary(Request { bytes: SMALL_RUN, ..request }, Bound::None, env)?;
            key = address.and_then(|at| Some((self.primary.large_run_at(at, SMALL_RUN)?, at)));
        }
        let (key, address) = key.ok_or(Shortage::Device(LEAST))?;
        let block = &self.primary.blocks[key];
        let mut length = (block.end() - address).min(SMALL_RUN);
        let mut last = block.last_use_in(address, address + length, env.order);
        if length < SMALL_RUN && grown {
            // Several streams used the neighbours of the new memory, so the blocks were not merged.
            // `stream` now waits for all these uses. The whole run can therefore count as freed on
            // `stream`.
            length = SMALL_RUN;
            let ticket = env.order.note_free(stream, env.source);
            last = LastUse::from_ticket(ticket, env.order);
        }
        if length >= SMALL_RUN {
            self.note_small_run(address);
        }
        let key = self.primary.take(key, address, length, State::Live);
        self.primary.blocks[key].small = true;
        self.primary.free_unmerged(key, last);
        Ok(Some(key))
    }

    /// Returns `true` if a free block may become a small run. With `split`, only a block of a run's
    /// exact size may, so that larger segments can serve large requests.
    fn may_hold_small(&self, key: u32) -> bool {
        !self.in_segments || self.primary.blocks[key].bytes == SMALL_RUN
    }

    fn note_small_run(&mut self, address: u64) {
        if self.small_runs.contains(&address) {
            return;
        }
        if self.small_runs.len() >= MOST_SMALL_RUNS {
            // Makes room for the new address by dropping addresses of memory that was given back.
            let primary = &self.primary;
            self.small_runs.retain(|run| primary.holds_memory(*run));
        }
        if self.small_runs.len() < MOST_SMALL_RUNS {
            self.small_runs.push(address);
        }
    }

    /// Takes the first `bytes` of a free block for a request.
    #[inline]
    fn hand_out(&mut self, key: u32, bytes: u64) -> BlockRef {
        let address = self.primary.blocks[key].address;
        let key = self.primary.take(key, address, bytes, State::Live);
        BlockRef { key, address, bytes }
    }

    /// Takes the requested bytes at a primary address (not in a stitched range), if all are free.
    #[inline]
    fn take_at_primary(
        &mut self,
        address: u64,
        request: Request,
        env: &mut Environment<'_>,
    ) -> Served {
        let first = self.primary.large_run_at(address, request.bytes);
        self.take_run(first, address, request, env)
    }

    /// Takes the requested bytes at `address` from adjacent free blocks. `first` is the key of the
    /// first of these blocks; `None` if the bytes are not all free.
    #[inline(always)]
    fn take_run(
        &mut self,
        first: Option<u32>,
        address: u64,
        request: Request,
        env: &mut Environment<'_>,
    ) -> Served {
        let Request { bytes, stream } = request;
        let Some(first) = first else { return Ok(None) };
        let block = &self.primary.blocks[first];
        let simple = block.end() >= address + bytes && block.last.is_usable_on(stream, env.order);
        if !simple && !self.order_after_uses(&[Segment { address, bytes }], stream, env)? {
            return Ok(None);
        }
        let key = self.primary.take(first, address, bytes, State::Live);
        Ok(Some(BlockRef { key, address, bytes }))
    }

    /// Takes the beginning of some stitched range (chunks that are mapped one after the other), if
    /// it is free. Looks only at the first few ranges that fit.
    fn take_any_range(&mut self, request: Request, env: &mut Environment<'_>) -> Served {
        let fitting: Vec<u32> = self.ranges.fitting(request.bytes).take(LOOK_RANGES).collect();
        for id in fitting {
            if let Some(grant) = self.take_range(id, request, env)? {
                return Ok(Some(grant));
            }
        }
        Ok(None)
    }

    /// Takes the first bytes of a stitched range, if no block uses the range and they are free.
    fn take_range(&mut self, id: u32, request: Request, env: &mut Environment<'_>) -> Served {
        let Request { bytes, stream } = request;
        let Some(range) = self.ranges.get(id) else { return Ok(None) };
        if range.is_live() || range.bytes < bytes {
            return Ok(None);
        }
        let (address, mut left) = (range.address(), bytes);
        let mut runs = Vec::with_capacity(range.runs.len());
        for run in &range.runs {
            if left == 0 {
                break;
            }
            let part = Segment { address: run.address, bytes: run.bytes.min(left) };
            if self.primary.large_run_at(part.address, part.bytes).is_none() {
                return Ok(None);
            }
            left -= part.bytes;
            runs.push(part);
        }
        if !self.order_after_uses(&runs, stream, env)? {
            return Ok(None);
        }
        let held = self.take_mapped(&runs, id);
        let Some(&key) = held.first() else { return Ok(None) };
        self.ranges.store_held(id, held);
        Ok(Some(BlockRef { key, address, bytes }))
    }

    /// Marks free memory as live in stitched range `id`. Returns the keys of the memory's blocks.
    fn take_mapped(&mut self, runs: &[Segment], id: u32) -> Vec<u32> {
        let mut held = Vec::with_capacity(runs.len());
        for run in runs {
            if let Some(first) = self.primary.large_run_at(run.address, run.bytes) {
                held.push(self.primary.take(first, run.address, run.bytes, State::Mapped));
            }
        }
        if let Some(first) = held.first() {
            self.primary.blocks[*first].range = id;
        }
        held
    }

    /// Makes `stream` wait for the last uses of the free memory in `runs`. Returns `false` if one
    /// of these uses cannot be waited for.
    fn order_after_uses(
        &self,
        runs: &[Segment],
        stream: StreamRef,
        env: &mut Environment<'_>,
    ) -> Result<bool, Shortage> {
        let mut tickets = Vec::new();
        for run in runs {
            let Some(first) = self.primary.large_run_at(run.address, run.bytes) else {
                return Ok(false);
            };
            let end = run.address + run.bytes;
            for block in self.primary.blocks_from(first, end) {
                // The block's last use may cover only a part of the block, for example if new
                // memory merged with it. If `run` lies outside that part, no wait is needed.
                let ticket = block.last_use_in(run.address, end, env.order).ticket();
                tickets.extend(ticket.filter(|ticket| !env.order.is_usable_on(*ticket, stream)));
            }
        }
        match env.order.order_after_all(stream, &tickets, env.source) {
            Ok(()) => Ok(true),
            Err(SourceError::StreamUnusable) => Ok(false),
            Err(error) => Err(Shortage::Failed(error)),
        }
    }
}

/// Maximum number of stitched ranges that a search for a free range visits.
const LOOK_RANGES: usize = 32;
