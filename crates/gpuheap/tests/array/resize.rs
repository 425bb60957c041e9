//! Arrays whose length changes.

use gpuheap::emu::Schedule;
use gpuheap::{Error, Heap, MemoryKind, PoolKind};
use ndarray::{Array2, arr2, s};
use proptest::prelude::*;

use crate::create::KINDS;
use crate::support::{assert_all_returned, device, make_heap, on_real_gpu};

#[test]
fn elements_keep_their_row_major_order() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), pool);
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let a = target.array(&arr2(&[[1_u32, 2, 3], [4, 5, 6]])).unwrap();
            let a = a.resize((3, 3), 9).unwrap();
            assert_eq!(a.to_ndarray().unwrap(), arr2(&[[1, 2, 3], [4, 5, 6], [9, 9, 9]]));
            assert_eq!((a.kind(), heap.usage_of(kind).unwrap().live), (kind, 36));
            let a = a.resize((2, 2), 0).unwrap();
            assert_eq!(a.to_ndarray().unwrap(), arr2(&[[1, 2], [3, 4]]));
            // If the length stays the same, the array keeps its memory.
            let place = a.device_ptr(target.stream()).unwrap();
            let a = a.resize(4, 0).unwrap();
            assert_eq!((a.device_ptr(target.stream()).unwrap(), a.shape()), (place, &[4][..]));
            let a = a.resize(0, 0).unwrap();
            assert_eq!((a.len(), heap.usage_of(kind).unwrap().live), (0, 0));
            let a = a.resize((1, 1, 5), 7).unwrap();
            assert_eq!(a.to_vec().unwrap(), [7; 5]);
            assert_eq!(a.resize((), 0).unwrap().to_vec().unwrap(), [7]);
        }
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn resized_registered_memory_becomes_pinned() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    let target = heap.target().unwrap();
    let a = target.register(vec![1_u8, 2, 3]).unwrap().resize(5, 4).unwrap();
    assert_eq!((a.kind(), a.to_vec().unwrap()), (MemoryKind::Pinned, vec![1, 2, 3, 4, 4]));
    drop(a);
    let a = target.array(&[(); 3]).unwrap().resize(usize::MAX / 2, ()).unwrap();
    assert_eq!((a.len(), a.bytes()), (usize::MAX / 2, 0));
    drop(a);
    assert_all_returned(&device, &heap, "kinds");
}

#[test]
fn resized_window_leaves_its_memory() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    let a = heap.target().unwrap().array(&Vec::from_iter(0..1000_u32)).unwrap();
    let a = a.into_slice(500..503).unwrap().resize(4, 9).unwrap();
    assert_eq!((a.to_vec().unwrap(), heap.usage().unwrap().live), (vec![500, 501, 502, 9], 16));
    drop(a);
    assert_all_returned(&device, &heap, "window");
}

/// A failed resize leaves the array unchanged, and the error contains the array.
#[test]
fn an_error_holds_the_array() {
    let device = device(1 << 30, Schedule::Seeded(1));
    let heap = Heap::builder(&device).hard_limit(64 << 20).build().unwrap();
    let target = heap.target().unwrap();
    let a = target.filled(40 << 20, 5_u8).unwrap();
    let error = a.resize(41 << 20, 6).unwrap_err();
    assert!(error.error().out_of_memory().is_some(), "{error}");
    let a = error.into_array();
    assert!(a.to_vec().unwrap() == vec![5; 40 << 20]);
    let error = a.resize((usize::MAX, 2), 0).unwrap_err();
    assert!(error.to_string().contains("larger than any memory"), "{error}");
    // `?` turns the error into an `Error` that does not hold the array, so the array is freed.
    let through = |error| -> Result<(), Error> { Err(error)? };
    assert!(through(error).is_err());
    assert_eq!(heap.usage().unwrap().live, 0);

    let (freed, _) = heap.scope(|scope| scope.target().unwrap().filled(3, 1_u8).unwrap());
    let error = freed.resize(4, 1).unwrap_err();
    assert!(error.error().is_freed() && error.into_array().is_freed());
    assert_all_returned(&device, &heap, "errors");
}

#[test]
fn resize_keeps_scope_and_stream() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    let other = device.stream().unwrap();
    let (resized, report) = heap.scope(|scope| {
        let a = scope.target().unwrap().filled(3, 1_u8).unwrap();
        a.device_ptr(&other).unwrap();
        let a = a.resize(100, 2).unwrap();
        assert_eq!(a.stream().id(), other.id());
        a
    });
    assert_eq!((report.freed, report.freed_bytes, resized.is_freed()), (1, 100, true));
    drop(resized);
    assert_all_returned(&device, &heap, "scope");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if on_real_gpu() { 16 } else { 64 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn resize_matches_host(
        shapes in prop::collection::vec((0_usize..40, 0_usize..40), 1..12),
        kind in 0..KINDS.len(),
    ) {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(4), PoolKind::Stitched);
        let mut array = heap.target().unwrap().kind(KINDS[kind]).zeroed::<u16, _>((0, 0)).unwrap();
        let mut host = Vec::new();
        for (nth, (rows, columns)) in shapes.into_iter().enumerate() {
            array = array.resize((rows, columns), nth as u16).unwrap();
            host.resize(rows * columns, nth as u16);
            let expected = Array2::from_shape_vec((rows, columns), host.clone()).unwrap();
            prop_assert_eq!(array.to_ndarray().unwrap(), &expected);
            prop_assert_eq!(array.copy_slice(s![..;-1, ..]).unwrap().to_ndarray().unwrap(),
                expected.slice(s![..;-1, ..]));
        }
        drop(array);
        assert_all_returned(&device, &heap, "random");
    }
}
