//! Placement of new memory, and plans for new stitched ranges.

use super::addresses::reserve;
use super::blocks::{Block, Last, State};
use super::eligibility::Eligibility;
use super::growth::Growth;
use super::memory::LEAST;
use super::{LOOK_RANGES, SMALL_RUN, Shortage, Stitched};
use crate::order::Order;
use crate::pool::{BlockRef, Environment, Outlook, Request, Served, Taking};
use crate::source::{Segment, round_up};
use crate::stream::StreamRef;
use crate::stuck::Stuck;

/// A run of free blocks at primary addresses, as a stitched range could use it.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
    /// Part of the run that is whole chunks.
    whole: (u64, u64),
}

impl Run {
    fn whole(self) -> u64 {
        self.whole.1.saturating_sub(self.whole.0)
    }

    /// Returns the bytes before the whole chunks, which end with a chunk; zero if the run has no
    /// chunk border.
    fn before(self) -> u64 {
        if self.whole.0 <= self.whole.1 { self.whole.0 - self.start } else { 0 }
    }

    /// Returns the bytes after the whole chunks, which begin with a chunk.
    fn after(self) -> u64 {
        if self.whole.0 <= self.whole.1 { self.end - self.whole.1 } else { 0 }
    }

    /// Returns the bytes that the run can give as the first one of a range: they must end with a
    /// chunk.
    fn head(self) -> u64 {
        self.before() + self.whole()
    }

    /// Returns the bytes that the run can give as the last one of a range: they must begin with a
    /// chunk.
    fn tail(self) -> u64 {
        self.whole() + self.after()
    }

    /// Returns the part left if everything up to the end of the whole chunks is taken.
    fn rest(self) -> Option<Run> {
        let left = Run { start: self.whole.1, end: self.end, whole: (self.whole.1, self.whole.1) };
        (self.after() > 0).then_some(left)
    }
}

/// Packing of a range: how its pieces are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Few pieces, with new memory for the missing bytes. Small parts of runs stay free, and fit
    /// later requests. With these stitched too, `serve_threads` needed 0.01 more memory.
    Few,
    /// As much free memory as possible.
    Most,
}

/// Bound on the memory that is taken for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// The total that [growth](super::growth) allows before free memory is stitched.
    Slack,
    /// None, because free memory does not serve the request.
    None,
}

/// Plan of a stitched range: its pieces, and the bytes that are missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) runs: Vec<Segment>,
    pub(super) missing: u64,
}

/// Room for new memory: a part of an unbacked range, and the start of the free piece that results.
#[derive(Clone, Copy, Debug)]
struct Room {
    start: u64,
    memory: Segment,
    /// Size of the whole unbacked range.
    unbacked: u64,
}

impl Room {
    /// Returns the parts of the blocks before and after that range that the first `bytes` of the
    /// piece take.
    fn beside(self, bytes: u64) -> Vec<Segment> {
        let between =
            |address: u64, end: u64| Segment { address, bytes: end.saturating_sub(address) };
        let (from, to) = (self.memory.address, self.memory.address + self.memory.bytes);
        let end = self.start + bytes;
        let parts = [between(self.start, from.min(end)), between(to, end)];
        parts.into_iter().filter(|part| part.bytes > 0).collect()
    }
}

/// Plans `bytes` from `runs`, sorted by their whole chunks. The plan begins with one run as its
/// head. Then come the runs with most whole chunks, and the shortest sufficient tail.
fn plan_of(mut runs: Vec<Run>, bytes: u64, packing: Packing) -> Plan {
    let leads = |run: &Run| match packing {
        Packing::Few => (run.head(), 0, run.start),
        Packing::Most => (run.before(), run.head(), run.start),
    };
    let mut plan = Plan { runs: Vec::new(), missing: bytes };
    let take = |address: u64, length: u64, plan: &mut Plan| {
        let length = length.min(plan.missing);
        if length > 0 {
            plan.runs.push(Segment { address, bytes: length });
            plan.missing -= length;
        }
    };
    // Parts left of the runs that were taken.
    let mut rests: Vec<Run> = Vec::new();
    let rest = |run: Run| run.rest().filter(|_| packing == Packing::Most);
    let first = (0..runs.len()).max_by_key(|at| leads(&runs[*at]));
    if let Some(first) = first.filter(|at| runs[*at].head() > 0) {
        let first = runs.remove(first);
        take(first.start, first.head(), &mut plan);
        rests.extend(rest(first));
    }
    let longest = runs.iter().chain(&rests).map(|run| run.tail()).max().unwrap_or(0);
    while plan.missing > 0 {
        let enough = |run: &&Run| run.tail() >= plan.missing;
        // The search for a tail walks over all runs, so it is skipped if no run has a sufficient
        // one.
        if longest >= plan.missing
            && let Some(tail) =
                runs.iter().chain(&rests).filter(enough).min_by_key(|run| (run.tail(), run.start))
        {
            take(tail.whole.0, tail.tail(), &mut plan);
            break;
        }
        match runs.last().copied().filter(|run| run.whole() > 0) {
            Some(run) => {
                runs.pop();
                take(run.whole.0, run.whole(), &mut plan);
                rests.extend(rest(run));
            }
            None => {
                // If no tail suffices, the best one is added all the same.
                let most = runs.iter().chain(&rests).max_by_key(|run| (run.tail(), run.start));
                if let Some(tail) = most.filter(|run| run.tail() > 0) {
                    take(tail.whole.0, tail.tail(), &mut plan);
                }
                break;
            }
        }
    }
    plan
}

/// Least number of chunks that the bound on mappings counts.
const CHUNKS: usize = 32;

/// Number of attempts to stitch, with new memory added before each further one.
const TRIES: usize = 3;

impl Stitched {
    /// Takes new memory for a request, in one piece at a primary address. Returns `None` if the
    /// total would exceed the bound, or if new memory is refused and stitching may need none.
    pub(super) fn grow_for(&mut self, request: Request, env: &mut Environment<'_>) -> Served {
        match self.grow_at_primary(request, Bound::Slack, env) {
            Ok(Some(address)) => self.take_at_primary(address, request, env),
            Ok(None) => Ok(None),
            Err(Shortage::Limit(_) | Shortage::Device(_)) if !self.in_segments => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes new memory for an unbacked range, so that `bytes` lie free in one piece, and orders
    /// `stream` after all its uses. Returns the piece's address.
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
        let growth = self.growth(bytes, env.stats, headroom);
        let exceeds = |memory: u64, add: u64| {
            bound == Bound::Slack && memory.saturating_add(add) > growth.most
        };
        let mut eligibility = Eligibility::All;
        loop {
            let mut room = self.room(bytes, eligibility, stream, env.order);
            if room.is_none() {
                if exceeds(self.memory.bytes(), LEAST) {
                    return Ok(None);
                }
                let reserved = reserve(round_up(bytes, LEAST), env)?;
                self.primary.add_address_range(reserved.address, reserved.bytes);
                room = self.room(bytes, eligibility, stream, env.order);
            }
            let Some(room) = room else { return Ok(None) };
            let loose = self.memory.loose_bytes();
            if exceeds(self.memory.bytes(), room.memory.bytes.saturating_sub(loose)) {
                return Ok(None);
            }
            // The order comes first: new memory would be useless if the blocks beside it cannot be
            // used.
            if self.order_run(&room.beside(bytes), stream, env)? {
                self.put_ahead(room, growth, env)?;
                return Ok(Some(room.start));
            }
            let Some(less) = self.eligibility_less(eligibility, stream, env.order) else {
                return Ok(None);
            };
            eligibility = less;
        }
    }

    /// Narrows an eligibility that was too wide, and cuts completed parts from blocks that cannot
    /// be used. New memory merges with those parts again.
    fn eligibility_less(
        &mut self,
        eligibility: Eligibility,
        stream: StreamRef,
        order: &Order,
    ) -> Option<Eligibility> {
        let less = eligibility.less()?;
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

    /// Puts new memory into the room, and more behind it if the growth allows it.
    fn put_ahead(
        &mut self,
        room: Room,
        growth: Growth,
        env: &mut Environment<'_>,
    ) -> Result<(), Shortage> {
        let Segment { address, bytes } = room.memory;
        let ahead = self.ahead(room, growth);
        if ahead > bytes {
            match self.put_memory(address, ahead, growth.most_piece, env) {
                Err(Shortage::Limit(_) | Shortage::Device(_)) => {}
                put => return put,
            }
        }
        self.put_memory(address, bytes, growth.most_piece, env)
    }

    /// Returns the bytes of new memory that are put into the room.
    fn ahead(&self, room: Room, growth: Growth) -> u64 {
        let ahead = growth.ahead(room.memory.bytes, self.memory.bytes());
        // Memory of failed calls is put to use before more is taken.
        let fits = ahead <= room.unbacked && self.memory.loose_bytes() == 0;
        if fits { ahead } else { room.memory.bytes }
    }

    /// Puts new memory into a part of an unbacked range, in [pieces](super::growth::piece) of up to
    /// `most_piece` bytes or the share of the total. If the memory cannot be taken, nothing
    /// changes.
    fn put_memory(
        &mut self,
        address: u64,
        bytes: u64,
        most_piece: u64,
        env: &mut Environment<'_>,
    ) -> Result<(), Shortage> {
        // Chunks that are mapped nowhere are already counted as taken.
        env.allow(bytes.saturating_sub(self.memory.loose_bytes()))?;
        let (mut at, end) = (address, address + bytes);
        while at < end {
            match self.memory.add(at, end - at, most_piece, env) {
                Ok(added) => {
                    if let Some(unbacked) = self.primary.at(at) {
                        self.primary.fill(unbacked, added, env.order);
                    }
                    at += added;
                }
                Err(shortage) => {
                    self.take_back(address, at, env);
                    return Err(match shortage {
                        Shortage::Device(_) => Shortage::Device(bytes),
                        shortage => shortage,
                    });
                }
            }
        }
        Ok(())
    }

    /// Gives back memory that was just put in. If that fails, the memory stays cached.
    #[cold]
    fn take_back(&mut self, from: u64, to: u64, env: &mut Environment<'_>) {
        let primaries: Vec<u64> =
            self.memory.touching(from, to).map(|(primary, _)| primary).collect();
        for primary in primaries.into_iter().filter(|primary| *primary >= from) {
            let _ = self.release_chunk(primary, env);
        }
    }

    /// Puts new memory into any unbacked ranges, and notes its addresses.
    fn grow_anywhere(
        &mut self,
        mut bytes: u64,
        grown: &mut Vec<Segment>,
        env: &mut Environment<'_>,
    ) -> Result<(), Shortage> {
        bytes = round_up(bytes, LEAST);
        while bytes > 0 {
            let ranges =
                self.primary.unbacked.iter().map(|unbacked| &self.primary.blocks[*unbacked]);
            // The first unbacked range that holds the memory, else the largest.
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
            self.put_memory(address, part, 0, env)?;
            grown.push(Segment { address, bytes: part });
            bytes -= part;
        }
        Ok(())
    }

    /// Returns the unbacked range that needs the least new memory for `bytes` in one piece,
    /// together with the eligible blocks beside it.
    fn room(
        &self,
        bytes: u64,
        eligibility: Eligibility,
        stream: StreamRef,
        order: &Order,
    ) -> Option<Room> {
        self.room_beside(bytes, |block| {
            block.is_free(false) && eligibility.allows(block.last, stream, order)
        })
    }

    /// Returns the unbacked range that needs the least new memory for `bytes` in one piece,
    /// together with the `usable` free blocks beside it.
    fn room_beside(&self, bytes: u64, usable: impl Fn(&Block) -> bool) -> Option<Room> {
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

    /// Returns the first run of primary addresses of at least `bytes` in which several streams have
    /// parts.
    pub(super) fn bounded_run(&self, bytes: u64) -> Option<u64> {
        let mut best = None;
        for key in self.primary.boundaries() {
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

    /// Maps free chunks into one range, with new memory for what is missing. If that fails, new
    /// memory is given back.
    pub(super) fn stitch(
        &mut self,
        request: Request,
        packing: Packing,
        env: &mut Environment<'_>,
    ) -> Result<BlockRef, Shortage> {
        let mut grown = Vec::new();
        let stitched = self.stitch_with(request, packing, &mut grown, env);
        if stitched.is_err() {
            for part in grown {
                self.take_back(part.address, part.address + part.bytes, env);
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
    ) -> Result<BlockRef, Shortage> {
        let Request { bytes, stream } = request;
        let most = self.tuning.maps * self.memory.count().max(CHUNKS);
        if self.ranges.maps() > most {
            // A program with one stream polls at no other time.
            env.order.poll(env.source).map_err(Shortage::Failed)?;
        }
        self.ranges.shrink(most, &mut self.memory, env).map_err(Shortage::Failed)?;
        let none = || Shortage::Device(round_up(bytes, LEAST));
        let (mut eligibility, mut tries) = (Eligibility::All, 0);
        let plan = loop {
            let order = &*env.order;
            let plan = self.plan(bytes, packing, |last| eligibility.allows(last, stream, order));
            // Stitching fails if no memory is free, too many mappings are in use, or new memory
            // cannot be used.
            let crowded = self.ranges.maps() > 2 * most;
            if crowded || plan.missing > 0 && (plan.missing == bytes || tries == TRIES) {
                match self.grow_at_primary(request, Bound::None, env) {
                    // Too many mappings are better than a failed request.
                    Err(Shortage::Limit(_) | Shortage::Device(_)) if plan.missing == 0 => {}
                    grown => {
                        let address = grown?.ok_or_else(none)?;
                        let grant = self.take_at_primary(address, request, env)?;
                        return grant.ok_or_else(none);
                    }
                }
            }
            if !self.order_run(&plan.runs, stream, env)? {
                eligibility =
                    self.eligibility_less(eligibility, stream, env.order).ok_or_else(none)?;
                continue;
            }
            if plan.missing == 0 {
                break plan;
            }
            self.grow_anywhere(plan.missing, grown, env)?;
            self.cut_completed_parts(eligibility, stream, env.order);
            tries += 1;
        };
        if let [one] = plan.runs[..]
            && let Some(grant) = self.take_at_primary(one.address, request, env)?
        {
            return Ok(grant);
        }
        let id = self.ranges.add(plan.runs, &mut self.memory, env)?;
        let grant = self.in_range(id, request, env)?;
        grant.ok_or_else(none)
    }

    /// Returns the most that could be stitched without new memory, with nothing set apart for small
    /// requests. That is all whole chunks, the longest part before such chunks and the longest part
    /// after.
    pub(super) fn stitchable(&self, allowed: impl Fn(&Block) -> bool) -> u64 {
        if self.in_segments {
            return 0;
        }
        let (head, tail, _) = self.edges(&allowed);
        head + tail + self.free_runs(allowed).map(Run::whole).sum::<u64>()
    }

    /// Plans a range of `bytes`, or nearly. With [`Packing::Most`] the plan uses [as
    /// much](Stitched::stitchable) as is allowed.
    pub(super) fn plan(
        &self,
        bytes: u64,
        packing: Packing,
        allowed: impl Fn(Last) -> bool,
    ) -> Plan {
        self.plan_in(bytes, packing, |block| block.is_free(false) && allowed(block.last))
    }

    fn plan_in(&self, bytes: u64, packing: Packing, allowed: impl Fn(&Block) -> bool) -> Plan {
        let mut runs: Vec<Run> =
            self.free_runs(allowed).filter(|run| run.head() + run.tail() > 0).collect();
        runs.sort_unstable_by_key(|run| (run.whole(), run.start));
        plan_of(runs, bytes, packing)
    }

    /// Returns what a request would take from the driver with the cache as it is, once all frees
    /// but the stuck ones are completed. Then `spare` bytes of chunks could be given back. Follows
    /// the steps of the module's list in order.
    pub(super) fn takings(&self, bytes: u64, spare: u64, outlook: &Outlook<'_>) -> Vec<Taking> {
        let (small, empty_runs) = (bytes <= self.small, self.primary.empty_small_runs());
        // For large requests, empty small runs count as free blocks of large requests.
        let &Outlook { stats, headroom, stuck } = outlook;
        let is_completed = |block: &Block| !block.is_stuck(stuck);
        let usable = |block: &Block| {
            is_completed(block) && (block.is_free(false) || empty_runs.contains(&block.address))
        };
        let runs = |allowed: &dyn Fn(&Block) -> bool| -> Vec<u64> {
            let runs = self.primary.all_free().filter_map(|key| {
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
        let room = self.room_beside(grown, usable);
        let growth = self.growth(grown, stats, headroom);
        let fresh = Segment { address: 0, bytes: round_up(grown, LEAST) };
        let room = room.unwrap_or(Room { start: 0, memory: fresh, unbacked: u64::MAX });
        let loose = self.memory.loose_bytes();
        let at_primary = room.memory.bytes.saturating_sub(loose);
        let ahead = Taking::new(self.ahead(room, growth).saturating_sub(loose));
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
        // Last step before a failure: nothing stays set apart for small requests.
        let missing = match longest(&all) {
            longest if longest >= bytes => 0,
            _ => self.plan_in(bytes, Packing::Most, all).missing,
        };
        if missing < bytes {
            takings.push(Taking::new(round_up(missing, LEAST)));
        }
        takings
    }

    /// Returns `true` if a stitched range whose blocks are all `usable` holds `bytes`.
    fn is_range_free(&self, bytes: u64, stuck: &Stuck, usable: impl Fn(&Block) -> bool) -> bool {
        self.ranges.fitting(bytes).take(LOOK_RANGES).any(|id| {
            let range =
                self.ranges.get(id).filter(|range| !range.is_live() && !range.is_stuck(stuck));
            let mut left = bytes;
            range.is_some_and(|range| {
                range.runs.iter().all(|run| {
                    let part = run.bytes.min(left);
                    left -= part;
                    part == 0 || self.primary.run_of(run.address, part, &usable).is_some()
                })
            })
        })
    }

    /// Returns the size of the largest stitched range that is mapped and all free.
    pub(super) fn largest_free_range(&self) -> u64 {
        let is_free = |id: &u32| {
            self.ranges.get(*id).is_some_and(|range| {
                let is_free =
                    |run: &Segment| self.primary.free_at(run.address, run.bytes).is_some();
                !range.is_live() && range.runs.iter().all(is_free)
            })
        };
        let largest = self.ranges.fitting(1).rev().find(is_free);
        largest.and_then(|id| self.ranges.get(id)).map_or(0, |range| range.bytes)
    }

    fn free_runs(&self, allowed: impl Fn(&Block) -> bool) -> impl Iterator<Item = Run> {
        self.primary.all_free().filter_map(move |key| {
            let end = self.primary.run_from(key, &allowed)?;
            let start = self.primary.blocks[key].address;
            let (first, piece) = self.memory.holding(start)?;
            let from = if first == start { start } else { first + piece.bytes };
            let (last, piece) = self.memory.holding(end - 1)?;
            let to = if last + piece.bytes == end { end } else { last };
            Some(Run { start, end, whole: (from, to) })
        })
    }

    /// Returns the longest parts of free runs that could begin and end a range if no free chunk
    /// were left. Returns the longest free piece that would be left, too.
    pub(super) fn edges(&self, allowed: impl Fn(&Block) -> bool) -> (u64, u64, u64) {
        let (mut head, mut tail, mut longest) = (0, 0, 0);
        for run in self.free_runs(allowed) {
            let (before, after) = (run.before(), run.after());
            (head, tail) = (head.max(before), tail.max(after));
            // A run without a whole chunk stays whole, because nothing of it is given back.
            let whole = if run.whole() == 0 { run.end - run.start } else { 0 };
            longest = longest.max(before).max(after).max(whole);
        }
        (head, tail, longest)
    }
}
