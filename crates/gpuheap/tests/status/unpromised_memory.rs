//! Tests of `would_fit` and of the figures in errors, for memory that may not become free. It was
//! freed in a capture, the driver refused it, or only a reclaimer could free it.

use std::sync::Mutex;

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Cause, Fit, Heap, InTheWay, Limits, PoolKind};
use gpuheap_driver::CUresult;

use crate::support::{
    allocate_filled, assert_all_returned, assert_no_findings, device, emulated, heap,
    while_capturing,
};

const MIB: u64 = 1 << 20;
const CACHING: [PoolKind; 4] =
    [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];

#[test]
fn capture_frees_are_not_promised() {
    for (pool, is_sibling) in CACHING.into_iter().flat_map(|pool| [(pool, false), (pool, true)]) {
        let what = format!("{pool}, sibling {is_sibling}");
        let device = emulated(96 * MIB, Schedule::Immediate);
        let heaps = [heap(&device, pool), heap(&device, pool)];
        let (keeper, asker) = (&heaps[0], &heaps[usize::from(is_sibling)]);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let block = keeper.allocate(64 * MIB, &stream).unwrap();
        while_capturing(&stream, || {
            drop(block);
            let fit = asker.would_fit(64 * MIB).unwrap();
            let error = asker.allocate(64 * MIB, &other).unwrap_err();
            let evidence = error.out_of_memory().unwrap();
            assert_eq!(evidence.cause, Cause::Capture, "{what}: {error}");
            let Fit::No { short_by, cause, would_have_to_go, needs_all, .. } = &fit else {
                panic!("{what}: {fit}, {error}")
            };
            assert_eq!((Some(*short_by), *cause), (evidence.short_by, evidence.cause), "{what}");
            // Nothing is live, so the only memory in the way is the memory freed in the capture.
            let InTheWay::Captured(freed) = would_have_to_go[0] else { panic!("{what}: {fit}") };
            assert!(freed >= 64 * MIB && would_have_to_go.len() == 1 && !needs_all, "{fit}");
            assert!(!fit.to_string().contains("free some of"), "{what}: {fit}");
            assert!(!error.to_string().contains("other heaps of this process hold"), "{error}");
            // The capture does not affect the rest: the forecast is yes, and the request succeeds.
            assert!(asker.would_fit(16 * MIB).unwrap().is_yes(), "{what}");
            drop(asker.allocate(16 * MIB, &other).unwrap());
        });
        assert!(asker.would_fit(64 * MIB).unwrap().is_yes(), "{what}");
        drop(asker.allocate(64 * MIB, &other).unwrap());
        for heap in &heaps {
            assert_all_returned(&device, heap, &what);
        }
    }
}

/// The block is freed before its stream is captured, but the stream completes the free only after
/// the capture. During the capture, no other heap may count on this memory.
#[test]
fn driver_frees_in_capture_unpromised() {
    for pool in PoolKind::ALL {
        for is_sibling in [true, false] {
            let what = format!("{pool}, sibling {is_sibling}");
            let device = emulated(96 * MIB, Schedule::OnDemand);
            let keeper = heap(&device, PoolKind::Driver);
            let asker = if is_sibling { heap(&device, pool) } else { keeper.clone() };
            let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
            drop(allocate_filled(&keeper, 64 * MIB, 1, &stream));
            while_capturing(&stream, || {
                let fit = asker.would_fit(64 * MIB).unwrap();
                let asked = asker.allocate(64 * MIB, &other);
                if !is_sibling {
                    // The driver makes the stream wait for the other stream's free.
                    assert!(asked.is_ok() && fit.is_yes(), "{what}: {fit}, {asked:?}");
                    return;
                }
                let error = asked.unwrap_err();
                assert_eq!(error.out_of_memory().unwrap().cause, Cause::Capture, "{what}: {error}");
                let Fit::No { cause, would_have_to_go, .. } = &fit else { panic!("{what}: {fit}") };
                assert_eq!(*cause, Cause::Capture, "{what}: {fit}");
                assert_eq!(would_have_to_go[..], [InTheWay::Captured(64 * MIB)], "{what}: {fit}");
            });
            assert!(asker.would_fit(64 * MIB).unwrap().is_yes(), "{what}");
            drop(asker.allocate(64 * MIB, &other).unwrap());
            for heap in [keeper, asker] {
                assert_all_returned(&device, &heap, &what);
            }
        }
    }
}

#[test]
fn huge_hard_limit_can_be_reset() {
    for pool in PoolKind::ALL {
        for hard in [u64::MAX, u64::MAX - 1] {
            let device = emulated(256 * MIB, Schedule::Immediate);
            let heap = Heap::builder(&device).pool(pool).hard_limit(hard).build().unwrap();
            // The text of the error says whether the limit can be raised.
            let error = heap.allocate(hard, &device.stream().unwrap()).unwrap_err();
            assert!(error.out_of_memory().is_some(), "{pool}: {error}");
            assert!(!heap.would_fit(hard).unwrap().is_yes(), "{pool}");
            heap.set_limits(Limits { soft: None, hard: Some(hard) }).unwrap();
            assert_eq!(heap.limits().hard, Some(hard), "{pool}");
        }
    }
}

#[test]
fn reclaimer_keeps_live_peak_exact() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Immediate);
        let builder = Heap::builder(&device).pool(pool).without_environment();
        let heap = builder.hard_limit(72 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        let large = heap.allocate(33 * MIB, &stream).unwrap();
        let small: Vec<_> = (0..4).map(|_| heap.allocate(30 << 10, &stream).unwrap()).collect();
        let held = Mutex::new(Some((large, small)));
        let _reclaimer =
            heap.register_reclaimer(move |_| held.lock().unwrap().take().map_or(0, |_| 33 * MIB));
        drop(heap.allocate(64 * MIB, &stream).unwrap());
        assert_eq!(heap.usage().unwrap().live_peak, 64 * MIB, "{pool}");
    }
}

#[test]
fn grant_clears_recorded_refusal() {
    for pool in PoolKind::ALL {
        let device = emulated(1024 * MIB, Schedule::Immediate);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        let calls = ["cuMemAlloc_v2", "cuMemCreate", "cuMemAllocFromPoolAsync"];
        let refuse = |call| Fault::nth(call, 1, CUresult::ERROR_OUT_OF_MEMORY).onwards();
        let emulator = device.emulator().unwrap();
        emulator.set_faults(FaultPlan::new(calls.map(refuse)));
        let error = heap.allocate(800 * MIB, &stream).unwrap_err();
        emulator.set_faults(FaultPlan::default());
        assert_eq!(error.out_of_memory().unwrap().cause, Cause::Refused, "{pool}: {error}");
        assert!(matches!(heap.would_fit(800 * MIB).unwrap(), Fit::Perhaps { .. }), "{pool}");
        // A small grant does not clear the recorded refusal of 800 MiB.
        let small = heap.allocate(2 * MIB, &stream).unwrap();
        assert!(matches!(heap.would_fit(800 * MIB).unwrap(), Fit::Perhaps { .. }), "{pool}");
        let large = heap.allocate(800 * MIB, &stream).unwrap();
        for bytes in [MIB, 100 * MIB] {
            let fit = heap.would_fit(bytes).unwrap();
            assert!(fit.is_yes(), "{pool} {bytes}: {fit}");
        }
        drop((small, large));
        assert_no_findings(&device, pool.name());
    }
}
