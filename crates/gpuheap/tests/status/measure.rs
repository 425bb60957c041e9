//! Allocations of a piece of code, and its time in memory management.

use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{Allocated, Error, MemoryKind, PoolKind, Target, allocated, time};

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
    assert_eq!((inner.bytes, inner.allocations, inner.peak), (100, 1, 100));
    assert_eq!((outer.bytes, outer.allocations, outer.peak), (200, 2, 100));
    assert_eq!(array.bytes(), 100);
}

#[test]
fn measure_skips_threads_and_failures() {
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
fn measured_body_may_exit_anyhow() {
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
    // None of these calls left the clock running or the counts wrong.
    let (array, timed) = time! { target.zeroed::<u8, _>(100).unwrap() };
    let Allocated { bytes, allocations, peak, .. } = timed.allocated;
    assert_eq!((bytes, allocations, peak), (100, 1, 100));
    drop(array);
    let (_, nothing) = time! {};
    assert_eq!(nothing.memory_management, Duration::ZERO);
}

#[test]
fn management_time_is_within_total() {
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
fn peak_covers_nested_blocks() {
    let target = target();
    let make = |bytes: usize| target.zeroed::<u8, _>(bytes).unwrap();
    let before = make(5000);
    let ((inner, after, kept), outer) = allocated! {
        drop(make(700));
        let kept = make(100);
        let (_, inner) = allocated! { drop((make(1000), make(2000))) };
        // The next block's figures include neither the peak of this block nor the bytes that it
        // left live.
        let (_, after) = allocated! { drop(make(10)) };
        (inner, after, kept)
    };
    assert_eq!((inner.peak, after.peak, outer.peak), (3000, 10, 3100));
    // Memory that is freed first makes room.
    let (more, swapped) = allocated! {
        drop(before);
        make(5100)
    };
    assert_eq!((swapped.bytes, swapped.peak), (5100, 100));
    let (_, freed) = allocated! { drop((more, kept)) };
    assert_eq!(freed, Allocated::default());
}

#[test]
fn peak_survives_early_exits() {
    let target = target();
    let make = |bytes: usize| target.zeroed::<u8, _>(bytes).unwrap();
    let (_, outer) = allocated! {
        let left = || -> Option<()> {
            let ((), _) = allocated! { drop(make(300)); None? };
            Some(())
        };
        assert_eq!(left(), None);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            allocated! { if make(900).bytes() == 900 { panic!("on purpose") } }
        }));
        assert!(panicked.is_err());
        let (_, inner) = allocated! { drop(make(50)) };
        assert_eq!((inner.bytes, inner.peak), (50, 50));
    };
    assert_eq!((outer.bytes, outer.allocations, outer.peak), (1250, 3, 900));
    let (_, none) = allocated! {};
    assert_eq!(none, Allocated::default());
}

/// Memory that another thread frees stays live for the thread that allocated it, and is never live
/// for the other.
#[test]
fn a_peak_is_of_one_thread() {
    let target = target();
    let make = |bytes: usize| target.zeroed::<u8, _>(bytes).unwrap();
    let (theirs, own) = allocated! {
        let array = make(1000);
        let theirs = std::thread::scope(|scope| {
            let work = || allocated! { drop(array); drop(make(400)) }.1;
            scope.spawn(work).join().unwrap()
        });
        drop(make(500));
        theirs
    };
    assert_eq!((theirs.bytes, theirs.peak), (400, 0));
    assert_eq!((own.bytes, own.peak), (1500, 1500));
}
