//! Tests of pinned host memory. It is pooled, ordered by streams, and safe for the host to write.

use std::time::Duration;

use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Heap, MemoryKind, PoolKind, Stream, Target};
use gpuheap_driver::check;

use crate::support::{
    assert_all_returned, assert_no_findings, make_heap, make_heap_and_stream, on_real_gpu,
};

const BYTES: usize = 1 << 20;
const POOLED: [PoolKind; 4] =
    [PoolKind::Simple, PoolKind::Binned, PoolKind::Split, PoolKind::Driver];

fn pinned(heap: &Heap, stream: &Stream) -> Target {
    heap.on(stream).kind(MemoryKind::Pinned)
}

/// Allocates a buffer without filling it, so that no work is enqueued on the stream.
fn recycled(target: &Target) -> DeviceArray<u8> {
    // SAFETY: any byte is a u8, and the tests write it before they read it.
    unsafe { target.uninit::<u8, _>(BYTES).unwrap().assume_written() }
}

#[test]
fn freed_buffer_is_reused_without_call() {
    for pool in POOLED {
        let (device, heap, stream) = make_heap_and_stream(1 << 30, Schedule::OnDemand, pool);
        let target = pinned(&heap, &stream);
        let array = target.filled(BYTES, 1_u8).unwrap();
        let address = array.device_ptr(&stream).unwrap();
        drop(array);
        let before = heap.usage_of(MemoryKind::Pinned).unwrap();
        assert!(before.cached >= BYTES as u64 && before.live == 0, "{pool}: {before:?}");
        for _ in 0..10 {
            let array = recycled(&target);
            assert_eq!(array.device_ptr(&stream).unwrap(), address, "{pool}");
        }
        let after = heap.usage_of(MemoryKind::Pinned).unwrap();
        assert_eq!(after.driver_calls, before.driver_calls, "{pool}");
        if let Some(emulator) = device.emulator() {
            assert_eq!(emulator.calls_of("cuMemHostAlloc"), 1, "{pool}");
        }
        assert_eq!(heap.usage().unwrap().live_peak, 0, "{pool}: not of the device");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn host_write_waits_for_previous_use() {
    let lag = Schedule::Lag(Duration::from_millis(10));
    for schedule in [Schedule::OnDemand, lag, Schedule::Seeded(9)] {
        for pool in POOLED {
            for crosses in [false, true] {
                let (device, heap) = make_heap(1 << 30, schedule, pool);
                let one = device.stream().unwrap();
                let two = if crosses { device.stream().unwrap() } else { one.clone() };
                let what = format!("{schedule:?} {pool} {crosses}");
                // When the buffer is freed, a copy out of it and a fill of it are still enqueued.
                let mut buffer = recycled(&pinned(&heap, &one));
                buffer.as_mut_slice().unwrap().fill(5);
                let mut on_device = heap.on(&one).filled(BYTES, 0_u8).unwrap();
                on_device.copy_from(&buffer).unwrap();
                buffer.fill(6).unwrap();
                drop(buffer);
                let mut next = recycled(&pinned(&heap, &two));
                next.as_mut_slice().unwrap().fill(7);
                device.synchronize().unwrap();
                assert!(next.as_slice().unwrap().iter().all(|byte| *byte == 7), "{what}");
                assert_eq!(on_device.to_vec().unwrap(), [5; BYTES], "{what}");
                drop((next, on_device));
                assert_all_returned(&device, &heap, &what);
            }
        }
    }
}

#[test]
fn copy_reads_dropped_buffer() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
        let [one, two] = [(); 2].map(|()| device.stream().unwrap());
        let mut arrays = Vec::new();
        for round in 0..6_u8 {
            let stream = if round % 2 == 0 { &one } else { &two };
            let mut buffer = recycled(&pinned(&heap, stream));
            buffer.as_mut_slice().unwrap().fill(round);
            arrays.push(heap.on(&one).copy_of(&buffer).unwrap());
        }
        for (round, array) in arrays.iter().enumerate() {
            assert_eq!(array.to_vec().unwrap(), [round as u8; BYTES], "{pool}");
        }
        drop(arrays);
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn device_and_host_addresses_agree() {
    let (device, heap, stream) =
        make_heap_and_stream(1 << 30, Schedule::Immediate, PoolKind::Split);
    let target = pinned(&heap, &stream);
    for array in
        [target.filled(100, 1_u8), heap.on(&stream).register(vec![1; 100]).map_err(Into::into)]
    {
        let array = array.unwrap();
        let host = array.as_slice().unwrap().as_ptr();
        let mut seen = 0;
        let asked = device.with_current(|driver| {
            // SAFETY: the pointer is valid for the call and the memory is live.
            unsafe { driver.cuMemHostGetDevicePointer_v2(&mut seen, host.cast_mut().cast(), 0) }
        });
        check("cuMemHostGetDevicePointer_v2", asked.unwrap()).unwrap();
        assert_eq!(array.device_ptr(&stream).unwrap(), seen);
        if !on_real_gpu() || array.kind() == MemoryKind::Pinned {
            assert_eq!(host.addr() as u64, seen);
        }
    }
    assert_no_findings(&device, "mapped");
}

#[test]
fn kinds_are_counted_separately() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Binned);
    let target = heap.on(&device.stream().unwrap());
    let kinds = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];
    let mut arrays = Vec::new();
    for (at, kind) in kinds.into_iter().enumerate() {
        arrays.push(target.kind(kind).filled(1000 << at, 1_u8).unwrap());
    }
    let vector = target.register(vec![1_u8; 8000]).unwrap();
    for (at, kind) in MemoryKind::ALL.into_iter().enumerate() {
        assert_eq!(heap.usage_of(kind).unwrap().live, 1000 << at, "{kind}");
    }
    assert_eq!(heap.usage().unwrap(), heap.usage_of(MemoryKind::Device).unwrap());
    drop((arrays, vector));
    for kind in MemoryKind::ALL {
        let usage = heap.usage_of(kind).unwrap();
        assert_eq!((usage.live, usage.stats.frees), (0, 1), "{kind}");
    }
}
