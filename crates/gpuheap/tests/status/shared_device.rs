//! Tests of `would_fit` while other heaps are on the device, or streams still use freed memory.

use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{Block, Fit, Heap, PoolKind, Stream};
use gpuheap_pool::testing::Random;

use crate::support::{assert_all_returned, emulated, fill, heap};

const MIB: u64 = 1 << 20;

/// Time that a fill takes on the emulated device. A query that returns "not ready" takes 100 ns.
const WORK: Duration = Duration::from_micros(1);

/// Pools that take memory from the driver directly.
const POOLS: [PoolKind; 5] =
    [PoolKind::None, PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];

/// Calls `would_fit`, then makes the request. After a yes the request must succeed, and after a no
/// it must fail. After a perhaps it may succeed or fail. Returns the answer.
fn check_request(heap: &Heap, bytes: u64, stream: &Stream) -> Fit {
    let fit = heap.would_fit(bytes).unwrap();
    let made = heap.allocate(bytes, stream);
    let agree = matches!(fit, Fit::Perhaps { .. }) || fit.is_yes() == made.is_ok();
    assert!(agree, "{heap:?}: {bytes}: {fit}; {made:?}");
    fit
}

/// A pool of the driver holds 32 MiB for a block of 2 MiB, and returns nothing while the block is
/// live. So `would_fit` must not count on the other 30 MiB.
#[test]
fn driver_step_memory_is_not_promised() {
    for pool in POOLS {
        let device = emulated(160 * MIB, Schedule::Immediate);
        let stream = device.stream().unwrap();
        let beside = heap(&device, PoolKind::Driver);
        let held = beside.allocate(2 * MIB, &stream).unwrap();
        let heap = heap(&device, pool);
        assert!(check_request(&heap, 128 * MIB, &stream).is_yes(), "{pool}");
        heap.reclaim_all().unwrap();
        // The other pools round the request up to more than the device has.
        if pool != PoolKind::Binned {
            for bytes in [130 * MIB, 150 * MIB] {
                let fit = check_request(&heap, bytes, &stream);
                assert!(matches!(fit, Fit::Perhaps { .. }), "{pool}: {fit}");
            }
            drop(held);
            assert!(check_request(&heap, 150 * MIB, &stream).is_yes(), "{pool}");
        }
        assert!(!check_request(&heap, 162 * MIB, &stream).is_yes(), "{pool}");
    }
}

/// The device counts a granule once, even if several heaps use it.
#[test]
fn heaps_sharing_granule_fit_device() {
    let device = emulated(8 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let [one, other] = [PoolKind::Simple; 2].map(|pool| heap(&device, pool));
    let theirs = one.allocate(MIB, &stream).unwrap();
    let ours = other.allocate(MIB, &stream).unwrap();
    let error = other.allocate(8 * MIB, &stream).unwrap_err();
    let error = error.out_of_memory().unwrap();
    let sum = error.reserved + error.other_heaps + error.device_free.unwrap();
    assert_eq!((sum, error.foreign), (device.total_memory(), Some(0)), "{error}");
    let status = other.memory_status().unwrap();
    let reserved = other.usage().unwrap().reserved;
    assert_eq!(status.device_used, Some(reserved + status.other_heaps), "{status}");
    // One heap frees its part of the granule. The driver keeps the granule, because the other heap
    // uses the rest of it.
    drop(theirs);
    assert!(matches!(check_request(&other, 7 * MIB, &stream), Fit::Perhaps { .. }));
    assert!(check_request(&other, 6 * MIB, &stream).is_yes());
    drop(ours);
    drop((one, other));
    // Heaps that ended occupy no granule.
    let [one, other] = [PoolKind::Simple; 2].map(|pool| heap(&device, pool));
    let _ours = other.allocate(2 * MIB, &stream).unwrap();
    let theirs = one.allocate(4 * MIB, &stream).unwrap();
    let status = other.memory_status().unwrap();
    assert_eq!(status.device_used, Some(2 * MIB + status.other_heaps), "{status}");
    drop(theirs);
    assert!(check_request(&other, 6 * MIB, &stream).is_yes());
}

/// A forecast is for the stream that can reuse the most memory. `at_most` is its bound for every
/// stream. On a stream that can reuse less, a small heap takes new memory instead of waiting.
#[test]
fn request_takes_at_most_forecast() {
    let mut rather = 0;
    for pool in [PoolKind::Simple, PoolKind::Binned, PoolKind::Split] {
        for seed in 0..40 {
            let device = emulated(1 << 30, Schedule::Lag(WORK));
            let heap = heap(&device, pool);
            let streams = [(); 3].map(|()| device.stream().unwrap());
            let mut random = Random(seed);
            let mut live: Vec<Block> = Vec::new();
            for _ in 0..30 {
                let stream = &streams[random.below(3) as usize];
                let bytes = (1 + random.below(12)) * MIB;
                let fit = heap.would_fit(bytes).unwrap();
                let Fit::Yes { take, at_most, .. } = fit else { panic!("{pool}: {fit}") };
                let meter = heap.meter().unwrap();
                let block = heap.allocate(bytes, stream).unwrap();
                let taken = meter.read().unwrap().taken;
                assert!(taken <= at_most, "{pool} {seed}: {fit}, and it took {taken}");
                rather += u64::from(taken > take);
                fill(&block, 1, stream);
                live.push(block);
                if random.below(3) > 0 {
                    drop(live.swap_remove(random.below(live.len() as u64) as usize));
                }
            }
            drop(live);
            assert_all_returned(&device, &heap, pool.name());
        }
    }
    assert!(rather > 0, "no request took more than for the best stream");
}
