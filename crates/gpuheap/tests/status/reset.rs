//! A heap whose device was reset.

use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{Heap, Limits, MemoryKind, PoolKind};

use crate::idle::{threads, wait_until};
use crate::support::{assert_no_findings, emulated, on_real_gpu};

#[test]
fn heap_returns_memory_then_errs() {
    // On a real GPU the context is shared with the tests that run at the same time.
    if on_real_gpu() {
        return;
    }
    for pool in PoolKind::ALL {
        let device = emulated(1 << 30, Schedule::Seeded(3));
        let idle = Duration::from_millis(1);
        let heap = Heap::builder(&device).pool(pool).idle_trim(idle).build().unwrap();
        let target = heap.target().unwrap();
        let stream = target.stream().clone();
        let mut arrays = Vec::new();
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
            arrays.push(target.kind(kind).filled(1000, 1_u8).unwrap());
            drop(target.kind(kind).filled(3 << 20, 1_u8).unwrap());
        }
        let block = heap.allocate(1000, &stream).unwrap();
        // SAFETY: arrays and the block are used only through checked calls after the reset.
        let device = unsafe { device.reset() }.unwrap();
        let errors = [
            heap.usage().unwrap_err(),
            heap.memory_status().unwrap_err(),
            heap.would_fit(1).unwrap_err(),
            heap.reclaim(1).unwrap_err(),
            heap.reclaim_all().unwrap_err(),
            heap.flush().unwrap_err(),
            heap.set_limits(Limits::default()).unwrap_err(),
            heap.allocate(1, &stream).unwrap_err(),
            heap.target().unwrap_err(),
            heap.retry(|| heap.usage()).unwrap_err(),
            block.free_on(&stream).unwrap_err(),
            target.zeroed::<u8, _>(1).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains("was reset"), "{pool}: {error}");
        }
        assert_eq!(heap.limits(), Limits::default());
        drop((arrays, target, heap));
        assert_eq!(device.flush().unwrap().kinds, []);
        let heap = Heap::builder(&device).pool(pool).build().unwrap();
        drop(heap.target().unwrap().filled(1000, 1_u8).unwrap());
        assert_no_findings(&device, pool.name());
    }
}

/// The trim thread would sleep for an hour, but the reset wakes it.
#[test]
fn reset_ends_idle_trim_thread() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).idle_trim(Duration::from_secs(3600)).build().unwrap();
    wait_until("no thread watches", || threads() > 0);
    // SAFETY: the heap has no block, and its trim thread stops at the reset.
    let device = unsafe { device.reset() }.unwrap();
    wait_until("the thread sleeps on", || threads() == 0);
    heap.usage().unwrap_err();
    assert_no_findings(&device, "idle");
}
