//! Compares the answers of `would_fit` with the results of the requests.

use gpuheap::emu::Schedule;
use gpuheap::{Block, Cause, Device, Fit, Heap, InTheWay, Limits, PoolKind, Stream};
use gpuheap_pool::testing::{Action, programs};
use proptest::prelude::*;

use crate::support::{assert_all_returned, emulated, fill, heap, make_heap};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 48 * MIB;

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        1_u64..5000,
        1_u64..(2 * MIB),
        (1_u64..40).prop_map(|units| units * MIB / 2),
        (1_u64..70).prop_map(|mib| mib * MIB),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    programs(sizes(), 3, 3, 60)
}

/// Runs a program with `would_fit` before every request. `check` receives the bytes, the answer,
/// and the error, if any.
fn run(
    device: &Device,
    heap: &Heap,
    actions: &[Action],
    check: impl Fn(u64, &Fit, Option<&gpuheap::Error>),
) {
    let streams: Vec<Stream> = (0..3).map(|_| device.stream().unwrap()).collect();
    let mut live: Vec<Block> = Vec::new();
    for action in actions {
        match *action {
            Action::Allocate { bytes, stream } => {
                let before = heap.usage().unwrap();
                let fit = heap.would_fit(bytes).unwrap();
                assert_eq!(heap.usage().unwrap().stats, before.stats, "it changes nothing");
                match heap.allocate(bytes, &streams[stream]) {
                    Ok(block) => {
                        check(bytes, &fit, None);
                        fill(&block, 1, &streams[stream]);
                        live.push(block);
                    }
                    Err(error) => check(bytes, &fit, Some(&error)),
                }
            }
            Action::Free { index, stream } if !live.is_empty() => {
                let block = live.swap_remove(index % live.len());
                if stream == 0 {
                    drop(block);
                    continue;
                }
                // `free_on` requires that the block's fills, on its own stream, are completed.
                device.synchronize().unwrap();
                block.free_on(&streams[stream]).unwrap();
            }
            _ => {}
        }
    }
    drop(live);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn would_fit_is_exact_under_limit(actions in actions()) {
        for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split] {
            let (device, heap) = make_heap(256 * MIB, Schedule::OnDemand, pool);
            heap.set_limits(Limits { soft: None, hard: Some(LIMIT) }).unwrap();
            run(&device, &heap, &actions, |bytes, fit, error| match (fit, error) {
                (Fit::Yes { .. }, None) => {}
                (Fit::No { short_by, cause, .. }, Some(error)) => {
                    let evidence = error.out_of_memory().unwrap();
                    assert_eq!((*cause, Some(*short_by)), (evidence.cause, evidence.short_by), "{pool} {bytes}: {error}");
                }
                _ => panic!("{pool}: {bytes}: {fit:?}, {error:?}"),
            });
            assert_all_returned(&device, &heap, pool.name());
        }
    }

    #[test]
    fn would_fit_counts_granules_in_use(actions in actions()) {
        for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split] {
            let device = emulated(LIMIT, Schedule::OnDemand);
            let heap = heap(&device, pool);
            run(&device, &heap, &actions, |bytes, fit, error| {
                let exact = pool == PoolKind::Split || bytes > 2 * MIB;
                assert!(
                    fit.is_yes() == error.is_none() || !exact && error.is_none(),
                    "{pool}: {bytes}: {fit:?}, {error:?}"
                );
            });
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn would_fit_names_missing_bytes() {
    let device = emulated(256 * MIB, Schedule::Immediate);
    let mine = heap(&device, PoolKind::Split);
    mine.set_limits(Limits { soft: None, hard: Some(100 * MIB) }).unwrap();
    let stream = device.stream().unwrap();
    let _live = mine.allocate(40 * MIB, &stream).unwrap();
    drop(mine.allocate(50 * MIB, &stream).unwrap());
    for (bytes, text) in [
        (0, "yes, without taking more from the driver"),
        (50 * MIB, "yes, without taking more from the driver"),
        (60 * MIB, "yes, by taking 60 MiB from the driver"),
        (
            80 * MIB,
            "no, 20 MiB short: the limit is reached; raise the limit by 20 MiB, or free \
             some of the 40 MiB that are live here",
        ),
        (
            120 * MIB,
            "no, 60 MiB short: the request is larger than the limit; raise the limit by 60 MiB",
        ),
        (300 * MIB, "no, 240 MiB short: the request is larger than the device"),
    ] {
        assert_eq!(mine.would_fit(bytes).unwrap().to_string(), text);
    }
    let other = heap(&device, PoolKind::Split);
    let _theirs = other.allocate(140 * MIB, &stream).unwrap();
    mine.set_limits(Limits::default()).unwrap();
    let fit = mine.would_fit(80 * MIB).unwrap();
    let Fit::No { short_by, cause, would_have_to_go, needs_all, .. } = &fit else {
        panic!("{fit}")
    };
    assert_eq!((*short_by, *cause, *needs_all), (4 * MIB, Cause::OtherHeaps, false));
    assert_eq!(would_have_to_go[..], [InTheWay::Live(40 * MIB), InTheWay::OtherHeaps(140 * MIB)]);
    // Both the limit and the device prevent this request.
    mine.set_limits(Limits { soft: None, hard: Some(100 * MIB) }).unwrap();
    assert_eq!(
        mine.would_fit(80 * MIB).unwrap().to_string(),
        "no, 20 MiB short: the limit is reached; raise the limit by 20 MiB, and free some of \
         the 40 MiB that are live here"
    );
}

/// Adjacent memory that two streams freed counts as one piece, because the reclaim steps wait for
/// both streams.
#[test]
fn pending_neighbours_count_together() {
    let (device, heap) = make_heap(256 * MIB, Schedule::OnDemand, PoolKind::Split);
    heap.set_limits(Limits { soft: None, hard: Some(20 * MIB) }).unwrap();
    let [one, two, three] = [(); 3].map(|()| device.stream().unwrap());
    let [left, right, _rest] = [&one, &two, &three].map(|stream| {
        let block = heap.allocate(6 * MIB, stream).unwrap();
        fill(&block, 1, stream);
        block
    });
    drop((left, right));
    assert!(matches!(heap.would_fit(12 * MIB).unwrap(), Fit::Yes { take: 0, .. }));
    assert!(!heap.would_fit(13 * MIB).unwrap().is_yes());
    heap.allocate(13 * MIB, &three).unwrap_err();
    drop(heap.allocate(12 * MIB, &three).unwrap());
}

#[test]
fn driver_pool_answer_is_close() {
    for pool in [PoolKind::Driver] {
        let device = emulated(256 * MIB, Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).hard_limit(128 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        drop(heap.allocate(64 * MIB, &stream).unwrap());
        let _live = heap.allocate(32 * MIB, &stream).unwrap();
        for bytes in [1, 32 * MIB, 96 * MIB, 97 * MIB, 128 * MIB, 129 * MIB, 300 * MIB] {
            let fit = heap.would_fit(bytes).unwrap();
            let allocated = heap.allocate(bytes, &stream);
            assert_eq!(fit.is_yes(), allocated.is_ok(), "{pool} {bytes}: {fit}");
        }
    }
}
