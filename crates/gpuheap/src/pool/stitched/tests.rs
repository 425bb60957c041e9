//! The parts against naive models, and what the whole promises beyond other policies.

use gpuheap_driver::CUstream;
use proptest::prelude::*;

use super::bins::Bins;
use super::blocks::{Block, Blocks};
use super::*;
use crate::heap::ledger::Ledger;
use crate::heap::limits::Limits;
use crate::source::MemorySource;
use crate::source::model::Model;

const MIB: u64 = 1 << 20;

fn free_block(bytes: u64, address: u64) -> Block {
    Block {
        address,
        bytes,
        before: NONE,
        after: NONE,
        next: NONE,
        previous: NONE,
        last: Last::OVER,
        range: NONE,
        state: State::Free,
        small: false,
        seam: false,
    }
}

proptest! {
    #[test]
    fn bins_find_a_block_that_fits_and_nearly_the_smallest(
        sizes in prop::collection::vec(prop_oneof![1_u64..300, 1_u64..90_000, Just(1 << 38)], 1..60),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        asked in prop::collection::vec(prop_oneof![1_u64..300, 1_u64..100_000], 1..20),
    ) {
        let (mut blocks, mut bins) = (Blocks::default(), Bins::default());
        let mut naive: Vec<(u64, u32)> = Vec::new();
        for (at, units) in sizes.iter().enumerate() {
            let key = blocks.insert(free_block(units * ROUNDING, at as u64));
            bins.insert(key, &mut blocks);
            naive.push((units * ROUNDING, key));
        }
        for index in removed {
            if naive.is_empty() {
                break;
            }
            let (_, key) = naive.swap_remove(index.index(naive.len()));
            bins.remove(key, &mut blocks);
        }
        let mut keys: Vec<u32> = bins.keys(&blocks).collect();
        let mut expected: Vec<u32> = naive.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(keys, expected);
        for units in asked {
            let bytes = units * ROUNDING;
            let best = naive.iter().map(|found| found.0).filter(|found| *found >= bytes).min();
            let found = bins.best(bytes, 64, &blocks, |_| true).usable;
            let found = found.map(|key| blocks[key].bytes);
            prop_assert_eq!(found.is_some(), best.is_some());
            if let (Some(found), Some(best)) = (found, best) {
                // Sizes of up to 64 KiB have bins of their own; the few that are looked at first of
                // a larger one decide.
                prop_assert!(found == best || best > SMALL && found <= best + best / 64, "{found} {best}");
            }
            // None of them usable: one is named all the same.
            let other = bins.best(bytes, 1, &blocks, |_| false);
            prop_assert!(other.usable.is_none());
            prop_assert_eq!(other.other.is_some(), best.is_some());
        }
    }

    /// Takes, puts, fills and empties at random: blocks tile their arena, free neighbours are
    /// merged or noted, and an address leads to its block.
    #[test]
    fn a_home_stays_in_order(
        actions in prop::collection::vec((0_u8..5, any::<u64>(), 1_u64..9000), 1..150),
    ) {
        let (mut model, mut order, mut home) = (Model::new(1 << 40), Order::default(), Home::default());
        model.immediate = false;
        let streams: Vec<_> = (0..3)
            .map(|n| order.stream(100 + n, CUstream(n as usize + 10), || None, &mut model))
            .collect();
        home.add_arena(1 << 40, 64 * LEAST);
        let mut live: Vec<u32> = Vec::new();
        for (what, pick, units) in actions {
            let stream = streams[(pick % 3) as usize];
            match what {
                0 => {
                    let gap = home.gaps.first().copied();
                    if let Some(gap) = gap {
                        let pages = home.blocks[gap].bytes / LEAST;
                        home.fill(gap, (1 + pick % pages) * LEAST, &order);
                    }
                }
                1 | 2 => {
                    let bytes = units * ROUNDING;
                    let small = bytes <= SMALL;
                    let found = home.find(bytes, small, 8, stream, &order);
                    if let Some(key) = found.usable.or(found.other) {
                        let address = home.blocks[key].address;
                        live.push(home.take(key, address, bytes, State::Live));
                    }
                }
                3 if !live.is_empty() => {
                    let key = live.swap_remove(pick as usize % live.len());
                    home.blocks[key].small = home.blocks[key].bytes <= SMALL;
                    let last = Last::of(order.freed(stream, &mut model), &order);
                    home.put(key, last, &order);
                }
                4 => {
                    // A range in the middle of free blocks, of several streams perhaps.
                    let address = (1 << 40) + pick % (64 * LEAST) / ROUNDING * ROUNDING;
                    let bytes = units * ROUNDING;
                    if let Some(first) = home.run_at(address, bytes) {
                        let key = home.take(first, address, bytes, State::Live);
                        prop_assert_eq!((home.blocks[key].address, home.blocks[key].bytes), (address, bytes));
                        live.push(key);
                    }
                }
                _ => {
                    model.all_known();
                    order.poll(&mut model).unwrap();
                    home.join_seams(&order);
                    home.reclaim_islands(&order);
                }
            }
            home.check(&order);
            for key in &live {
                let block = &home.blocks[*key];
                prop_assert_eq!(home.at(block.address), Some(*key));
                prop_assert_eq!(home.at(block.end() - 1), Some(*key));
            }
        }
    }
}

/// A policy over a model, with streams.
struct Bench {
    policy: Stitched,
    model: Model,
    order: Order,
    ledger: Ledger,
    stranded: Vec<Segment>,
    streams: Vec<StreamRef>,
}

impl Bench {
    fn new(tuning: Tuning) -> Bench {
        let (mut model, mut order) = (Model::new(1 << 40), Order::default());
        model.immediate = false;
        let streams = (0..3)
            .map(|n| order.stream(100 + n, CUstream(n as usize + 10), || None, &mut model))
            .collect();
        let policy = Stitched::with(tuning);
        Bench { policy, model, order, ledger: Ledger::default(), stranded: Vec::new(), streams }
    }

    fn act<R>(&mut self, work: impl FnOnce(&mut Stitched, &mut Environment<'_>) -> R) -> R {
        let mut environment = Environment {
            source: &mut self.model,
            order: &mut self.order,
            ledger: &mut self.ledger,
            limits: Limits::default(),
            stranded: &mut self.stranded,
        };
        work(&mut self.policy, &mut environment)
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> Grant {
        let stream = self.streams[stream];
        let grant = self.act(|policy, env| policy.allocate(bytes, stream, env)).unwrap();
        self.ledger.allocated(grant.bytes, grant.bytes);
        self.model.work(stream);
        self.model.uses(grant.address, grant.bytes, stream.slot());
        grant
    }

    fn free(&mut self, grant: Grant, stream: usize) {
        let stream = self.streams[stream];
        self.ledger.freed(grant.bytes, grant.bytes);
        self.act(|policy, env| policy.free(grant.key, stream, env)).unwrap();
    }

    fn release(&mut self) -> u64 {
        self.act(|policy, env| policy.release(u64::MAX, env)).unwrap()
    }
}

fn stitches() -> Tuning {
    Tuning { slack: 0, ..Tuning::default() }
}

#[test]
fn free_bytes_apart_serve_a_request_larger_than_each() {
    let mut bench = Bench::new(stitches());
    let blocks: Vec<_> = (0..8).map(|_| bench.allocate(8 * MIB, 0)).collect();
    for block in blocks.iter().step_by(2) {
        bench.free(*block, 0);
    }
    let taken = bench.ledger.taken;
    assert_eq!(bench.policy.cached(None, &bench.order).largest, 32 * MIB);
    let large = bench.allocate(32 * MIB, 0);
    assert_eq!(bench.ledger.taken, taken, "nothing more was taken");
    assert_eq!(bench.model.physical(large.address, large.bytes).unwrap().len(), 16);
    bench.free(large, 0);
    // The same again needs no driver, nor does a smaller one.
    let changes = bench.model.changes;
    for bytes in [32 * MIB, 20 * MIB] {
        let again = bench.allocate(bytes, 0);
        assert_eq!(again.address, large.address);
        bench.free(again, 0);
    }
    assert_eq!(bench.model.changes, changes);
}

#[test]
fn a_stitched_range_waits_for_the_streams_of_all_its_pages() {
    let mut bench = Bench::new(stitches());
    let blocks: Vec<_> = (0..8).map(|_| bench.allocate(8 * MIB, 0)).collect();
    for (at, block) in blocks.iter().enumerate().step_by(2) {
        // The last two by another stream, which is not done.
        bench.free(*block, usize::from(at >= 4));
    }
    let calls = bench.model.calls();
    let large = bench.allocate(32 * MIB, 2);
    assert!(bench.model.calls() > calls);
    for (slot, freed) in [(0, 2), (1, 2)] {
        let ticket = crate::heap::order::Ticket::new(slot, freed);
        assert!(bench.order.is_open(ticket, bench.streams[2]), "stream {slot}");
    }
    bench.free(large, 2);
}

/// A training loop's sizes: layers forward, and backward in the other order.
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
fn a_loop_makes_no_driver_call_from_its_second_pass_on() {
    let mut bench = Bench::new(stitches());
    let sizes: Vec<u64> = (0..60).map(|at| 100_000 + at * at * 7919 % (23 * MIB)).collect();
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
fn mappings_and_addresses_are_bounded_under_random_sizes() {
    let mut bench = Bench::new(Tuning { follows: false, maps: 2, ..stitches() });
    let mut random = 12345_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
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
    // And old ones go for it, rather than more memory being taken.
    let (peak, taken) = (bench.ledger.live_peak, bench.policy.memory.bytes());
    assert!(taken <= peak + peak / 8, "{taken} bytes taken for {peak}");
    // One range may be added at the bound.
    assert!(most <= 3 * chunks, "{most} mappings of {chunks} chunks");
    assert_eq!(bench.model.mappings(), chunks + bench.policy.ranges.maps());
    for block in live {
        bench.free(block, 0);
    }
    bench.model.all_known();
    let (order, model) = (&mut bench.order, &mut bench.model);
    order.poll(model).unwrap();
    bench.release();
    assert_eq!((bench.ledger.taken, bench.model.mappings(), bench.model.addresses()), (0, 0, 0));
}

#[test]
fn nothing_pending_is_unmapped() {
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
    // Nobody was asked, so nothing is known to be over.
    assert_eq!(bench.release(), 0);
    // The first stream is done, the one that used the stitched range is not.
    bench.model.complete(0);
    bench.order.poll(&mut bench.model).unwrap();
    let released = bench.release();
    assert!(released <= 32 * MIB, "{released}");
    bench.model.complete(1);
    bench.order.poll(&mut bench.model).unwrap();
    bench.release();
    assert_eq!(bench.ledger.taken, 0);
}

#[test]
fn only_as_much_goes_back_as_is_asked_for() {
    let mut bench = Bench::new(stitches());
    let block = bench.allocate(64 * MIB, 0);
    bench.free(block, 0);
    bench.model.all_known();
    bench.order.poll(&mut bench.model).unwrap();
    let released = bench.act(|policy, env| policy.release(3 * MIB, env)).unwrap();
    assert_eq!(released, 4 * MIB);
    let outlook = bench.policy.outlook(100 * MIB);
    assert_eq!((outlook.is_cached, outlook.take), (false, 100 * MIB));
    assert_eq!(outlook.spare.iter().map(|segment| segment.bytes).sum::<u64>(), 60 * MIB);
    assert!(bench.policy.outlook(60 * MIB).is_cached);
    // The hole is filled again.
    let block = bench.allocate(64 * MIB, 0);
    assert_eq!(bench.ledger.taken, 64 * MIB);
    let around = bench.act(|policy, env| policy.release_at(block.address, env)).unwrap();
    assert_eq!(around, 0, "it is live");
    bench.free(block, 0);
    bench.model.all_known();
    bench.order.poll(&mut bench.model).unwrap();
    let around = bench.act(|policy, env| policy.release_at(block.address, env)).unwrap();
    assert_eq!((around, bench.ledger.taken), (64 * MIB, 0));
}

#[test]
fn a_range_whose_first_pages_are_pending_is_not_unmapped_for_its_last() {
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
    // The last 12 MiB are out of use at home; the model would see the others unmapped.
    assert_eq!(bench.release(), 0);
    bench.model.complete(1);
    bench.order.poll(&mut bench.model).unwrap();
    assert_eq!(bench.release(), 32 * MIB);
}

#[test]
fn what_is_left_of_a_block_merges_with_what_another_stream_freed() {
    let mut bench = Bench::new(stitches());
    let [first, second, _third] = [8, 8, 8].map(|size| bench.allocate(size * MIB, 0));
    bench.free(first, 0);
    bench.free(second, 1);
    // Most of the first one: what is left of it is a block of its own.
    let part = bench.allocate(6 * MIB, 0);
    assert_eq!(part.address, first.address);
    bench.model.all_known();
    bench.order.poll(&mut bench.model).unwrap();
    bench.policy.home.check(&bench.order);
    let calls = bench.model.changes;
    let both = bench.allocate(10 * MIB, 2);
    assert_eq!((both.address, bench.model.changes), (first.address + 6 * MIB, calls));
}
