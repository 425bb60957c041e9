//! Answers and figures where a driver refuses once, or a reclaimer frees.

use std::sync::Mutex;

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Cause, Fit, Heap, Limits, PoolKind};
use gpuheap_driver::CUresult;

use crate::support::{assert_no_findings, device, emulated, heap};

const MIB: u64 = 1 << 20;

#[test]
fn a_hard_limit_near_the_largest_number_can_be_set_again_and_refuses() {
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
fn live_peak_is_exact_though_a_reclaimer_frees_what_this_thread_had() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Immediate);
        let builder = Heap::builder(&device).pool(pool).without_environment();
        let heap = builder.hard_limit(72 * MIB).build().unwrap();
        let stream = device.stream().unwrap();
        let large = heap.allocate(33 * MIB, &stream).unwrap();
        let small: Vec<_> = (0..4).map(|_| heap.allocate(30 << 10, &stream).unwrap()).collect();
        let held = Mutex::new(Some((large, small)));
        let _reclaimer = heap.register_reclaimer(move |_| {
            let freed = held.lock().unwrap().take().map_or(0, |_| 33 * MIB);
            freed
        });
        drop(heap.allocate(64 * MIB, &stream).unwrap());
        assert_eq!(heap.usage().unwrap().live_peak, 64 * MIB, "{pool}");
    }
}

#[test]
fn a_refusal_is_forgotten_once_the_driver_grants_as_much() {
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
        // A small one that leaves more than was ever refused says nothing of it.
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
