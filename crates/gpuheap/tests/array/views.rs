//! Windows of arrays.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, PoolKind, SharedArray};
use ndarray::arr2;

use crate::support::{assert_all_returned, make_heap};

fn counted(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

#[test]
fn ranges_of_the_leading_axis() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(2), PoolKind::Split);
    let target = heap.target().unwrap();
    let mut a = target.array(&counted(12)).unwrap().into_shape((4, 3)).unwrap();
    let rows = |view: gpuheap::DeviceView<'_, u32, ndarray::Ix2>| view.to_ndarray().unwrap();
    assert_eq!(rows(a.slice(1..3).unwrap()), arr2(&[[3, 4, 5], [6, 7, 8]]));
    assert_eq!(rows(a.slice(..=0).unwrap()), arr2(&[[0, 1, 2]]));
    assert_eq!(rows(a.slice(3..).unwrap().slice(..).unwrap()), arr2(&[[9, 10, 11]]));
    assert_eq!(a.slice(4..).unwrap().shape(), [0, 3]);
    assert_eq!(a.view().into_index(2).unwrap().to_vec().unwrap(), [6, 7, 8]);
    assert_eq!(a.view().into_index(2).unwrap().into_index(1).unwrap().to_vec().unwrap(), [7]);
    a.slice_mut(1..2).unwrap().write_from(&[90, 91, 92]).unwrap();
    let last = a.slice(3..).unwrap().copy().unwrap();
    a.slice_mut(..1).unwrap().copy_from(&last).unwrap();
    assert_eq!(a.to_vec().unwrap(), [9, 10, 11, 90, 91, 92, 6, 7, 8, 9, 10, 11]);

    for (error, range) in [(a.slice(2..5), "2..5"), (a.slice(5..), "5.."), (a.slice(..=4), "..=4")]
    {
        let expected = format!(
            "the range {range} is not within the leading axis, whose length is 4; write a range \
             within 0..4"
        );
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
    assert!(a.slice(..=usize::MAX).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "what it is to refuse")]
    let reversed = a.slice(3..1).unwrap_err().to_string();
    assert_eq!(reversed, "the range 3..1 begins after its end; write the smaller bound first");
    assert!(a.view().into_index(usize::MAX).is_err());
    let beyond = a.index(4).unwrap_err().to_string();
    let expected =
        "index 4 is not within the leading axis, whose length is 4; write an index of 0 to 3";
    assert_eq!(beyond, expected);
    assert_eq!(a.index(3).unwrap().to_vec().unwrap(), [9, 10, 11]);
    a.index_mut(1).unwrap().fill(7).unwrap();
    assert_eq!(a.slice(1..2).unwrap().to_vec().unwrap(), [7, 7, 7]);
    assert!(a.slice(2..2).unwrap().index(0).is_err());
    let point = target.array(&ndarray::arr0(1_u8)).unwrap();
    let error = point.slice(..).unwrap_err().to_string();
    assert!(error.starts_with("an array with no axis cannot be sliced"), "{error}");
    drop((a, last, point));
    assert_all_returned(&device, &heap, "ranges");
}

#[test]
fn other_shapes_and_other_elements() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(5), PoolKind::Split);
    let target = heap.target().unwrap();
    let a = target.array(&counted(6)).unwrap();
    assert_eq!(a.reshape((2, 3)).unwrap().to_ndarray().unwrap(), arr2(&[[0, 1, 2], [3, 4, 5]]));
    let error = a.reshape((4, 2)).unwrap_err().to_string();
    assert_eq!(
        error,
        "an array of shape [6] has 6 elements, which the shape [4, 2] does not hold; give a shape \
         whose axes multiply to 6"
    );
    assert!(a.reshape((usize::MAX, 3)).is_err());
    let bytes = a.reinterpret::<u8>().unwrap();
    assert_eq!(
        (bytes.shape(), bytes.slice(4..8).unwrap().to_vec().unwrap()),
        (&[24][..], vec![1, 0, 0, 0])
    );
    let pairs = a.reshape((3, 2)).unwrap().into_reinterpreted::<[u32; 2]>().unwrap();
    assert_eq!((pairs.shape(), pairs.to_vec().unwrap()[1]), (&[3, 1][..], [2, 3]));
    assert_eq!(a.reinterpret::<f32>().unwrap().to_vec().unwrap()[0], 0.0);

    let odd = bytes.slice(1..9).unwrap();
    let error = odd.reinterpret::<u32>().unwrap_err().to_string();
    assert!(error.contains("1 bytes into its memory, which is no multiple of 4"), "{error}");
    let error = bytes.slice(..7).unwrap().reinterpret::<u32>().unwrap_err().to_string();
    assert_eq!(
        error,
        "an array of shape [7] of u8 cannot be read as u32: the 7 bytes of the last axis are no \
         whole number of elements of 4 bytes; give that axis a multiple of 4 bytes, by a slice or \
         another shape"
    );
    let point = target.array(&ndarray::arr0(1_u32)).unwrap();
    assert_eq!(point.reinterpret::<f32>().unwrap().ndim(), 0);
    assert!(point.reinterpret::<u8>().is_err() && a.reinterpret::<()>().is_err());
    drop((a, point));
    assert_all_returned(&device, &heap, "shapes");
}

#[test]
fn a_window_keeps_the_whole_memory() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let shared: SharedArray<u32> =
        heap.target().unwrap().array(&counted(100)).unwrap().into_shared();
    let tail = shared.clone().into_slice(98..).unwrap();
    drop(shared);
    assert_eq!((tail.to_vec().unwrap(), heap.usage().unwrap().live), (vec![98, 99], 400));
    drop(tail);
    assert_eq!(heap.usage().unwrap().live, 0);
    let owned: DeviceArray<u32> =
        heap.target().unwrap().array(&counted(10)).unwrap().into_slice(..1).unwrap();
    assert_eq!((owned.bytes(), heap.usage().unwrap().live), (4, 40));
    drop(owned);
    assert_all_returned(&device, &heap, "windows");
}

#[test]
fn overlapping_window_copy_is_refused() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(4), PoolKind::Split);
    let all = heap.target().unwrap().array(&counted(8)).unwrap().into_shared();
    let window = |range: std::ops::Range<usize>| all.clone().into_slice(range).unwrap();
    window(4..8).copy_from(&window(0..4)).unwrap();
    assert_eq!(all.to_vec().unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    window(2..5).copy_from(&window(2..5)).unwrap();
    window(3..3).copy_from(&window(2..2)).unwrap();
    let error = window(1..5).copy_from(&window(0..4)).unwrap_err().to_string();
    assert!(error.contains("4 bytes apart, and have 16; copy the source first"), "{error}");
    assert!(window(0..4).copy_from(&window(3..7)).is_err());
    assert_eq!(all.to_vec().unwrap(), [0, 1, 2, 3, 0, 1, 2, 3]);
    drop(all);
    assert_all_returned(&device, &heap, "overlaps");
}
