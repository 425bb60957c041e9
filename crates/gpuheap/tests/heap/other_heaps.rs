//! Tests of several heaps of one process on one device. A heap can use memory that another heap
//! caches. Errors count such memory separately from memory of other processes and libraries.

#[cfg(feature = "arrays")]
mod program;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{Block, Cause, Device, Fit, Heap, InTheWay, Limits, PoolKind, Stream};
use gpuheap_driver::{CUresult, CUstreamCaptureMode, check};

use crate::failing::{fail_each_call, with_failing_call};
use crate::support::{
    assert_all_returned, assert_no_findings, begin_capture, destroy_graph, device, emulated,
    end_capture, fill, fill_and_free, free_memory, heap,
};

const MIB: u64 = 1 << 20;
/// Size of a cached block. Every pool caches blocks of this size.
const PIECE: u64 = 64 * MIB;

/// Device memory that no heap holds, taken as another library would take it.
struct Foreign<'a> {
    device: &'a Device,
    address: u64,
}

impl Foreign<'_> {
    fn take(device: &Device, bytes: u64) -> Foreign<'_> {
        let mut address = 0;
        let taken = device.with_current(|driver| {
            // SAFETY: `address` is a local variable.
            unsafe { driver.cuMemAlloc_v2(&mut address, bytes as usize) }
        });
        check("cuMemAlloc_v2", taken.unwrap()).unwrap();
        Foreign { device, address }
    }

    /// Takes all memory of the device except `bytes`, which are left for the heaps.
    fn all_but(device: &Device, bytes: u64) -> Option<Foreign<'_>> {
        let rest = (free_memory(device) / PIECE * PIECE).saturating_sub(bytes);
        (rest > 0).then(|| Foreign::take(device, rest))
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        // SAFETY: `take` allocated the memory. A failing test must not fail again here.
        let _ = self.device.with_current(|driver| unsafe { driver.cuMemFree_v2(self.address) });
    }
}

/// Allocates as many blocks as fit in `bytes`. Each block has work on the stream.
fn hold(heap: &Heap, stream: &Stream, bytes: u64) -> Vec<Block> {
    let blocks = (0..bytes / PIECE).map(|_| heap.allocate(PIECE, stream).unwrap());
    blocks.inspect(|block| fill(block, 1, stream)).collect()
}

#[test]
fn request_reclaims_other_heaps_cache() {
    for sibling in PoolKind::ALL {
        for pool in PoolKind::ALL {
            let device = device(16 * PIECE, Schedule::OnDemand);
            let _rest = Foreign::all_but(&device, 16 * PIECE);
            let [one, two] = [(); 2].map(|()| device.stream().unwrap());
            // A second handle of the device. Opening an emulated device would make another device.
            let again = match std::env::var("GPUHEAP_TEST_DEVICE") {
                Ok(name) => Device::open(&name).unwrap(),
                Err(_) => device.clone(),
            };
            let (keeper, asker) = (heap(&again, sibling), heap(&device, pool));
            drop(hold(&keeper, &one, 6 * PIECE));
            let what = format!("{pool} beside {sibling}");
            let fit = asker.would_fit(13 * PIECE).unwrap();
            assert!(fit.is_yes(), "{what}: {fit}");
            let block = asker.allocate(13 * PIECE, &two);
            let block = block.unwrap_or_else(|error| panic!("{what}: {error}"));
            fill_and_free(block, 2, &two);
            // The test continues in the opposite direction.
            drop(hold(&keeper, &one, 13 * PIECE));
            assert_all_returned(&device, &keeper, &what);
            assert_all_returned(&device, &asker, &what);
        }
    }
}

#[test]
fn request_reclaims_only_needed_cache() {
    let device = emulated(1024 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    for pool in [PoolKind::Simple, PoolKind::Split, PoolKind::Stitched] {
        let keepers = [(); 2].map(|()| heap(&device, pool));
        let held = keepers.each_ref().map(|keeper| hold(keeper, &stream, 4 * PIECE));
        drop(held);
        let asker = heap(&device, pool);
        // 8 of the device's 16 pieces are free, so the request reclaims 2 of the 8 cached pieces.
        let block = asker.allocate(10 * PIECE, &stream).unwrap();
        let cached: u64 = keepers.iter().map(|keeper| keeper.usage().unwrap().cached).sum();
        assert_eq!(cached, 6 * PIECE, "{pool}");
        drop(block);
        // The heap's own limit prevents the request, so memory of other heaps does not help.
        asker.reclaim_all().unwrap();
        asker.set_limits(Limits { soft: None, hard: Some(4 * PIECE) }).unwrap();
        let live = asker.allocate(3 * PIECE, &stream).unwrap();
        let error = asker.allocate(2 * PIECE, &stream).unwrap_err();
        let evidence = error.out_of_memory().unwrap();
        let others = (evidence.other_heaps, evidence.other_heaps_cached, evidence.foreign);
        assert_eq!(
            (evidence.cause, others),
            (Cause::Limit, (6 * PIECE, 6 * PIECE, Some(0))),
            "{error}"
        );
        drop(live);
        for heap in keepers.iter().chain([&asker]) {
            assert_all_returned(&device, heap, pool.name());
        }
    }
}

#[test]
fn other_heaps_have_separate_rows() {
    let device = emulated(4096 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let (keeper, asker) = (heap(&device, PoolKind::Split), heap(&device, PoolKind::Split));
    let foreign = Foreign::take(&device, 100 * MIB);
    let live = keeper.allocate(3000 * MIB, &stream).unwrap();
    drop(hold(&keeper, &stream, 2 * PIECE));
    let (held, cached) = (3000 * MIB + 2 * PIECE, 2 * PIECE);

    let status = asker.memory_status().unwrap();
    assert_eq!((status.other_heaps, status.other_heaps_cached), (held, cached));
    assert_eq!(status.device_used, Some(status.taken + status.other_heaps + 100 * MIB));
    let line = "\nOther heaps of this process: 3.05 GiB (2.93 GiB allocated, 128 MiB cached)";
    assert!(status.to_string().contains(line), "{status}");
    assert!(
        status.to_json().contains(r#""other_heaps":3279945728,"other_heaps_cached":134217728"#)
    );

    let report = asker.flush().unwrap();
    assert_eq!((report.other_heaps, report.other_heaps_cached), (held, cached));
    assert_eq!(report.context_and_others, Some(100 * MIB));
    let line = "\n  other heaps of this process: 3.05 GiB (128 MiB cached)";
    assert!(report.to_string().contains(line), "{report}");

    let fit = asker.would_fit(2000 * MIB).unwrap();
    let Fit::No { short_by, cause, would_have_to_go, needs_all, .. } = &fit else {
        panic!("{fit}")
    };
    assert_eq!((*short_by, *cause, *needs_all), (1004 * MIB, Cause::OtherHeaps, false));
    // It is enough to free memory of the other heap. The foreign 100 MiB are too little.
    assert_eq!(would_have_to_go[..], [InTheWay::OtherHeaps(3000 * MIB)]);
    let error = asker.allocate(2000 * MIB, &stream).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    // The failed request reclaimed the other heap's cache, so only its live memory remains.
    let others = (evidence.other_heaps, evidence.other_heaps_cached);
    assert_eq!((others, evidence.foreign), ((3000 * MIB, 0), Some(100 * MIB)));
    assert_eq!((evidence.cause, evidence.short_by), (Cause::OtherHeaps, Some(1004 * MIB)));
    insta::assert_snapshot!("other_heaps", error);
    // Following the error's advice makes the request succeed.
    drop(live);
    drop(asker.allocate(2000 * MIB, &stream).unwrap());
    drop(foreign);
    assert_all_returned(&device, &keeper, "keeper");
    assert_all_returned(&device, &asker, "asker");
}

/// Only threads that use a heap take that heap's locks.
#[test]
fn other_heaps_reclaimers_do_not_run() {
    let device = emulated(512 * MIB, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let (keeper, asker) = (heap(&device, PoolKind::Split), heap(&device, PoolKind::Stitched));
    let hoard = Arc::new(Mutex::new(hold(&keeper, &stream, 4 * PIECE)));
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let _theirs = keeper.register_reclaimer(move |_| counted.fetch_add(1, Ordering::Relaxed));
    let error = asker.allocate(6 * PIECE, &stream).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let hoarded = hoard.clone();
    let _own = asker.register_reclaimer(move |_| {
        hoarded.lock().unwrap().drain(..).map(|block| block.bytes()).sum()
    });
    drop(asker.allocate(6 * PIECE, &stream).unwrap());
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert_all_returned(&device, &keeper, "keeper");
    assert_all_returned(&device, &asker, "asker");
}

#[test]
fn heap_without_handles_gives_way() {
    for pool in PoolKind::ALL {
        let device = device(16 * PIECE, Schedule::OnDemand);
        let _rest = Foreign::all_but(&device, 16 * PIECE);
        let [one, two] = [(); 2].map(|()| device.stream().unwrap());
        let (keeper, asker) = (heap(&device, pool), heap(&device, PoolKind::Split));
        let last = keeper.allocate(PIECE, &one).unwrap();
        drop(hold(&keeper, &one, 8 * PIECE));
        drop(keeper);
        let block = asker.allocate(13 * PIECE, &two);
        drop(block.unwrap_or_else(|error| panic!("{pool}: {error}")));
        drop(last);
        let report = asker.flush().unwrap();
        assert_eq!(report.other_heaps, 0, "{pool}: {report}");
        assert_all_returned(&device, &asker, pool.name());
    }
}

#[test]
fn closing_heap_survives_concurrent_reclaim() {
    let device = emulated(512 * MIB, Schedule::Seeded(7));
    let asker = heap(&device, PoolKind::Split);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = device.stream().unwrap();
            while stop.load(Ordering::Relaxed) == 0 {
                drop(asker.allocate(7 * PIECE, &stream));
                asker.reclaim_all().unwrap();
            }
        });
        let stream = device.stream().unwrap();
        for round in 0..50 {
            let pool = PoolKind::ALL[round % PoolKind::ALL.len()];
            let keeper = Heap::builder(&device).pool(pool);
            let keeper = match round % 4 {
                0 => keeper.idle_trim(Duration::from_millis(1)).build().unwrap(),
                _ => keeper.build().unwrap(),
            };
            if let Ok(block) = keeper.allocate(PIECE, &stream) {
                fill(&block, 1, &stream);
            }
            keeper.close();
            let others = asker.memory_status().unwrap().other_heaps;
            assert_eq!(others, 0, "{pool}");
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert_all_returned(&device, &asker, "asker");
}

#[test]
fn capture_is_untouched_by_other_heaps() {
    for sibling in PoolKind::ALL {
        for pool in [PoolKind::Split, PoolKind::Stitched, PoolKind::Driver] {
            let what = format!("{pool} beside {sibling}");
            let device = emulated(1024 * MIB, Schedule::OnDemand);
            let [captured, one, two] = [(); 3].map(|()| device.stream().unwrap());
            let (keeper, asker) = (heap(&device, sibling), heap(&device, pool));
            let used = asker.allocate(MIB, &captured).unwrap();
            drop(hold(&keeper, &one, 6 * PIECE));
            begin_capture(&device, captured.raw(), CUstreamCaptureMode::GLOBAL);
            fill(&used, 1, &captured);
            let fit = asker.would_fit(12 * PIECE).unwrap();
            let asked = asker.allocate(12 * PIECE, &two);
            let graph = end_capture(&device, captured.raw());
            destroy_graph(&device, graph.unwrap_or_else(|| panic!("{what}: the capture broke")));
            assert!(asked.is_ok() && fit.is_yes(), "{what}: {fit}, {asked:?}");
            drop((asked, used));
            assert_all_returned(&device, &keeper, &what);
            assert_all_returned(&device, &asker, &what);
        }
    }
}

#[test]
fn failing_call_errs_or_recovers() {
    for (pool, sibling) in [
        (PoolKind::Split, PoolKind::Stitched),
        (PoolKind::Stitched, PoolKind::Driver),
        (PoolKind::Driver, PoolKind::Split),
    ] {
        for code in [CUresult::ERROR_OUT_OF_MEMORY, CUresult::ERROR_UNKNOWN] {
            let run = |nth| {
                let device = emulated(42 * MIB, Schedule::Seeded(1));
                let emulator = device.emulator().unwrap().clone();
                let heaps = [heap(&device, sibling), heap(&device, pool)];
                let streams = [(); 2].map(|()| device.stream().unwrap());
                let steps = [(0, 20, 0), (1, 30, 1), (0, 34, 0), (1, 10, 0)];
                let fails = |(heap, mib, stream): (usize, u64, usize)| {
                    u64::from(heaps[heap].allocate(mib * MIB, &streams[stream]).is_err())
                };
                let (mut failed, got_there) = with_failing_call(&emulator, nth, code, || {
                    steps.map(fails).iter().sum::<u64>()
                });
                let what = format!("{pool} beside {sibling}, {code:?} at call {nth}");
                drop(heaps[1].allocate(30 * MIB, &streams[1]).unwrap());
                device.synchronize().unwrap();
                for heap in &heaps {
                    heap.reclaim_all().unwrap();
                    let usage = heap.usage().unwrap();
                    failed += usage.stats.failed_frees;
                    assert_eq!((usage.live, usage.reserved), (0, 0), "{what}: {usage:?}");
                }
                assert_no_findings(&device, &what);
                (failed > 0, got_there)
            };
            assert!(!run(0).0, "{pool} beside {sibling}");
            let (failed, made_good) = fail_each_call(run);
            // In some runs, the heap makes up for the failed call with other memory.
            assert!(made_good > 0, "{pool}, {code:?}: {failed} failed, {made_good} not");
            assert!(failed > 0 || code == CUresult::ERROR_OUT_OF_MEMORY, "{pool}: none failed");
        }
    }
}

#[test]
#[cfg(feature = "arrays")]
fn other_heaps_pinned_memory_gives_way() {
    use gpuheap::MemoryKind;
    use gpuheap::emu::Profile;

    let profile = Profile { pinned_limit: Some(8 * MIB), ..Profile::wsl2_rtx4060() };
    let device = Device::emulated(profile).unwrap();
    let stream = device.stream().unwrap();
    let pinned = |heap: &Heap, bytes: u64| {
        heap.on(&stream).kind(MemoryKind::Pinned).zeroed::<u8, _>(bytes as usize)
    };
    let (keeper, asker) = (heap(&device, PoolKind::Split), heap(&device, PoolKind::Split));
    drop(pinned(&keeper, 5 * MIB).unwrap());
    assert_eq!(keeper.usage_of(MemoryKind::Pinned).unwrap().cached, 6 * MIB);
    drop(pinned(&asker, 5 * MIB).unwrap());
    assert_eq!(keeper.usage_of(MemoryKind::Pinned).unwrap().cached, 0);
}

#[test]
fn heaps_before_reset_are_skipped() {
    for pool in PoolKind::ALL {
        let device = emulated(512 * MIB, Schedule::OnDemand);
        let keeper = heap(&device, pool);
        drop(hold(&keeper, &device.stream().unwrap(), 4 * PIECE));
        // SAFETY: the cached blocks have no work in flight, and only this thread uses the device.
        let device = unsafe { device.reset() }.unwrap();
        let (asker, stream) = (heap(&device, PoolKind::Split), device.stream().unwrap());
        let block = asker.allocate(7 * PIECE, &stream);
        let block = block.unwrap_or_else(|error| panic!("{pool}: {error}"));
        let error = asker.allocate(2 * PIECE, &stream).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().other_heaps, 0, "{pool}: {error}");
        assert!(keeper.memory_status().unwrap_err().is_gone());
        drop(block);
        assert_all_returned(&device, &asker, pool.name());
    }
}

/// Heaps of two devices do not affect each other.
#[test]
fn heaps_of_other_device_are_skipped() {
    let [one, two] = [(); 2].map(|()| emulated(512 * MIB, Schedule::Immediate));
    let streams = [one.stream().unwrap(), two.stream().unwrap()];
    let (keeper, asker) = (heap(&one, PoolKind::Split), heap(&two, PoolKind::Split));
    drop(hold(&keeper, &streams[0], 4 * PIECE));
    let error = asker.allocate(9 * PIECE, &streams[1]).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().other_heaps, 0);
    let live = hold(&asker, &streams[1], 8 * PIECE);
    asker.allocate(PIECE, &streams[1]).unwrap_err();
    assert_eq!(keeper.usage().unwrap().cached, 4 * PIECE);
    drop(live);
    assert_no_findings(&one, "keeper");
}
