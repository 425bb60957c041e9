//! What a piece of code allocates, and its time in memory management.

use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{Allocated, Error, MemoryKind, PoolKind, Target, Timed, allocated, time};

use crate::support::{device, heap};

fn target() -> Target {
    heap(&device(1 << 30, Schedule::Immediate), PoolKind::Split).target().unwrap()
}

#[test]
fn every_kind_counts_and_blocks_nest() {
    let target = target();
    let ((inner, array), outer) = allocated! {
        let pinned = target.kind(MemoryKind::Pinned).zeroed::<u8, _>(100).unwrap();
        drop(pinned);
        let (array, inner) = allocated! { target.zeroed::<u16, _>(50).unwrap() };
        let (_, none) = allocated! {};
        assert_eq!(none, Allocated::default());
        (inner, array)
    };
    assert_eq!(inner, Allocated { bytes: 100, allocations: 1 });
    assert_eq!(outer, Allocated { bytes: 200, allocations: 2 });
    assert_eq!(array.bytes(), 100);
}

#[test]
fn other_threads_and_failed_requests_do_not_count() {
    let target = target();
    let (_, allocated) = allocated! {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(target.zeroed::<u8, _>(100).unwrap()));
        });
        target.zeroed::<u8, _>(1 << 50).unwrap_err();
    };
    assert_eq!(allocated, Allocated::default());
}

#[test]
fn a_body_may_be_left_by_any_way() {
    fn by_question_mark(target: &Target) -> Result<u64, Error> {
        let (_, timed) = time! { target.zeroed::<u8, _>(1 << 50)? };
        Ok(timed.allocated.bytes)
    }
    fn by_return(target: &Target) -> u64 {
        let (bytes, _) = time! {
            if target.zeroed::<u8, _>(100).is_ok() {
                return 1;
            }
            2
        };
        bytes
    }
    let target = target();
    by_question_mark(&target).unwrap_err();
    assert_eq!(by_return(&target), 1);
    loop {
        let (_, _) = time! { if target.zeroed::<u8, _>(1).is_ok() { break } };
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        time! { if target.heap().usage().is_ok() { panic!("on purpose") } }
    }));
    assert!(panicked.is_err());
    // None of these left the clock running or the counts off.
    let (array, timed) = time! { target.zeroed::<u8, _>(100).unwrap() };
    assert_eq!(timed.allocated, Allocated { bytes: 100, allocations: 1 });
    drop(array);
    let (_, nothing) = time! {};
    assert_eq!(nothing.memory_management, Duration::ZERO);
}

#[test]
fn time_in_memory_management_is_a_part_of_all_the_time() {
    let target = target();
    let ((inner, array), outer) = time! {
        let array = target.zeroed::<u8, _>(1 << 20).unwrap();
        let (_, inner) = time! { drop(target.zeroed::<u8, _>(1 << 20).unwrap()) };
        (inner, array)
    };
    for timed in [inner, outer] {
        assert!(timed.memory_management > Duration::ZERO);
        assert!(timed.memory_management <= timed.elapsed);
        assert!(timed.share() > 0.0 && timed.share() <= 1.0);
    }
    assert!(outer.memory_management >= inner.memory_management);
    assert_eq!((inner.allocated.allocations, outer.allocated.allocations), (1, 2));
    // A free alone is memory management too.
    let (_, freed) = time! { drop(array) };
    assert!(freed.memory_management > Duration::ZERO);
}

#[test]
fn the_text_leaves_out_what_is_zero() {
    let timed = |allocations, bytes, micros| Timed {
        elapsed: Duration::from_micros(1234),
        allocated: Allocated { bytes, allocations },
        memory_management: Duration::from_micros(micros),
    };
    for (timed, text) in [
        (timed(0, 0, 0), "  0.001234 seconds"),
        (timed(1, 4, 0), "  0.001234 seconds (1 GPU allocation: 4 bytes)"),
        (timed(0, 0, 617), "  0.001234 seconds (50.00% memory management)"),
        (
            timed(3, 4 << 20, 617),
            "  0.001234 seconds (3 GPU allocations: 4.000 MiB, 50.00% memory management)",
        ),
    ] {
        assert_eq!(timed.to_string(), text);
    }
}
