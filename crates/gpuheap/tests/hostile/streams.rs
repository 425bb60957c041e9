//! Tests of frees on another stream, and of events and streams that outlive their heap.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Heap, PoolKind};

const MIB: u64 = 1 << 20;

fn device(schedule: Schedule) -> Device {
    let profile = Profile::with_memory(1 << 30).without_context();
    Device::emulated_with(Options { schedule, ..Options::with_device(profile) }).unwrap()
}

/// An array is dropped while a second stream reads it. A block takes the memory, and is freed on a
/// third stream for the next array.
#[test]
fn block_freed_elsewhere_keeps_order() {
    const COUNT: usize = 4 << 20;
    for pool in PoolKind::ALL {
        let device = device(Schedule::OnDemand);
        let limit = match pool {
            PoolKind::None | PoolKind::Driver => 32 * MIB,
            _ => 8 * MIB,
        };
        let heap = Heap::builder(&device).without_environment().pool(pool).hard_limit(limit);
        let heap = heap.build().unwrap();
        let [a, b, c] = [(); 3].map(|()| device.stream().unwrap());
        let x = heap.on(&a).filled(COUNT, 7_u8).unwrap();
        let read = x.copy_to(&heap.on(&c)).unwrap();
        drop(x);
        heap.allocate(COUNT as u64, &a).unwrap().free_on(&b).unwrap();
        let after = heap.on(&b).filled(COUNT, 9_u8).unwrap();
        b.synchronize().unwrap();
        assert!(read.to_vec().unwrap().iter().all(|byte| *byte == 7), "{pool}");
        drop(after);
    }
}

/// Tests a stream of another device, an event whose stream ended, and an array whose heap has no
/// handle.
#[test]
fn events_and_streams_outlive_heap() {
    let (one, other) = (device(Schedule::OnDemand), device(Schedule::OnDemand));
    let heap = Heap::builder(&one).without_environment().build().unwrap();
    let stream = one.stream().unwrap();
    let mut array = heap.on(&stream).filled(100, 1_u8).unwrap();
    let event = stream.record().unwrap();
    let theirs = other.stream().unwrap();
    assert!(theirs.wait(&event).is_err());
    assert!(heap.allocate(MIB, &theirs).is_err());
    assert!(heap.retire(&theirs).is_err());
    let block = heap.allocate(MIB, &stream).unwrap();
    assert!(block.free_on(&theirs).is_err());
    drop((stream, other));
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    array.fill(2).unwrap();
    assert!(array.to_vec().unwrap().iter().all(|byte| *byte == 2));
    drop((heap, one));
    assert!(array.to_vec().unwrap().iter().all(|byte| *byte == 2));
}
