//! How arrays are made, used and freed.

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, MemoryKind, PoolKind};

use crate::support::{assert_all_returned, device, heap};

#[test]
fn what_goes_up_comes_down_in_every_pool_and_kind() {
    for pool in PoolKind::ALL {
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
            let device = device(1 << 30, Schedule::Seeded(7));
            let heap = heap(&device, pool);
            let stream = device.stream().unwrap();
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
fn an_array_follows_the_streams_it_is_used_on() {
    let device = device(1 << 30, Schedule::OnDemand);
    let heap = heap(&device, PoolKind::Split);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let a = heap.on(&streams[0]).filled(1 << 20, 3_u8).unwrap();
    a.device_ptr(&streams[1]).unwrap();
    assert_eq!(a.stream().id(), streams[1].id());
    let b = heap.on(&streams[1]).copy_of(&a).unwrap();
    drop(a);
    let c = heap.on(&streams[1]).filled(1 << 20, 4_u8).unwrap();
    assert_eq!((b.to_vec().unwrap(), c.to_vec().unwrap()), (vec![3; 1 << 20], vec![4; 1 << 20]));
    drop((b, c));
    assert_all_returned(&device, &heap, "streams");
}
