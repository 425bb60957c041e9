//! Tests of scopes. A scope's end frees the arrays that were made in it and not moved out.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use gpuheap::emu::{Profile, Schedule};
use gpuheap::{Device, DeviceArray, Heap, MemoryKind, PoolKind};

use crate::support::{assert_all_returned, device, heap, make_heap, on_real_gpu};

fn live(heap: &Heap) -> u64 {
    heap.usage().unwrap().live
}

#[test]
fn scope_frees_forgotten_reports_kept() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let mut stale = None;
    let began = line!() + 1;
    let ((kept, line), report) = heap.scope(|scope| {
        let target = scope.target().unwrap();
        drop(target.filled(1000, 1_u8).unwrap());
        std::mem::forget(target.filled(2000, 2_u8).unwrap());
        std::mem::forget(target.kind(MemoryKind::Pinned).uninit::<u8, _>(500).unwrap());
        stale = Some(target.filled(3000, 3_u8).unwrap());
        let kept = scope.keep(target.filled(4000, 4_u8).unwrap());
        let line = line!() - 1;
        drop(scope.keep(target.filled(5000, 5_u8).unwrap()));
        assert_eq!(live(&heap), 2000 + 3000 + 4000);
        (kept, line)
    });
    assert_eq!(live(&heap), 4000);
    assert_eq!((report.freed, report.freed_bytes, report.failed.len()), (3, 5500, 0));
    assert_eq!((report.began.file(), report.began.line()), (file!(), began));
    let [found] = &report.kept[..] else { panic!("{report:?}") };
    assert_eq!((found.bytes, found.kind, found.made.line()), (4000, MemoryKind::Device, line));
    assert_eq!(found.address, kept.device_ptr(&kept.stream()).unwrap());
    assert_eq!(kept.to_vec().unwrap(), [4; 4000]);
    let error = stale.as_ref().unwrap().to_vec().unwrap_err();
    assert!(error.is_freed());
    assert_eq!(
        error.to_string(),
        format!(
            "the array was freed at the end of the scope that began at {}:{began}; hand it to the \
             scope's keep to use it longer",
            file!()
        )
    );
    assert!(stale.unwrap().free().unwrap_err().is_freed());
    // A copy of a kept array belongs to no scope.
    assert_eq!(kept.copy().unwrap().to_vec().unwrap(), [4; 4000]);
    drop(kept);
    assert_all_returned(&device, &heap, "scope");
}

#[test]
fn scope_keeps_any_handle() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(5), PoolKind::Split);
    let ((owned, shared, windowed, written), report) = heap.scope(|scope| {
        let target = scope.target().unwrap();
        let make = |value: u8| target.filled(10, value).unwrap();
        let owned = make(1);
        scope.keep(&owned);
        scope.keep(&owned.view());
        let shared = make(2).into_shared();
        scope.keep(shared.clone());
        let mut windowed = make(3);
        scope.keep(windowed.view_mut()).fill(9).unwrap();
        let unwritten = scope.keep(target.uninit::<u8, _>(10).unwrap());
        // Keeping an array of another scope, or of no scope, has no effect.
        scope.keep(heap.target().unwrap().filled(7, 7_u8).unwrap().into_shared());
        (owned, shared, windowed, unwritten.fill(4).unwrap())
    });
    assert_eq!((report.freed, report.kept.len()), (0, 4), "{report}");
    for (array, value) in [(&owned, 1), (&windowed, 9), (&written, 4)] {
        assert_eq!(array.to_vec().unwrap(), [value; 10]);
    }
    assert_eq!(shared.to_vec().unwrap(), [2; 10]);
    drop((owned, shared, windowed, written));
    assert_all_returned(&device, &heap, "handles");
}

#[test]
fn cycles_are_freed() {
    struct Node {
        array: DeviceArray<f32>,
        next: RefCell<Option<Rc<Node>>>,
    }
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let (_, report) = heap.scope(|scope| {
        let array = scope.target().unwrap().filled(1 << 20, 1.0).unwrap();
        let node = Rc::new(Node { array, next: RefCell::default() });
        *node.next.borrow_mut() = Some(node.clone());
        assert_eq!(node.array.len(), 1 << 20);
    });
    assert_eq!((report.freed, report.freed_bytes, live(&heap)), (1, 4 << 20, 0));
    // The cycle is never dropped, so its array keeps the heap alive. Nevertheless, the scope's end
    // has freed the array's memory.
    device.synchronize().unwrap();
    assert!(heap.reclaim_all().unwrap() >= 4 << 20);
}

#[test]
fn a_panic_frees_and_goes_on() {
    let (_device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    for of_thread in [false, true] {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let work = |scope: &gpuheap::Scope| {
                std::mem::forget(scope.target().unwrap().filled(1000, 1_u8).unwrap());
                std::mem::forget(heap.target().unwrap().zeroed::<u8, _>(0).unwrap());
                panic!("as planned");
            };
            if of_thread { heap.thread_scope(work).1 } else { heap.scope(work).1 }
        }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "as planned");
        assert_eq!(live(&heap), 0);
    }
    // The thread is no longer in a scope.
    let after = heap.target().unwrap().filled(10, 1_u8).unwrap();
    let (_, report) = heap.thread_scope(|_| ());
    assert_eq!((report.freed, after.to_vec().unwrap()), (0, vec![1; 10]));
}

#[test]
fn thread_scope_covers_threads_arrays() {
    let device = device(1 << 30, Schedule::Seeded(2));
    let (heap, other_heap) = (heap(&device, PoolKind::Split), heap(&device, PoolKind::Split));
    let target = heap.target().unwrap();
    let other = other_heap.target().unwrap();
    let before = target.filled(10, 1_u8).unwrap();
    let (arrays, report) = heap.thread_scope(|scope| {
        let copy = before.copy().unwrap();
        let elsewhere = other.filled(10, 2_u8).unwrap();
        let of_a_thread =
            std::thread::scope(|s| s.spawn(|| target.filled(10, 3_u8).unwrap()).join().unwrap());
        let kept = scope.keep(target.filled(10, 4_u8).unwrap());
        let block = heap.allocate(100, target.stream()).unwrap();
        (copy, elsewhere, of_a_thread, kept, block)
    });
    let (copy, elsewhere, of_a_thread, kept, block) = arrays;
    assert_eq!((report.freed, report.kept.len()), (1, 1), "{report}");
    assert!(copy.is_freed());
    for (array, value) in [(&before, 1), (&elsewhere, 2), (&of_a_thread, 3), (&kept, 4)] {
        assert_eq!(array.to_vec().unwrap(), [value; 10]);
    }
    drop((before, copy, elsewhere, of_a_thread, kept, block));
    assert_all_returned(&device, &heap, "thread scope");
}

#[test]
fn innermost_scope_owns_array() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let target = heap.target().unwrap();
    let ((early, late, twice, explicit), outer) = heap.thread_scope(|outer| {
        let early = target.filled(1, 1_u8).unwrap();
        let scoped = outer.target().unwrap();
        let ((late, twice, once), inner) = heap.thread_scope(|inner| {
            let made = |n: usize| target.filled(n, 1_u8).unwrap();
            // The array belongs to the later scope, even if the target is of the earlier scope.
            let other = scoped.filled(2, 1_u8).unwrap();
            drop(inner.keep(other));
            (made(20), outer.keep(inner.keep(made(30))), inner.keep(made(40)))
        });
        assert_eq!((inner.freed, inner.freed_bytes, inner.kept.len()), (1, 20, 2), "{inner}");
        assert!(late.is_freed() && !twice.is_freed());
        // The array is leaked, so the end of `outer` frees it.
        std::mem::forget(once);
        // Unlike `thread_scope`, `scope` owns only arrays of its own target. `outer` owns the rest.
        let (explicit, inner) = heap.scope(|scope| {
            std::mem::forget(target.filled(100, 1_u8).unwrap());
            std::mem::forget(scope.target().unwrap().filled(1000, 1_u8).unwrap());
            scope.keep(scope.target().unwrap().filled(200, 1_u8).unwrap())
        });
        assert_eq!((inner.freed, inner.freed_bytes), (1, 1000), "{inner}");
        (early, late, twice, explicit)
    });
    assert_eq!((outer.freed, outer.freed_bytes), (4, 1 + 40 + 100 + 200), "{outer}");
    assert!(early.is_freed() && explicit.is_freed());
    assert_eq!(twice.to_vec().unwrap(), [1; 30]);
    drop((early, late, twice, explicit));
    assert_all_returned(&device, &heap, "nested");
}

#[test]
fn ended_scope_refuses_arrays() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let (target, _) = heap.scope(|scope| scope.target().unwrap());
    let line = line!() - 1;
    let error = target.filled(10, 1_u8).unwrap_err().to_string();
    let expected = format!("the scope that began at {}:{line} ended", file!());
    assert!(error.starts_with(&expected), "{error}");
    let (array, _) =
        heap.scope(|scope| scope.keep(scope.target().unwrap().filled(1, 1_u8).unwrap()));
    array.copy().unwrap();
    drop(array);
    assert_all_returned(&device, &heap, "ended");
}

/// Records of dropped arrays are removed from time to time, so the number of records does not grow
/// with the number of dropped arrays.
#[test]
fn long_scope_frees_right_arrays() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let (kept, report) = heap.scope(|scope| {
        let target = scope.target().unwrap();
        let mut kept = Vec::new();
        for n in 0..5000_u32 {
            let array = target.filled(4, n).unwrap();
            match n % 100 {
                0 => kept.push((n, scope.keep(array))),
                1 => std::mem::forget(array),
                2 => drop(scope.keep(array)),
                _ => drop(array),
            }
        }
        kept
    });
    assert_eq!((report.freed, report.kept.len()), (50, 50));
    for (n, array) in &kept {
        assert_eq!(array.to_vec().unwrap(), [*n; 4]);
    }
    drop(kept);
    assert_all_returned(&device, &heap, "long");
}

#[test]
fn scope_end_after_reset_errs() {
    if on_real_gpu() {
        return;
    }
    let device = Device::emulated(Profile::with_memory(1 << 30)).unwrap();
    let heap = heap(&device, PoolKind::Split);
    let (_, report) = heap.scope(|scope| {
        std::mem::forget(scope.target().unwrap().filled(10, 1_u8).unwrap());
        // SAFETY: nothing else uses the device.
        drop(unsafe { device.reset() }.unwrap());
    });
    assert_eq!((report.freed, report.failed.len()), (0, 1));
    let text = report.to_string();
    assert!(text.contains("failed to free 1") && text.contains("the device was reset"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn scope_report_fits_80_columns() {
    let (_device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let (kept, report) = heap.scope(|scope| {
        let target = scope.target().unwrap().kind(MemoryKind::Unified);
        std::mem::forget(target.filled(3 << 20, 1_u8).unwrap());
        drop(scope.target().unwrap().filled(4096, 1_u8).unwrap());
        scope.keep(target.filled(1500, 1_u8).unwrap())
    });
    let line = report.began.line();
    let text = report.to_string();
    let address = format!("{:#x}", report.kept[0].address);
    let place = format!("{}:{}", file!(), line + 4);
    let what = format!("    {address}: 1.46 KiB, unified, made at ");
    let place = match 80_usize.checked_sub(what.len() + place.len()) {
        Some(_) => place,
        None => format!("…{}", &place[what.len() + place.len() + 1 - 80..]),
    };
    assert_eq!(
        text,
        format!(
            "scope that began at {}:{line}\n  freed 1 (3 MiB), kept 1 (1.46 KiB)\n{what}{place}",
            file!()
        )
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    drop(kept);
}
