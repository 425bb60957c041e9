//! Tests of `adapt` with arrays that are already on a device.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Host, MemoryKind, PoolKind, SharedArray};
use ndarray::arr1;

use crate::support::{assert_all_returned, emulated, make_heap};

#[test]
fn owned_arrays_and_views_are_copied() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(4), PoolKind::Split);
    let target = heap.target().unwrap();
    let mut array = target.array(&[1, 2, 3]).unwrap();
    let pinned = target.kind(MemoryKind::Pinned);
    let copy: DeviceArray<i32> = pinned.adapt(&array).unwrap();
    let window: DeviceArray<i32> = target.adapt(&array.slice(1..).unwrap()).unwrap();
    let other: DeviceArray<i32> = target.adapt(&array.view_mut()).unwrap();
    array.fill(0).unwrap();
    assert_eq!((copy.kind(), copy.to_vec().unwrap()), (MemoryKind::Pinned, vec![1, 2, 3]));
    assert_eq!((window.to_vec().unwrap(), other.to_vec().unwrap()), (vec![2, 3], vec![1, 2, 3]));
    assert_eq!(Host.adapt(&array.slice(..1).unwrap()).unwrap(), arr1(&[0]));
    drop((array, copy, window, other));
    assert_all_returned(&device, &heap, "owned");
}

#[test]
fn shared_arrays_move_only_if_needed() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(4), PoolKind::Split);
    let target = heap.target().unwrap();
    let shared = target.array(&[1.0_f64, 2.0]).unwrap().into_shared();
    let address = |array: &SharedArray<f64>| array.device_ptr(&array.stream()).unwrap();
    let (same, also): (SharedArray<f64>, SharedArray<f64>) =
        target.adapt(&(shared.clone(), &shared)).unwrap();
    assert_eq!((address(&same), address(&also)), (address(&shared), address(&shared)));
    assert_eq!(heap.usage().unwrap().live, 16);
    let moved = target.kind(MemoryKind::Unified).adapt(&shared).unwrap();
    assert_eq!((moved.kind(), moved.to_vec().unwrap()), (MemoryKind::Unified, vec![1.0, 2.0]));
    let converted: SharedArray<f32> = target.cu(&shared).unwrap();
    assert_eq!(converted.to_vec().unwrap(), [1.0, 2.0]);
    let elsewhere = emulated(1 << 30, Schedule::OnDemand);
    let there = elsewhere.heap().unwrap().target().unwrap().adapt(&shared).unwrap();
    assert_eq!(there.device().to_string(), elsewhere.to_string());
    assert_eq!(there.to_vec().unwrap(), [1.0, 2.0]);
    shared.free_early().unwrap();
    assert!(target.adapt(&shared).unwrap_err().is_freed());
    assert!(target.cu(&shared).unwrap_err().is_freed());
    assert!(Host.adapt(&shared).unwrap_err().is_freed());
    drop((shared, same, also, moved, converted));
    assert_all_returned(&device, &heap, "shared");
}
