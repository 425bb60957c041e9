//! Making, writing and reading arrays.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, MemoryKind, PoolKind};
use ndarray::{ArrayD, IxDyn, arr0, arr2};

use crate::support::{assert_all_returned, device, heap, make_heap, make_heap_and_stream};

pub(crate) const KINDS: [MemoryKind; 3] =
    [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];

#[test]
fn upload_and_download_round_trip() {
    for pool in PoolKind::ALL {
        for kind in KINDS {
            let (device, heap, stream) = make_heap_and_stream(1 << 30, Schedule::Seeded(7), pool);
            let target = heap.on(&stream).kind(kind);
            let host = ndarray::Array::from_shape_fn((3, 5), |(i, j)| (i * 10 + j) as f32);
            let mut a = target.array(&host).unwrap();
            assert_eq!(a.to_ndarray().unwrap(), host);
            a.slice_mut(1..2).unwrap().fill(7.5).unwrap();
            assert_eq!(a.slice(1..2).unwrap().to_vec().unwrap(), [7.5; 5]);
            let b = a.copy().unwrap();
            assert_eq!(b.kind(), kind);
            let zeros: DeviceArray<f64> = target.zeroed(4).unwrap();
            assert_eq!(zeros.to_vec().unwrap(), [0.0; 4]);
            drop(a);
            assert_eq!(b.slice(..1).unwrap().to_vec().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
            drop((b, zeros));
            assert_all_returned(&device, &heap, &format!("{pool} {kind}"));
        }
    }
}

#[test]
fn copies_cross_kinds_and_keep_source() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), PoolKind::Split);
    for from in KINDS {
        let source = heap.target().unwrap().kind(from).array(&[1_u16, 2, 3]).unwrap();
        assert_eq!(source.copy().unwrap().kind(), from);
        for to in KINDS {
            let target = heap.on(&device.stream().unwrap()).kind(to);
            let mut copy = source.copy_to(&target).unwrap();
            assert_eq!((copy.kind(), copy.to_vec().unwrap()), (to, vec![1, 2, 3]));
            copy.fill(9).unwrap();
            assert_eq!(source.to_vec().unwrap(), [1, 2, 3]);
        }
    }
    assert_all_returned(&device, &heap, "kinds");
}

#[test]
fn only_written_array_is_readable() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let target = heap.target().unwrap();
    let cpu = vec![1.5_f32, 2.5, 3.5];
    let a = target.uninit(3).unwrap().write_from(&cpu).unwrap();
    let b = target.uninit(3).unwrap().copy_from(&a).unwrap();
    let c = target.uninit((2, 2)).unwrap().fill(4_i64).unwrap();
    assert_eq!((b.to_vec().unwrap(), c.to_vec().unwrap()), (cpu.clone(), vec![4; 4]));

    let live = heap.usage().unwrap().live;
    let error = target.uninit::<f32, _>(4).unwrap().write_from(&cpu).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the array has 4 elements (shape [4]) and the source 3 (shape [3]); slice one of them to the \
         other's length"
    );
    assert!(target.uninit((2, 2)).unwrap().copy_from(&a).is_err());
    assert_eq!(heap.usage().unwrap().live, live, "what was not written was freed");
    // An array of equal length in another shape is accepted.
    let d = target.uninit((3, 1)).unwrap().write_from(&cpu).unwrap();
    assert_eq!(d.to_vec().unwrap(), cpu);
    let mut short = [0.0; 2];
    let error = a.read_into(&mut short).unwrap_err().to_string();
    assert!(error.contains("3 elements") && error.contains("into 2; read into"), "{error}");
    drop((a, b, c, d));
    assert_all_returned(&device, &heap, "uninit");
}

#[test]
fn arrays_accept_axes_and_host_layouts() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let target = heap.target().unwrap();
    let point = target.array(&arr0(7_u8)).unwrap();
    assert_eq!((point.ndim(), point.len(), point.to_ndarray().unwrap()), (0, 1, arr0(7)));
    let host = arr2(&[[1, 2, 3], [4, 5, 6]]);
    let transposed = target.array(&host.t()).unwrap();
    assert_eq!(transposed.to_vec().unwrap(), [1, 4, 2, 5, 3, 6]);
    assert_eq!(transposed.to_ndarray().unwrap(), host.t());
    let dynamic = ArrayD::from_shape_fn(IxDyn(&[2, 1, 2, 1, 2, 1, 2]), |at| at[0] * 2 + at[6]);
    assert_eq!(target.array(&dynamic).unwrap().to_ndarray().unwrap(), dynamic);
    let every_other = target.array(&host.slice(ndarray::s![.., ..;2])).unwrap();
    assert_eq!(every_other.to_vec().unwrap(), [1, 3, 4, 6]);
    drop((point, transposed, every_other));
    assert_all_returned(&device, &heap, "shapes");
}

#[test]
fn nothing_is_an_array_too() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::Immediate, pool);
        for kind in KINDS {
            let target = heap.target().unwrap().kind(kind);
            let mut empty = target.array::<[f64]>(&[]).unwrap();
            empty.fill(1.0).unwrap();
            empty.copy_from(&target.zeroed::<f64, _>((0, 5)).unwrap()).unwrap();
            assert_eq!((empty.to_vec().unwrap(), empty.bytes()), (vec![], 0));
            assert_eq!(empty.device_ptr(target.stream()).unwrap(), 0);
            assert!(empty.slice(..).unwrap().slice(0..0).unwrap().is_empty());
            assert!(empty.slice(0..1).is_err());
            assert_eq!(empty.reshape((7, 0)).unwrap().to_ndarray().unwrap().shape(), [7, 0]);
            assert_eq!(empty.reinterpret::<u8>().unwrap().len(), 0);
            assert_eq!(empty.copy().unwrap().release().unwrap(), 0);
            empty.free().unwrap();
            let some = target.array(&[1_u8]).unwrap();
            assert_eq!(some.slice(1..).unwrap().device_ptr(target.stream()).unwrap(), 0);
        }
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn impossible_lengths_are_errors() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = heap(&device, PoolKind::Split).target().unwrap();
    let error = target.uninit::<f32, _>(usize::MAX).unwrap_err();
    assert_eq!(
        error.to_string(),
        "an array of shape [18446744073709551615] with elements of 4 bytes is larger than any memory \
         (at most 9223372036854775807 elements and bytes); ask for fewer, and check the shape for a \
         length that wrapped below 0"
    );
    assert!(target.uninit::<f32, _>((usize::MAX, usize::MAX)).is_err());
    assert!(target.uninit::<(), _>((usize::MAX, 2)).is_err());
    assert!(target.zeroed::<u8, _>(1_usize << 63).is_err());
    // A size beyond the device's memory gives an out-of-memory error, even if a host could address
    // that size.
    let error = target.uninit::<u8, _>(1_usize << 50).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
}

#[test]
fn source_may_change_after_copy() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
    let target = heap.target().unwrap();
    let mut host = vec![1_u32; 1000];
    let a = target.array(&host).unwrap();
    host.fill(2);
    assert_eq!(a.to_vec().unwrap(), [1; 1000]);
    // The driver reads this memory later, on a stream that no other code waits for.
    let later = heap.on(&device.stream().unwrap());
    let host = target.register(vec![0_u32; 1000]).unwrap();
    let kinds = [MemoryKind::Pinned, MemoryKind::Unified];
    let sources = kinds.map(|kind| target.kind(kind).zeroed::<u32, _>(1000).unwrap());
    for mut source in sources.into_iter().chain([host]) {
        source.as_mut_slice().unwrap().fill(3);
        let b = later.array(&source.as_slice().unwrap()[..]).unwrap();
        source.as_mut_slice().unwrap().fill(4);
        assert_eq!(b.to_vec().unwrap(), [3; 1000], "{}", source.kind());
    }
    drop(a);
    assert_all_returned(&device, &heap, "sources");
}
