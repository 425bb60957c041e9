//! Tests of registered memory: vectors of the program that the device uses in place.

use gpuheap::emu::{Fault, FaultPlan, Options, Profile, Schedule};
use gpuheap::{Cause, Device, DeviceArray, Heap, MemoryKind, PoolKind, Target, Usage};
use gpuheap_driver::{CUresult, check};

use crate::support::{assert_all_returned, assert_no_findings, device, emulated, heap};

const MIB: usize = 1 << 20;

fn target(device: &Device) -> Target {
    heap(device, PoolKind::Split).on(&device.stream().unwrap())
}

fn registered(heap: &Heap) -> Usage {
    heap.usage_of(MemoryKind::Registered).unwrap()
}

#[test]
fn registered_vector_comes_back() {
    let device = device(1 << 30, Schedule::Seeded(2));
    let target = target(&device);
    let mut vector: Vec<u32> = Vec::with_capacity(70_000);
    vector.extend(0..50_000);
    let (first, capacity) = (vector.as_ptr(), vector.capacity());
    let mut array = target.register(vector).unwrap();
    assert_eq!((array.kind(), array.len()), (MemoryKind::Registered, 50_000));
    let usage = registered(target.heap());
    assert_eq!((usage.live, usage.reserved, usage.stats.live_allocations), (200_000, 200_000, 1));
    assert_eq!(array.as_slice().unwrap()[49_999], 49_999);
    array.as_mut_slice().unwrap()[0] = 77;
    // The device and the host see each other's writes.
    let on_device = target.copy_of(&array).unwrap();
    assert_eq!(on_device.to_vec().unwrap()[..3], [77, 1, 2]);
    array.slice_mut(1..3).unwrap().fill(5).unwrap();
    assert_eq!(array.as_slice().unwrap()[..4], [77, 5, 5, 3]);
    array.slice_mut(10..20).unwrap().copy_from(&on_device.slice(..10).unwrap()).unwrap();
    let vector = array.unregister().unwrap();
    assert_eq!((vector.as_ptr(), vector.capacity()), (first, capacity));
    assert_eq!(vector[9..12], [9, 77, 1]);
    let usage = registered(target.heap());
    assert_eq!((usage.live, usage.live_peak, usage.stats.frees), (0, 200_000, 1));
    // The vector is no longer registered, so it can be registered again.
    drop(target.register(vector).unwrap());
    drop(on_device);
    assert_all_returned(&device, target.heap(), "registered");
}

#[test]
fn drop_waits_for_last_use() {
    let device = device(1 << 30, Schedule::OnDemand);
    let target = target(&device);
    let other = device.stream().unwrap();
    let source = target.filled(MIB, 3_u8).unwrap();
    let ways: [fn(DeviceArray<u8>); 4] = [
        |array| drop(array),
        |array| array.free().unwrap(),
        |array| assert_eq!(array.release().unwrap(), 0),
        |array| assert!(array.into_shared().free_early().unwrap()),
    ];
    for way in ways {
        let mut array = target.register(vec![1_u8; MIB]).unwrap();
        array.device_ptr(&other).unwrap();
        array.copy_from(&source).unwrap();
        let stream = array.stream();
        assert_eq!(stream.id(), other.id());
        way(array);
        assert!(stream.is_done().unwrap());
        assert_eq!(registered(target.heap()).live, 0);
    }
    drop(source);
    assert_all_returned(&device, target.heap(), "drop");
}

/// If the last use of registered memory cannot be waited for, the memory is neither unlocked nor
/// freed. The emulator and the tested drivers also wait when they unlock memory, but no driver
/// guarantees this wait.
#[test]
fn memory_without_wait_stays_registered() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let emulator = device.emulator().unwrap();
    let target = target(&device);
    let other = device.stream().unwrap();
    let ways: [fn(DeviceArray<u8>); 5] = [
        |array| drop(array),
        |array| assert!(array.free().is_err()),
        |array| assert!(array.release().is_err()),
        |array| assert!(array.into_shared().free_early().is_err()),
        |array| assert!(array.unregister().is_err()),
    ];
    for (number, way) in (1..).zip(ways) {
        let mut array = target.register(vec![1_u8; MIB]).unwrap();
        array.device_ptr(&other).unwrap();
        array.fill(2).unwrap();
        // The last way, `unregister`, waits twice, because it also waits to read the elements.
        let waits = if number == ways.len() { 2 } else { 1 };
        let fault = Fault::nth("cuStreamSynchronize", waits, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([fault]));
        way(array);
        emulator.set_faults(FaultPlan::default());
        assert_eq!(emulator.calls_of("cuMemHostUnregister"), 0, "way {number}");
        assert_eq!(registered(target.heap()).live, (number * MIB) as u64, "way {number}");
    }
}

#[test]
fn empty_vectors_register() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = target(&device);
    let nothing = target.register(Vec::<f64>::with_capacity(9)).unwrap();
    assert_eq!(nothing.as_slice().unwrap().len(), 0);
    assert_eq!(nothing.unregister().unwrap().capacity(), 9);
    let units = target.register(vec![(); 5]).unwrap();
    assert_eq!(units.as_slice().unwrap().len(), 5);
    assert_eq!(units.unregister().unwrap().len(), 5);
    drop(target.register(Vec::<u8>::new()).unwrap());
    let usage = registered(target.heap());
    assert_eq!((usage.live, usage.stats.frees), (0, 3));
    assert_no_findings(&device, "nothing");
}

#[test]
fn windows_and_other_types_give_copies() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = target(&device);
    let array = target.register(vec![1_u32, 2, 3, 4]).unwrap().into_slice(1..3).unwrap();
    assert_eq!(array.unregister().unwrap(), [2, 3]);
    let array = target.register(vec![1_u32, 2]).unwrap().into_reinterpreted::<u16>().unwrap();
    assert_eq!(array.unregister().unwrap(), [1_u16, 0, 2, 0]);
    let array = target.register(vec![1_u32, 2, 3, 4]).unwrap().into_shape((2, 2)).unwrap();
    assert_eq!(array.unregister().unwrap(), [1, 2, 3, 4]);
    assert_eq!(registered(target.heap()).live, 0);
    let error = target.array(&[1_u8]).unwrap().unregister().unwrap_err().to_string();
    assert!(error.contains("in device memory is no vector that was registered"), "{error}");
}

#[test]
fn copies_of_registered_are_pinned() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = target(&device);
    let array = target.register(vec![1_u32, 2]).unwrap();
    let copy = array.copy().unwrap();
    assert_eq!((copy.kind(), copy.to_vec().unwrap()), (MemoryKind::Pinned, vec![1, 2]));
    // Puts a pinned block of the size requested below into the thread's cache.
    drop(copy);
    let kind = target.kind(MemoryKind::Registered);
    let heap = target.heap();
    for refused in [
        kind.uninit::<u32, _>(2).map(drop),
        heap.allocate_kind(MemoryKind::Registered, 8, target.stream()).map(drop),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("Target::register"), "{error}");
    }
}

#[test]
fn invalid_bytes_do_not_come_back() {
    let device = device(1 << 30, Schedule::Immediate);
    let target = target(&device);
    let array = target.register(vec![true; 10]).unwrap();
    let address = array.device_ptr(target.stream()).unwrap();
    let filled = device.with_current(|driver| {
        // SAFETY: the array has these bytes.
        unsafe { driver.cuMemsetD8Async(address + 3, 7, 1, target.stream().raw()) }
    });
    check("cuMemsetD8Async", filled.unwrap()).unwrap();
    let error = array.unregister().unwrap_err().to_string();
    assert!(error.contains("element 3 of the array is no valid bool"), "{error}");
    assert_eq!(registered(target.heap()).live, 0);
}

#[test]
fn unregistrable_vector_comes_back() {
    let profile = Profile { pinned_limit: Some(8 << 20), ..Profile::wsl2_rtx4060() };
    let device = Device::emulated_with(Options::with_device(profile)).unwrap();
    let target = target(&device);
    let vector = vec![1_u8; 9 * MIB];
    let first = vector.as_ptr();
    let error = target.register(vector).unwrap_err();
    let evidence = error.error().out_of_memory().unwrap().clone();
    assert_eq!(evidence.requested, 9 << 20);
    assert_eq!(evidence.cause, Cause::Refused, "{error}");
    assert!(error.to_string().starts_with("out of pinned host memory: 9 MiB"), "{error}");
    assert!(error.to_string().contains("WSL2"), "{error}");
    let vector = error.into_vec();
    assert_eq!((vector.as_ptr(), vector.len()), (first, 9 * MIB));
    // Unused pinned memory is returned to make room.
    drop(target.kind(MemoryKind::Pinned).filled(6 * MIB, 1_u8).unwrap());
    assert!(target.heap().usage_of(MemoryKind::Pinned).unwrap().cached >= 6 << 20);
    let array = target.register(vec![1_u8; 6 * MIB]).unwrap();
    assert_eq!(target.heap().usage_of(MemoryKind::Pinned).unwrap().cached, 0);
    drop(array);
    assert_no_findings(&device, "limit");
}

#[test]
fn failing_call_loses_no_vector() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let emulator = device.emulator().unwrap();
    let target = target(&device);
    let fails = |symbol| {
        emulator.set_faults(FaultPlan::new([Fault::nth(symbol, 1, CUresult::ERROR_UNKNOWN)]));
    };
    for symbol in ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"] {
        fails(symbol);
        let error = target.register(vec![4_u8; 100]).unwrap_err();
        assert!(error.to_string().contains(symbol), "{error}");
        let vector = error.into_vec();
        assert_eq!(registered(target.heap()).live, 0);
        drop(target.register(vector).unwrap());
    }
    // If the driver does not unlock memory, the memory is not freed, and stays counted.
    let array = target.register(vec![4_u8; 100]).unwrap();
    fails("cuMemHostUnregister");
    array.unregister().unwrap_err();
    assert_eq!(registered(target.heap()).live, 100);
    let [one, two] = [1, 2].map(|value| target.register(vec![value; 100]).unwrap());
    drop((one, two));
    assert_eq!(registered(target.heap()).live, 100);
}
