//! Tests of reclaim steps. Each step alone saves a request. No request fails if a step can save it.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap::emu::Schedule;
use gpuheap::{Block, PoolKind, ReclaimStep};

use crate::support::{
    allocate_filled, assert_all_returned, emulated, fill, fill_and_free, heap, make_heap,
    make_heap_and_stream,
};

const MIB: u64 = 1 << 20;

#[test]
fn frees_in_flight_are_waited_for() {
    for pool in PoolKind::ALL {
        // On this schedule, work runs only if some thread waits for it.
        let (device, heap) = make_heap(64 * MIB, Schedule::OnDemand, pool);
        let [one, two] = [(); 2].map(|()| device.stream().unwrap());
        let blocks: Vec<_> = (0..3).map(|_| heap.allocate(16 * MIB, &one).unwrap()).collect();
        blocks.iter().for_each(|block| fill(block, 1, &one));
        drop(blocks);
        let block = heap.allocate(60 * MIB, &two);
        let block = block.unwrap_or_else(|error| panic!("{pool}: {error}"));
        fill_and_free(block, 2, &two);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn request_returns_only_needed_cache() {
    let device = emulated(128 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    for (pool, left) in [
        // 112 of 128 MiB are cached. The request for 44 MiB lacks 28 MiB, and the block of 32 MiB
        // alone gives them. So 80 MiB stay cached.
        (PoolKind::Simple, 80 * MIB),
        // Before `split` takes more memory, it joins two of its segments, here of 40 and of 16 MiB,
        // into one piece.
        (PoolKind::Split, 56 * MIB),
    ] {
        let heap = heap(&device, pool);
        let blocks: Vec<_> =
            [16, 24, 32, 40].map(|mib| heap.allocate(mib * MIB, &stream).unwrap()).into();
        drop(blocks);
        assert_eq!(heap.usage().unwrap().cached, 112 * MIB);
        let block = heap.allocate(44 * MIB, &stream).unwrap();
        assert_eq!(heap.usage().unwrap().cached, left, "{pool}");
        drop(block);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn reclaimers_run_once_without_lock() {
    let device = emulated(64 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let stream = device.stream().unwrap();
    let hoard: Arc<Mutex<Vec<Block>>> = Arc::default();
    hoard.lock().unwrap().push(heap.allocate(40 * MIB, &stream).unwrap());
    let asked = Arc::new(AtomicU64::new(0));
    let useless = {
        let asked = asked.clone();
        heap.register_reclaimer(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            0
        })
    };
    let useful = {
        let (hoard, heap) = (hoard.clone(), heap.clone());
        heap.clone().register_reclaimer(move |bytes| {
            assert!(bytes >= 50 * MIB);
            // The reclaimer frees blocks of the requesting heap, and requests a block from it too.
            let blocks = std::mem::take(&mut *hoard.lock().unwrap());
            let bytes = blocks.iter().map(Block::bytes).sum();
            drop(blocks);
            assert_eq!(heap.usage().unwrap().live, 0);
            bytes
        })
    };
    let block = heap.allocate(50 * MIB, &stream).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    drop((block, useful));
    let blocks = heap.allocate(60 * MIB, &stream).unwrap();
    let error = heap.allocate(60 * MIB, &stream).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let tried: Vec<_> =
        error.out_of_memory().unwrap().tried.iter().map(|(step, _)| *step).collect();
    assert_eq!(
        tried,
        [
            ReclaimStep::Ready,
            ReclaimStep::InFlight,
            ReclaimStep::Cache,
            ReclaimStep::WholeCache,
            ReclaimStep::Reclaimers,
            ReclaimStep::Alone
        ]
    );
    drop((blocks, useless));
    let _blocks = heap.allocate(60 * MIB, &stream).unwrap();
    heap.allocate(60 * MIB, &stream).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 2, "a dropped handle is asked no more");
}

#[test]
fn driver_pool_is_trimmed_for_others() {
    // The `driver` heap keeps its bytes in the driver's pool. The device is full, so the next
    // request can be served only after the pool is trimmed.
    let (device, heap, stream) =
        make_heap_and_stream(192 * MIB, Schedule::Seeded(5), PoolKind::Driver);
    let blocks: Vec<_> = (0..5).map(|_| heap.allocate(30 * MIB, &stream).unwrap()).collect();
    drop(blocks);
    drop(allocate_filled(&heap, 190 * MIB, 1, &stream));
    assert_all_returned(&device, &heap, "driver");
}

#[test]
fn reclaim_waits_for_frees_in_flight() {
    for pool in PoolKind::ALL {
        let (device, heap, stream) = make_heap_and_stream(1 << 30, Schedule::OnDemand, pool);
        drop(allocate_filled(&heap, 64 * MIB, 1, &stream));
        heap.reclaim_all().unwrap();
        assert_eq!(heap.usage().unwrap().reserved, 0, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn reclaimer_may_allocate_and_panic() {
    let device = emulated(64 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let stream = device.stream().unwrap();
    let _bad = heap.register_reclaimer(|_| panic!("on purpose"));
    let _greedy = {
        let (heap, stream) = (heap.clone(), stream.clone());
        heap.clone().register_reclaimer(move |_| {
            heap.allocate(60 * MIB, &stream).unwrap_err();
            u64::MAX
        })
    };
    let _most = heap.register_reclaimer(|_| 1);
    let block = heap.allocate(60 * MIB, &stream).unwrap();
    let error = heap.allocate(30 * MIB, &stream).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    drop(block);
    assert_all_returned(&device, &heap, "split");
}

#[test]
fn memory_for_driver_events_is_reclaimed() {
    use gpuheap::emu::{Fault, FaultPlan};
    use gpuheap_driver::CUresult;
    let device = emulated(64 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let [one, two] = [(); 2].map(|()| device.stream().unwrap());
    drop(heap.allocate(40 * MIB, &one).unwrap());
    let fault = Fault::nth("cuEventCreate", 1, CUresult::ERROR_OUT_OF_MEMORY);
    device.emulator().unwrap().set_faults(FaultPlan::new([fault]));
    drop(heap.allocate(50 * MIB, &two).unwrap());
    assert_all_returned(&device, &heap, "split");
}
