//! Tests of other libraries' calls. A call that runs out of memory is retried after reclaim steps.

use gpuheap::emu::Schedule;
use gpuheap::{PoolKind, RunsOut};
use gpuheap_driver::{CUdeviceptr, DriverError, check};

use crate::support::{allocate_filled, assert_all_returned, assert_no_findings, emulated, heap};

const MIB: u64 = 1 << 20;

/// An error type of another library. In these tests, it contains the number of the failed attempt.
#[derive(Debug, PartialEq)]
enum Theirs {
    NoMemory(u32),
    Other(u32),
}

impl RunsOut for Theirs {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Theirs::NoMemory(_))
    }
}

#[test]
fn retried_call_gets_cached_memory() {
    for pool in PoolKind::ALL {
        let device = emulated(64 * MIB, Schedule::OnDemand);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        drop(allocate_filled(&heap, 40 * MIB, 1, &stream));
        let take = || -> Result<CUdeviceptr, DriverError> {
            // `retry` holds no lock of the heap during this call, so the closure may use the heap.
            heap.usage().unwrap();
            let mut address = 0;
            let taken = device.with_current(|driver| {
                // SAFETY: the call writes only to the closure's own `address`.
                unsafe { driver.cuMemAlloc_v2(&mut address, 60 << 20) }
            });
            check("cuMemAlloc_v2", taken.unwrap()).map(|()| address)
        };
        let address = heap.retry(take).unwrap();
        // SAFETY: the memory was allocated above, and no work uses it.
        let freed = device.with_current(|driver| unsafe { driver.cuMemFree_v2(address) });
        check("cuMemFree_v2", freed.unwrap()).unwrap();
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn other_heap_may_retry_concurrently() {
    let device = emulated(64 * MIB, Schedule::Immediate);
    let [hoard, poor] = [(); 2].map(|()| heap(&device, PoolKind::Split));
    let stream = device.stream().unwrap();
    drop(hoard.allocate(40 * MIB, &stream).unwrap());
    drop(poor.allocate(60 * MIB, &stream).unwrap());
    poor.reclaim_all().unwrap();
    drop(hoard.allocate(40 * MIB, &stream).unwrap());
    let block = hoard.retry(|| poor.allocate(60 * MIB, &stream)).unwrap();
    let error = hoard.retry(|| poor.allocate(60 * MIB, &stream)).unwrap_err();
    assert!(error.out_of_memory().is_some());
    drop(block);
    assert_all_returned(&device, &poor, "poor");
}

#[test]
fn retry_runs_after_each_step() {
    let device = emulated(64 * MIB, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let mut calls = 0;
    let never: Result<(), Theirs> = heap.retry(|| {
        calls += 1;
        Err(Theirs::NoMemory(calls))
    });
    // The six calls are: a first call, one after each reclaim step (completed frees, frees in
    // flight, some cache, all cache), and a last call.
    assert_eq!((never, calls), (Err(Theirs::NoMemory(6)), 6));

    calls = 0;
    let other: Result<(), Theirs> = heap.retry(|| {
        calls += 1;
        Err(if calls == 3 { Theirs::Other(calls) } else { Theirs::NoMemory(calls) })
    });
    assert_eq!((other, calls), (Err(Theirs::Other(3)), 3));

    calls = 0;
    let fine: Result<u32, Theirs> = heap.retry(|| {
        calls += 1;
        Ok(calls)
    });
    assert_eq!(fine, Ok(1));
    assert_no_findings(&device, "retry");
}
