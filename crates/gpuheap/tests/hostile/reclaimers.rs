//! Tests of reclaimers that remove themselves, use other heaps, or make requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use gpuheap::emu::Schedule;
use gpuheap::{Heap, PoolKind, Reclaimer};

use crate::support::{Bomb, device, heap};

const MIB: u64 = 1 << 20;

/// A reclaimer removes itself. The values that it captured are dropped during the request, and one
/// of them panics.
#[test]
fn reclaimer_that_lets_go_of_itself() {
    let device = device(64 << 20, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let heap = heap(&device, PoolKind::Split);
    let _held = heap.allocate(40 * MIB, &stream).unwrap();
    let own: Arc<Mutex<Option<Reclaimer>>> = Arc::default();
    let (mine, bomb) = (own.clone(), Bomb);
    let registered = heap.register_reclaimer(move |_| {
        let _ = &bomb;
        drop(mine.lock().unwrap().take());
        0
    });
    *own.lock().unwrap() = Some(registered);
    let made = catch_unwind(AssertUnwindSafe(|| heap.allocate(40 * MIB, &stream).is_err()));
    assert!(made.is_ok(), "allocate panics");
}

/// A heap that is short of memory runs its reclaimers, even if a reclaimer of another heap made the
/// request.
#[test]
fn reclaimer_of_other_heap_may_run() {
    let device = device(64 << 20, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let build = || Heap::builder(&device).without_environment().pool(PoolKind::Split);
    let [one, other] = [(); 2].map(|()| build().hard_limit(16 * MIB).build().unwrap());
    let kept = Mutex::new(Some(other.allocate(16 * MIB, &stream).unwrap()));
    let _second = other
        .register_reclaimer(move |_| kept.lock().unwrap().take().map_or(0, |block| block.bytes()));
    let said = Arc::new(Mutex::new(None));
    let (seen, inner, on) = (said.clone(), other.clone(), stream.clone());
    let _first = one.register_reclaimer(move |_| {
        *seen.lock().unwrap() = Some(inner.allocate(8 * MIB, &on).map(drop));
        0
    });
    let _all = one.allocate(16 * MIB, &stream).unwrap();
    assert!(one.allocate(8 * MIB, &stream).is_err());
    assert!(other.allocate(8 * MIB, &stream).is_ok(), "outside of the reclaimer");
    let said = said.lock().unwrap().take().unwrap();
    assert!(said.is_ok(), "in it: {}", said.unwrap_err());
}

/// The time of requests from within a reclaimer is part of the request that called the reclaimer.
#[test]
fn time_within_a_reclaimer_counts_once() {
    let device = device(64 << 20, Schedule::Immediate);
    let stream = device.stream().unwrap();
    let heap = heap(&device, PoolKind::None);
    let _held = heap.allocate(40 * MIB, &stream).unwrap();
    let (inner, on) = (heap.clone(), stream.clone());
    let _registered = heap.register_reclaimer(move |_| {
        (0..100).for_each(|_| drop(inner.allocate(MIB, &on)));
        0
    });
    let meter = heap.meter().unwrap().with_thread();
    assert!(heap.allocate(40 * MIB, &stream).is_err());
    let reading = meter.read().unwrap();
    let thread = reading.thread.unwrap();
    assert_eq!((thread.allocations, thread.allocated_bytes), (100, 100 * MIB));
    assert!(!thread.memory_management.is_zero(), "{reading}");
    assert!(thread.memory_management <= reading.elapsed, "{reading}");
}
