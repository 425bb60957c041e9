//! Ways in which arrays end.

use std::cell::OnceCell;
use std::sync::Barrier;
use std::thread;

use gpuheap::emu::Schedule;
use gpuheap::{Heap, MemoryKind, PoolKind, Scope};

use crate::support::{assert_all_returned, device, heap, make_heap};

#[test]
fn release_reports_regained_bytes() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
        let target = heap.target().unwrap();
        let a = target.filled(32 << 20, 1_u8).unwrap();
        let regained = a.release().unwrap();
        assert!(regained >= 32 << 20, "{pool}: {regained}");
        assert_eq!(heap.usage().unwrap().reserved, 0, "{pool}");
        let held = target.filled(32 << 20, 1_u8).unwrap().into_shared();
        assert_eq!(target.zeroed::<u8, _>(0).unwrap().release().unwrap(), 0, "{pool}");
        assert_eq!(held.to_vec().unwrap()[0], 1);
        drop(held);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn freed_array_errs() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let target = heap.target().unwrap();
    let mut a = target.array(&[1_u32, 2, 3]).unwrap().into_shared();
    let other = a.clone().into_slice(1..).unwrap();
    assert!(a.free_early().unwrap());
    let line = line!() - 1;
    assert!(!a.free_early().unwrap() && !other.free_early().unwrap(), "twice is harmless");
    assert_eq!(heap.usage().unwrap().live, 0);
    assert!(a.is_freed() && other.is_freed());
    assert_eq!((a.shape(), other.shape(), a.kind()), (&[3][..], &[2][..], MemoryKind::Device));
    let said = format!(
        "the array was freed at {}:{line}; keep it until its last use, or make a copy before",
        file!()
    );
    let mut errors = vec![
        a.to_vec().unwrap_err(),
        other.to_vec().unwrap_err(),
        a.copy().unwrap_err(),
        a.device_ptr(target.stream()).unwrap_err(),
        a.view().reinterpret::<u8>().unwrap().to_vec().unwrap_err(),
        target.zeroed::<u32, _>(3).unwrap().copy_from(&a).unwrap_err(),
        a.fill(1).unwrap_err(),
        a.write_from(&[1, 2, 3]).unwrap_err(),
    ];
    let fresh = target.array(&[1_u32, 2, 3]).unwrap();
    errors.push(a.copy_from(&fresh).unwrap_err());
    for error in errors {
        assert!(error.is_freed(), "{error}");
        assert_eq!(error.to_string(), said);
    }
    drop((a, other, fresh));
    assert_all_returned(&device, &heap, "early");
}

#[test]
fn free_is_atomic_with_use() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    for _ in 0..50 {
        let a = heap.target().unwrap().filled(1000, 7_u8).unwrap().into_shared();
        let start = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..20 {
                        match a.copy().and_then(|copy| copy.to_vec()) {
                            Ok(read) => assert_eq!(read, [7; 1000]),
                            Err(error) => assert!(error.is_freed(), "{error}"),
                        }
                    }
                });
            }
            scope.spawn(|| {
                start.wait();
                a.free_early().unwrap();
                // Another array gets the memory.
                heap.target().unwrap().filled(1000, 8_u8).unwrap();
            });
        });
    }
    assert_all_returned(&device, &heap, "races");
}

#[test]
fn host_read_keeps_memory() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let mut array = None;
    let (_, report) = heap.scope(|scope| {
        let target = scope.target().unwrap().kind(MemoryKind::Pinned);
        array = Some(target.array(&[1_u32, 2, 3]).unwrap());
        // The forgotten borrow lasts as long as the array, and the array outlives the scope.
        std::mem::forget(array.as_ref().unwrap().as_slice().unwrap());
    });
    assert_eq!(report.freed, 1);
    let array = array.unwrap();
    assert!(array.is_freed() && array.as_slice().unwrap_err().is_freed());
    drop(array);
    assert_all_returned(&device, &heap, "borrows");
}

#[test]
fn borrow_outliving_scope_keeps_memory() {
    for (kind, of_thread) in
        [MemoryKind::Unified, MemoryKind::Pinned].into_iter().flat_map(|k| [(k, false), (k, true)])
    {
        let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
        let target = heap.target().unwrap().kind(kind);
        let live = || heap.usage_of(kind).unwrap().live;
        let array = OnceCell::new();
        let borrow = OnceCell::new();
        let work = |scope: &Scope| {
            let own = scope.target().unwrap().kind(kind);
            let target = if of_thread { &target } else { &own };
            let array = array.get_or_init(|| target.filled(1000, 7_u32).unwrap());
            borrow.set(array.as_slice().unwrap()).unwrap();
        };
        let (_, report) = if of_thread { heap.thread_scope(work) } else { heap.scope(work) };
        assert_eq!(report.freed, 1);
        assert!(array.get().unwrap().is_freed());
        // If the memory had been freed, this array would get the same address.
        let next = target.filled(1000, 9_u32).unwrap();
        assert_eq!(next.to_vec().unwrap(), [9; 1000]);
        assert_eq!(borrow.get().unwrap()[..], [7; 1000], "{kind}");
        assert_eq!(live(), 8000, "{kind}");
        drop(borrow);
        assert_eq!(live(), 4000, "{kind}");
        drop((array, next));
        assert_eq!(live(), 0, "{kind}");
        assert_all_returned(&device, &heap, kind.name());
    }
}

#[test]
fn array_keeps_heap_and_stream() {
    let device = device(1 << 30, Schedule::OnDemand);
    let a = {
        let heap = heap(&device, PoolKind::Split);
        heap.on(&device.stream().unwrap()).array(&[1_u8, 2, 3]).unwrap()
    };
    assert_eq!(a.to_vec().unwrap(), [1, 2, 3]);
    let heap: Heap = a.target().heap().clone();
    drop(a);
    assert_all_returned(&device, &heap, "kept alive");
}
