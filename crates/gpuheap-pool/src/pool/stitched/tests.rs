//! Tests properties that only the pool `stitched` has, and compares its forecasts with requests.

use crate::stream::StreamHandle;
use proptest::prelude::*;

use super::*;
use crate::pool::Headroom;
use crate::source::Limits;
use crate::source::MemorySource;
use crate::stats::RunningStats;
use crate::stream::Stuck;
use crate::stream::Ticket;
use crate::testing::{Action, LARGE_DEVICE, Model, Random, cases, fewer, programs};

const MIB: u64 = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A plan for all stitchable bytes succeeds.
    #[test]
    fn plan_takes_all_stitchable_bytes(
        actions in programs(70_000..9 * MIB, 1, 5, 140),
    ) {
        let mut bench = Bench::new(stitches());
        let mut live = Vec::new();
        for action in actions {
            match action {
                Action::Allocate { bytes, .. } => live.push(bench.allocate(bytes, 0)),
                Action::Free { index, .. } if !live.is_empty() => {
                    bench.free(live.swap_remove(index % live.len()), 0);
                }
                _ => continue,
            }
            let plan = bench.policy.plan(u64::MAX, Packing::Most, |_| true);
            let taken: u64 = plan.runs.iter().map(|run| run.bytes).sum();
            prop_assert_eq!(bench.policy.stitchable(|_| true), taken);
            prop_assert_eq!(most_stitched(&bench), taken);
            for bytes in [taken, taken / 2] {
                prop_assert_eq!(bench.policy.plan(bytes, Packing::Most, |_| true).missing, 0);
            }
        }
    }

    /// After the last reclaim step, a request succeeds exactly if the forecast predicted it.
    #[test]
    fn forecast_matches_request_outcome(
        limit in 4_u64..16,
        actions in programs(prop_oneof![1_u64..60_000, 1..MIB, 1..9 * MIB], 3, 4, 80),
    ) {
        let mut bench = Bench::new(stitches());
        let limit = limit * LEAST;
        bench.limits.hard = Some(limit);
        let mut live: Vec<BlockRef> = Vec::new();
        for action in actions {
            let (bytes, stream) = match action {
                Action::Allocate { bytes, stream } => (bytes, stream),
                Action::Free { index, stream } if !live.is_empty() => {
                    bench.free(live.swap_remove(index % live.len()), stream);
                    continue;
                }
                _ => continue,
            };
            bench.complete_all();
            let forecast = bench.forecast(bytes);
            let spare: u64 = forecast.spare.iter().map(|segment| segment.bytes).sum();
            let fits = forecast.is_cached || bench.stats.taken - spare + forecast.take <= limit;
            let mut granted = bench.try_allocate(bytes, stream);
            prop_assert!(granted.is_ok() || !forecast.is_cached, "{} {:?}", bytes, forecast);
            if granted.is_err() {
                bench.release();
                granted = bench.try_allocate(bytes, stream);
            }
            bench.policy.primary.check();
            prop_assert_eq!(granted.is_ok(), fits, "{} {:?}", bytes, forecast);
            live.extend(granted.ok());
        }
    }
}

/// Returns the stitchable bytes: all free chunks, the longest free end of another chunk, and the
/// longest free beginning of another chunk. Looks at each chunk, and so not at the runs of free
/// blocks from which the tested code computes this figure.
fn most_stitched(bench: &Bench) -> u64 {
    let (mut whole, mut before, mut after) = (0, 0, 0);
    for (primary, piece) in bench.policy.memory.all() {
        let free =
            bench.policy.primary.blocks.iter().filter(|(_, block)| block.state == State::Free);
        let mut free: Vec<_> = free.map(|(_, block)| (block.address, block.end())).collect();
        free.sort_unstable();
        let end = primary + piece.bytes;
        let (mut from, mut to) = (primary, end);
        for (start, stop) in &free {
            from = if *start <= from { from.max(*stop) } else { from };
        }
        for (start, stop) in free.iter().rev() {
            to = if *stop >= to { to.min(*start) } else { to };
        }
        if from >= end {
            whole += piece.bytes;
        } else {
            (before, after) =
                (before.max(end - to.max(primary)), after.max(from.max(primary) - primary));
        }
    }
    whole + before + after
}

/// A policy over a model, with streams.
struct Bench {
    policy: Stitched,
    model: Model,
    order: Order,
    stats: RunningStats,
    stranded: Vec<Segment>,
    limits: Limits,
    streams: Vec<StreamRef>,
}

impl Bench {
    fn new(tuning: Tuning) -> Bench {
        Bench::with_streams(3, tuning)
    }

    fn with_streams(streams: u64, tuning: Tuning) -> Bench {
        let (mut model, mut order) = (Model::new(LARGE_DEVICE), Order::default());
        model.immediate = false;
        let streams = (0..streams)
            .map(|n| order.stream(100 + n, StreamHandle(n as usize + 10), || None, &mut model))
            .collect();
        let policy = Stitched::with(tuning);
        let (stats, stranded, limits) = (RunningStats::default(), Vec::new(), Limits::default());
        Bench { policy, model, order, stats, stranded, limits, streams }
    }

    fn act<R>(&mut self, work: impl FnOnce(&mut Stitched, &mut Environment<'_>) -> R) -> R {
        let mut env = Environment {
            source: &mut self.model,
            order: &mut self.order,
            stats: &mut self.stats,
            limits: self.limits,
            stranded: &mut self.stranded,
        };
        work(&mut self.policy, &mut env)
    }

    fn forecast(&mut self, bytes: u64) -> Forecast {
        let headroom = Headroom::from_source(&mut self.model, self.limits);
        let stuck = Stuck::default();
        self.policy.forecast(bytes, &Outlook { stats: &self.stats, headroom, stuck: &stuck })
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> BlockRef {
        self.try_allocate(bytes, stream).unwrap()
    }

    fn try_allocate(&mut self, bytes: u64, stream: usize) -> Granted {
        let stream = self.streams[stream];
        let grant = self.act(|policy, env| policy.allocate(Request { bytes, stream }, env))?;
        self.stats.count_allocation(grant.bytes, grant.bytes);
        self.model.work(stream);
        self.model.uses(grant.address, grant.bytes, stream.slot());
        Ok(grant)
    }

    /// Completes all work and marks it as known to the host.
    fn complete_all(&mut self) {
        self.model.all_known();
        self.order.poll(&mut self.model).unwrap();
    }

    fn free(&mut self, grant: BlockRef, stream: usize) {
        let stream = self.streams[stream];
        self.stats.count_free(grant.bytes, grant.bytes);
        self.act(|policy, env| policy.free(grant.key, stream, env)).unwrap();
    }

    fn release(&mut self) -> u64 {
        self.act(|policy, env| policy.release(u64::MAX, env)).unwrap()
    }
}

fn stitches() -> Tuning {
    Tuning { slack: 0, allows_waste: false, ..Tuning::default() }
}

#[test]
fn separate_free_blocks_serve_larger_request() {
    let mut bench = Bench::new(stitches());
    let blocks: Vec<_> = (0..8).map(|_| bench.allocate(8 * MIB, 0)).collect();
    for block in blocks.iter().step_by(2) {
        bench.free(*block, 0);
    }
    let taken = bench.stats.taken;
    let cached = bench.policy.cached(None, &bench.order);
    assert_eq!((cached.largest, cached.stitchable), (8 * MIB, 32 * MIB));
    let large = bench.allocate(32 * MIB, 0);
    assert_eq!(bench.stats.taken, taken, "nothing more was taken");
    assert_eq!(bench.model.physical(large.address, large.bytes).unwrap().len(), 16);
    bench.free(large, 0);
    let cached = bench.policy.cached(None, &bench.order);
    assert_eq!(cached.largest, 32 * MIB, "what is mapped together is contiguous");
    // An equal and a smaller request get the same range. Memory and mappings do not change.
    let changes = bench.model.changes;
    for bytes in [32 * MIB, 20 * MIB] {
        let again = bench.allocate(bytes, 0);
        assert_eq!(again.address, large.address);
        bench.free(again, 0);
    }
    assert_eq!(bench.model.changes, changes);
}

#[test]
fn stitched_range_waits_for_all_streams() {
    let mut bench = Bench::new(stitches());
    let blocks: Vec<_> = (0..8).map(|_| bench.allocate(8 * MIB, 0)).collect();
    for (at, block) in blocks.iter().enumerate().step_by(2) {
        // The blocks from the fifth on are freed on another stream. Work on that stream is not
        // done.
        bench.free(*block, usize::from(at >= 4));
    }
    let calls = bench.model.calls();
    let large = bench.allocate(32 * MIB, 2);
    assert!(bench.model.calls() > calls);
    for (slot, freed) in [(0, 2), (1, 2)] {
        let ticket = Ticket::new(slot, freed);
        assert!(bench.order.is_usable_on(ticket, bench.streams[2]), "stream {slot}");
    }
    bench.free(large, 2);
}

#[test]
fn small_request_is_stitched_before_failing() {
    const KIB: u64 = 1 << 10;
    let mut bench = Bench::new(stitches());
    let _first = bench.allocate(2 * MIB - 100 * KIB, 0);
    let at_an_end = bench.allocate(100 * KIB, 0);
    let _second = bench.allocate(2 * MIB - 76 * KIB, 0);
    let across = bench.allocate(100 * KIB, 0);
    let _third = bench.allocate(2 * MIB - 24 * KIB, 0);
    bench.free(at_an_end, 0);
    bench.allocate(80 * KIB, 0);
    bench.free(across, 0);
    bench.allocate(66 * KIB, 0);
    bench.limits.hard = Some(bench.stats.taken);
    // The free bytes are 20 KiB at the end of one chunk, 10 KiB at the end of another, and 24 KiB
    // at the beginning of the next chunk.
    let cached = bench.policy.cached(None, &bench.order);
    assert_eq!((cached.bytes, cached.largest, cached.stitchable), (54 * KIB, 34 * KIB, 44 * KIB));
    assert!(bench.forecast(44 * KIB).is_cached);
    let small = bench.allocate(44 * KIB, 0);
    assert_eq!(bench.model.physical(small.address, small.bytes).unwrap().len(), 2);
    bench.free(small, 0);
    let changes = bench.model.changes;
    assert_eq!(bench.allocate(40 * KIB, 0).address, small.address);
    assert_eq!(bench.model.changes, changes, "it is mapped already");
}

/// Frees `freed` bytes, 3 or 4 MiB, on a capturing stream. Other streams cannot wait for this free.
/// They can use only the rest of the last chunk. Returns the size of that rest.
fn beside_a_capture(freed: u64, slack: u64) -> (Bench, u64) {
    let mut bench = Bench::new(Tuning { slack, ..stitches() });
    bench.model.capturing = Some(2);
    let block = bench.allocate(freed, 2);
    bench.free(block, 2);
    (bench, round_up(freed, LEAST) - freed)
}

/// The heap grows next to a block freed in a capture. Other streams can use the new memory.
#[test]
fn growth_near_capture_takes_missing_bytes() {
    for freed in [3 * MIB, 4 * MIB] {
        for (bytes, slack) in [(1000, 0), (100_000, 40), (128 * MIB + 1, 0), (128 * MIB + 1, 40)] {
            let (mut bench, left) = beside_a_capture(freed, slack);
            let before = bench.stats.taken;
            let missing = |bytes: u64| round_up(bytes.saturating_sub(left), LEAST);
            bench.allocate(bytes, 0);
            let taken = bench.stats.taken - before;
            assert_eq!(taken, missing(bytes), "{bytes} beside {freed}");
            bench.policy.primary.check();
            bench.allocate(bytes, 0);
            let taken = bench.stats.taken - before;
            assert_eq!(taken, missing(2 * bytes), "twice {bytes} beside {freed}");
        }
    }
}

#[test]
fn growth_near_capture_is_usable() {
    let (mut bench, left) = beside_a_capture(3 * MIB, 0);
    let request = Request { bytes: 4 * MIB + left, stream: bench.streams[0] };
    let before = bench.stats.taken;
    let grown = bench.act(|policy, env| {
        let address = policy.grow_at_primary(request, Bound::None, env).unwrap().unwrap();
        policy.take_at_primary(address, request, env).unwrap()
    });
    assert!(grown.is_some());
    assert_eq!(bench.stats.taken - before, 4 * MIB);
}

/// New memory between two blocks freed in one capture is still usable by other streams.
#[test]
fn growth_between_capture_frees_is_used() {
    for bytes in [1000, 100_000, LEAST] {
        let mut bench = Bench::new(stitches());
        let [first, between, last] = [(); 3].map(|()| bench.allocate(LEAST, 2));
        bench.free(between, 2);
        bench.complete_all();
        assert_eq!(bench.release(), LEAST);
        bench.model.capturing = Some(2);
        bench.free(first, 2);
        bench.free(last, 2);
        bench.limits.hard = Some(3 * LEAST);
        bench.allocate(bytes, 0);
        assert_eq!(bench.stats.taken, 3 * LEAST, "{bytes}");
    }
}

#[test]
fn neighbours_of_two_streams_serve_request() {
    let mut bench = Bench::new(stitches());
    let small: Vec<BlockRef> = (0..SMALL_RUN / SMALL).map(|_| bench.allocate(SMALL, 0)).collect();
    bench.limits.hard = Some(bench.stats.taken);
    bench.model.work(bench.streams[1]);
    bench.free(small[10], 0);
    bench.free(small[11], 1);
    assert!(bench.forecast(2 * SMALL).is_cached);
    assert_eq!(bench.allocate(2 * SMALL, 2).address, small[10].address);
}

#[test]
fn release_at_small_block_frees_chunk() {
    let mut bench = Bench::new(stitches());
    let small: Vec<BlockRef> = (0..=SMALL_RUN / SMALL).map(|_| bench.allocate(SMALL, 0)).collect();
    for block in &small[..small.len() - 1] {
        bench.free(*block, 0);
    }
    bench.complete_all();
    let live = small[small.len() - 1].address;
    for (address, back) in [(live, 0), (small[0].address, SMALL_RUN)] {
        let released = bench.act(|policy, env| policy.release_at(address, env)).unwrap();
        assert_eq!(released, back);
    }
}

/// Makes two small runs of 2 MiB with one live small block in each. A free large block and a live
/// large block follow.
fn with_small_ones_left() -> (Bench, [BlockRef; 2]) {
    let mut bench = Bench::new(stitches());
    bench.allocate(70_000, 0);
    let small: Vec<BlockRef> =
        (0..2 * SMALL_RUN / SMALL).map(|_| bench.allocate(SMALL, 0)).collect();
    let large = bench.allocate(3 * MIB, 0);
    bench.allocate(70_000, 0);
    let kept = [small[0], small[small.len() / 2]];
    for block in small.iter().filter(|block| !kept.iter().any(|kept| kept.key == block.key)) {
        bench.free(*block, 0);
    }
    bench.free(large, 0);
    bench.limits.hard = Some(bench.stats.taken);
    (bench, kept)
}

#[test]
fn large_request_uses_small_runs_last() {
    let (mut bench, _) = with_small_ones_left();
    let cached = bench.policy.cached(None, &bench.order);
    assert!(bench.forecast(cached.largest_request()).is_cached);
    let taken = bench.stats.taken;
    let large = bench.allocate(cached.largest_request(), 0);
    assert!(large.bytes > 6 * MIB, "{large:?} and 3 MiB were for large ones");
    assert_eq!(bench.stats.taken, taken);
    bench.policy.primary.check();
    // Once the large block is freed, small requests need no new memory.
    bench.free(large, 0);
    let small: Vec<BlockRef> = (0..40).map(|_| bench.allocate(SMALL, 0)).collect();
    assert_eq!((small.len(), bench.stats.taken), (40, taken));
}

#[test]
fn release_frees_chunks_of_both_classes() {
    let (mut bench, kept) = with_small_ones_left();
    bench.complete_all();
    bench.release();
    let live: Vec<Segment> = bench.policy.live();
    for (primary, piece) in bench.policy.memory.all() {
        let used = |one: &Segment| {
            one.address < primary + piece.bytes && primary < one.address + one.bytes
        };
        assert!(live.iter().any(used), "a chunk of which nothing is used was kept");
    }
    bench.policy.primary.check();
    for block in kept {
        bench.free(block, 0);
    }
}

/// Replays a training loop's sizes: layers forward, and backward in reverse order.
fn step(bench: &mut Bench, sizes: &[u64]) {
    let forward: Vec<_> = sizes.iter().map(|bytes| bench.allocate(*bytes, 0)).collect();
    for (at, grant) in forward.into_iter().enumerate().rev() {
        let gradient = bench.allocate(sizes[at] * 3 / 2 + 4096, 0);
        bench.free(grant, 0);
        let other = bench.allocate(sizes[sizes.len() - 1 - at] / 3, 0);
        bench.free(gradient, 0);
        bench.free(other, 0);
    }
}

#[test]
fn repeated_loop_makes_no_driver_call() {
    let mut bench = Bench::new(stitches());
    let sizes: Vec<u64> =
        (0..fewer(60) as u64).map(|at| 100_000 + at * at * 7919 % (23 * MIB)).collect();
    step(&mut bench, &sizes);
    step(&mut bench, &sizes);
    let (changes, calls) = (bench.model.changes, bench.model.calls());
    for _ in 0..3 {
        step(&mut bench, &sizes);
    }
    assert_eq!(bench.model.changes, changes);
    assert_eq!(bench.model.calls(), calls, "one stream is never asked how far it is");
}

#[test]
#[cfg_attr(miri, ignore = "the bound is reached after thousands of steps")]
fn random_sizes_keep_mappings_bounded() {
    let mut bench = Bench::new(Tuning { follows: false, maps: 2, ..stitches() });
    let mut random = Random(12345);
    let mut next = |below: u64| random.below(below);
    let mut live = Vec::new();
    let mut most = 0;
    for _ in 0..6000 {
        if live.len() < 40 || next(2) == 0 && live.len() < 60 {
            live.push(bench.allocate(next(30 * MIB) + 70_000, next(3) as usize));
        } else {
            let block = live.swap_remove(next(live.len() as u64) as usize);
            bench.free(block, next(3) as usize);
            bench.model.all_known();
        }
        most = most.max(bench.policy.ranges.maps());
    }
    let chunks = bench.policy.memory.count();
    assert!(most > 2 * chunks, "the test reaches the bound: {most} of {chunks}");
    // Old ranges are unmapped, and no more memory is taken.
    let (peak, taken) = (bench.stats.live_peak, bench.policy.memory.bytes());
    assert!(taken <= peak + peak / 8, "{taken} bytes taken for {peak}");
    // The last range may exceed the bound.
    assert!(most <= 3 * chunks, "{most} mappings of {chunks} chunks");
    assert_eq!(bench.model.mappings(), chunks + bench.policy.ranges.maps());
    for block in live {
        bench.free(block, 0);
    }
    bench.model.all_known();
    let (order, model) = (&mut bench.order, &mut bench.model);
    order.poll(model).unwrap();
    bench.release();
    assert_eq!((bench.stats.taken, bench.model.mappings(), bench.model.addresses()), (0, 0, 0));
}

#[test]
fn pending_range_stays_mapped() {
    let mut bench = Bench::new(stitches());
    let blocks: Vec<_> = (0..8).map(|_| bench.allocate(8 * MIB, 0)).collect();
    for block in blocks.iter().step_by(2) {
        bench.free(*block, 0);
    }
    let large = bench.allocate(32 * MIB, 1);
    bench.free(large, 1);
    for block in blocks.iter().skip(1).step_by(2) {
        bench.free(*block, 0);
    }
    // Without a poll, no free is known to be completed.
    assert_eq!(bench.release(), 0);
    // Completes the work of stream 0. Work of stream 1 on the stitched range stays pending.
    bench.model.complete(0);
    bench.order.poll(&mut bench.model).unwrap();
    let released = bench.release();
    assert!(released <= 32 * MIB, "{released}");
    bench.model.complete(1);
    bench.order.poll(&mut bench.model).unwrap();
    bench.release();
    assert_eq!(bench.stats.taken, 0);
}

#[test]
fn release_stops_at_its_target() {
    let mut bench = Bench::new(stitches());
    let block = bench.allocate(64 * MIB, 0);
    bench.free(block, 0);
    bench.complete_all();
    let released = bench.act(|policy, env| policy.release(3 * MIB, env)).unwrap();
    assert_eq!(released, 4 * MIB);
    let forecast = bench.forecast(100 * MIB);
    assert_eq!((forecast.is_cached, forecast.take), (false, 100 * MIB));
    assert_eq!(forecast.spare.iter().map(|segment| segment.bytes).sum::<u64>(), 60 * MIB);
    assert!(bench.forecast(60 * MIB).is_cached);
    // New memory fills the hole that the released chunks left.
    let block = bench.allocate(64 * MIB, 0);
    assert_eq!(bench.stats.taken, 64 * MIB);
    let around = bench.act(|policy, env| policy.release_at(block.address, env)).unwrap();
    assert_eq!(around, 0, "it is live");
    bench.free(block, 0);
    bench.complete_all();
    let around = bench.act(|policy, env| policy.release_at(block.address, env)).unwrap();
    assert_eq!((around, bench.stats.taken), (64 * MIB, 0));
}

#[test]
fn pending_start_keeps_range_mapped() {
    let mut bench = Bench::new(stitches());
    let blocks: Vec<_> = (0..8).map(|_| bench.allocate(8 * MIB, 0)).collect();
    for block in blocks.iter().step_by(2) {
        bench.free(*block, 0);
    }
    let whole = bench.allocate(32 * MIB, 0);
    bench.free(whole, 0);
    let first = bench.allocate(20 * MIB, 1);
    assert_eq!(first.address, whole.address);
    bench.free(first, 1);
    bench.model.complete(0);
    bench.order.poll(&mut bench.model).unwrap();
    // Stream 1 still uses the first 20 MiB of the range. The last 12 MiB are out of use, but the
    // range maps them too. The model would fail if the range were unmapped.
    assert_eq!(bench.release(), 0);
    bench.model.complete(1);
    bench.order.poll(&mut bench.model).unwrap();
    assert_eq!(bench.release(), 32 * MIB);
}

#[test]
fn remainder_merges_with_other_streams_block() {
    let mut bench = Bench::new(stitches());
    let [first, second, _third] = [8, 8, 8].map(|size| bench.allocate(size * MIB, 0));
    bench.free(first, 0);
    bench.free(second, 1);
    // The request takes most of the first block. The rest becomes a separate block.
    let part = bench.allocate(6 * MIB, 0);
    assert_eq!(part.address, first.address);
    bench.complete_all();
    bench.policy.primary.check();
    let calls = bench.model.changes;
    let both = bench.allocate(10 * MIB, 2);
    assert_eq!((both.address, bench.model.changes), (first.address + 6 * MIB, calls));
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of blocks or streams take an interpreter minutes")]
fn run_of_many_streams_starts_once() {
    let mut bench = Bench::new(Tuning { follows: false, allows_waste: false, ..Tuning::default() });
    let blocks: Vec<_> = (0..400).map(|_| bench.allocate(128 << 10, 0)).collect();
    for (at, block) in blocks.iter().enumerate() {
        // The blocks before and after number 200 form two free runs. Two streams free them in turn.
        if at != 200 {
            bench.free(*block, at % 2);
        }
    }
    assert_eq!(bench.policy.primary.run_starts_with_boundaries().count(), 2);
    let both = bench.allocate(199 * (128 << 10), 2);
    assert_eq!(both.address, blocks[201].address, "the shorter one that fits");
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of blocks or streams take an interpreter minutes")]
fn one_stream_keeps_mappings_bounded() {
    let mut bench = Bench::new(Tuning { follows: false, maps: 1, ..stitches() });
    bench.model.immediate = true;
    let mut random = Random(12345);
    let mut next = |below: u64| random.below(below);
    let mut live = Vec::new();
    for _ in 0..40_000 {
        if live.len() < 40 || next(2) == 0 && live.len() < 60 {
            live.push(bench.allocate(next(30 * MIB) + 70_000, 0));
        } else {
            let block = live.swap_remove(next(live.len() as u64) as usize);
            bench.free(block, 0);
        }
        let (maps, chunks) = (bench.policy.ranges.maps(), bench.policy.memory.count());
        // The last range may exceed the bound.
        assert!(maps <= 3 * chunks.max(32), "{maps} mappings of {chunks} chunks");
    }
    let (mapped, chunks) = (bench.policy.ranges.mapped(), bench.policy.memory.count() as u64);
    assert!(mapped > 3 * chunks.max(32), "the test reaches the bound: {mapped} of {chunks}");
}

/// Ranges used by work that never ends stay mapped. Above a bound on mappings, requests take new
/// memory instead of more mappings, until the device has none left.
#[test]
#[cfg_attr(miri, ignore = "hundreds of blocks or streams take an interpreter minutes")]
fn pending_mappings_stay_bounded_with_memory() {
    let mut bench = Bench::new(Tuning { follows: false, maps: 1, ..stitches() });
    let blocks: Vec<_> = (0..400).map(|_| bench.allocate(2 * MIB, 0)).collect();
    for block in blocks.iter().step_by(2) {
        bench.free(*block, 0);
    }
    let most = bench.policy.memory.count();
    for bytes in 2..200 {
        let grant = bench.allocate(bytes * 2 * MIB, 1);
        bench.free(grant, 1);
    }
    let (maps, most) = (bench.policy.ranges.maps(), 2 * most.max(bench.policy.memory.count()));
    assert!(maps <= most + 200, "{maps} mappings, not {most}");
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of blocks or streams take an interpreter minutes")]
fn request_polls_few_of_many_streams() {
    const STREAMS: usize = 500;
    let mut bench = Bench::with_streams(STREAMS as u64, Tuning::default());
    let blocks: Vec<_> = (0..STREAMS).map(|stream| bench.allocate(128 << 10, stream)).collect();
    for (stream, block) in blocks.into_iter().enumerate() {
        bench.free(block, stream);
    }
    for stream in 0..20 {
        let (calls, taken) = (bench.model.calls(), bench.stats.taken);
        // The free blocks that fit were freed on another stream, and none of these frees is
        // completed.
        let block = bench.allocate(128 << 10, stream + 20);
        bench.free(block, stream + 20);
        let block = bench.allocate(128 << 10, stream);
        assert_eq!(bench.stats.taken, taken);
        let calls = bench.model.calls() - calls;
        assert!(calls < 200, "{calls} calls");
        bench.free(block, stream);
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of blocks or streams take an interpreter minutes")]
fn released_small_runs_are_forgotten() {
    let mut bench = Bench::new(Tuning::default());
    for round in 0..2 {
        let blocks: Vec<_> = (0..MOST_SMALL_RUNS as u64 * (SMALL_RUN / SMALL))
            .map(|_| bench.allocate(SMALL, 0))
            .collect();
        assert_eq!(bench.policy.small_runs.len(), MOST_SMALL_RUNS);
        let known =
            bench.policy.small_runs.iter().filter(|run| bench.policy.primary.holds_memory(**run));
        assert_eq!(known.count(), MOST_SMALL_RUNS, "round {round}");
        for block in blocks {
            bench.free(block, 0);
        }
        bench.complete_all();
        // The addresses are given back too, so the next round reserves other addresses.
        bench.release();
        assert_eq!(bench.model.addresses(), 0);
    }
}

proptest! {
    #![proptest_config(cases(100))]

    /// While a program repeats itself, freed blocks do not merge; a different request merges them.
    /// In both cases, blocks must tile their addresses.
    #[test]
    #[cfg_attr(miri, ignore = "it looks at every page of a large address range")]
    fn near_repetition_keeps_blocks_tiled(
        sizes in prop::collection::vec(1_u64..40, 6..30),
        rounds in
            prop::collection::vec((0_usize..30, 0_u64..40, any::<bool>(), any::<u64>()), 4..fewer(20)),
    ) {
        let mut bench = Bench::new(Tuning::default());
        for (at, other, is_other, bits) in rounds {
            let mut live = Vec::new();
            for (n, size) in sizes.iter().enumerate() {
                let size = if is_other && n == at % sizes.len() { other + 1 } else { *size };
                let stream = (bits >> n & 1) as usize;
                live.push(bench.allocate(size * 300_000, stream));
                if bits >> (n + 20) & 1 == 1 {
                    bench.free(live.swap_remove(n * 7 % live.len()), stream);
                }
            }
            bench.policy.primary.check();
            for block in live {
                bench.free(block, 0);
            }
            bench.policy.primary.check();
        }
    }
}
