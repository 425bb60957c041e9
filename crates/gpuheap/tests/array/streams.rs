//! Arrays on several streams of one device.

use std::sync::Barrier;
use std::thread;

use gpuheap::emu::Schedule;
use gpuheap::{Heap, PoolKind};

use crate::support::{assert_all_returned, device, emulated, heap, make_heap};

#[test]
fn array_follows_streams_of_use() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
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

/// Making, copying, passing on and freeing arrays does not wait. With `Schedule::OnDemand`, no work
/// runs until the host waits.
#[test]
fn only_reading_waits() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let emulator = device.emulator().unwrap().clone();
    let heap = heap(&device, PoolKind::Split);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let waits = || {
        ["cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"]
            .map(|name| emulator.calls_of(name))
    };
    let before = waits();
    let a = heap.on(&streams[0]).filled(1000, 1.0_f32).unwrap();
    let b = heap.on(&streams[1]).copy_of(&a).unwrap();
    let mut c = a.copy().unwrap();
    c.copy_from(&b).unwrap();
    a.device_ptr(&streams[1]).unwrap();
    drop(a);
    b.free().unwrap();
    assert_eq!(waits(), before);
    assert_eq!(c.to_vec().unwrap(), [1.0; 1000]);
    assert_ne!(waits(), before);
    drop(c);
    assert_all_returned(&device, &heap, "waits");
}

/// A stream works on an array for a long time. Meanwhile the array is freed, and another stream
/// allocates an array and writes to it. The device has memory for two arrays only, so both streams
/// get the freed block. The first stream's result must not change.
#[test]
fn freed_memory_waits_for_its_stream() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Seeded(11));
        // The work is slow enough on a GPU for the other stream to overtake: a hundred passes over
        // 16 MiB take most of a millisecond.
        let (rounds, passes, count) =
            if device.is_emulated() { (4, 2, 512 << 10) } else { (400, 100, 4 << 20) };
        // With `none` and `driver`, the driver chooses addresses, so one stream need not get memory
        // that another freed. The driver's pools grow by 32 MiB, so the heap's limit is higher.
        let shares = !matches!(pool, PoolKind::None | PoolKind::Driver);
        let limit = if shares { 8 * count as u64 } else { 64 << 20 };
        let builder = Heap::builder(&device).without_environment().pool(pool);
        let heap = builder.hard_limit(limit).build().unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let mut shared = 0;
        for round in 0..rounds {
            let pattern = round as u32 | 0x5500_0000;
            let (slow, quick) = (&streams[round % 2], &streams[1 - round % 2]);
            let mut a = heap.on(slow).filled(count, pattern).unwrap();
            for _ in 0..passes {
                a.add_assign(1).unwrap();
            }
            let kept = (&a - passes).unwrap();
            let address = a.device_ptr(slow).unwrap();
            drop(a);
            let b = heap.on(quick).filled(count, u32::MAX).unwrap();
            shared += usize::from(b.device_ptr(quick).unwrap() == address);
            assert!(kept.to_vec().unwrap() == vec![pattern; count], "{pool}: overwritten early");
            assert!(b.to_vec().unwrap() == vec![u32::MAX; count], "{pool}: overwritten late");
        }
        assert!(shared == rounds || !shares, "{pool}: {shared} of {rounds} were the same memory");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn opposite_copies_do_not_deadlock() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(9), PoolKind::Split);
    let make = || heap.on(&device.stream().unwrap()).filled(64, 1_u32).unwrap().into_shared();
    let (a, b) = (make(), make());
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for (mut to, from) in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for _ in 0..200 {
                    to.copy_from(&from).unwrap();
                }
            });
        }
    });
    assert_eq!(a.to_vec().unwrap(), b.to_vec().unwrap());
    drop((a, b));
    assert_all_returned(&device, &heap, "both ways");
}
