//! Arrays used on several devices.

use gpuheap::emu::{Fault, FaultPlan, Options, Profile, Schedule};
use gpuheap::{Device, DeviceArray, Heap, MemoryKind, PoolKind, Stream};
use gpuheap_driver::CUresult;

use crate::create::KINDS;
use crate::support::{assert_all_returned, emulated, heap, on_real_gpu};

fn two(profile: impl Fn() -> Profile, schedule: Schedule) -> [Device; 2] {
    // Uses the first two GPUs of the machine.
    if std::env::var_os("GPUHEAP_TEST_TWO_DEVICES").is_some() {
        return ["cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap());
    }
    let options = Options { devices: vec![profile(), profile()], schedule, ..Options::default() };
    Device::emulated_devices(options).unwrap().try_into().unwrap()
}

fn peers(schedule: Schedule) -> [Device; 2] {
    two(|| Profile::with_memory(1 << 30).without_context(), schedule)
}

/// Returns the kinds of pools whose device memory a peer can access.
fn reached() -> impl Iterator<Item = PoolKind> {
    PoolKind::ALL.into_iter().filter(|pool| *pool != PoolKind::Driver)
}

/// Enqueues a write of an array on a peer.
fn write(array: &DeviceArray<u8>, value: u8, far: &Stream) {
    let address = array.device_ptr(far).unwrap();
    let filled = far.device().with_current(|driver| {
        // SAFETY: the array has these bytes and the stream is alive.
        unsafe { driver.cuMemsetD8Async(address, value, array.len(), far.raw()) }
    });
    assert!(filled.unwrap().is_success());
}

/// Opens two devices of one driver that have no access to each other.
fn strangers() -> [Device; 2] {
    let profile = || {
        let mut profile = Profile::with_memory(1 << 30).without_context();
        profile.wsl2 = true;
        profile
    };
    let options = Options { devices: vec![profile(), profile()], ..Options::default() };
    Device::emulated_devices(options).unwrap().try_into().unwrap()
}

#[test]
fn copies_go_from_device_to_device() {
    for pool in PoolKind::ALL {
        for schedule in [Schedule::OnDemand, Schedule::Seeded(3)] {
            let devices = peers(schedule);
            let heaps = [heap(&devices[0], pool), heap(&devices[1], pool)];
            for (from, to) in KINDS.into_iter().flat_map(|from| KINDS.map(|to| (from, to))) {
                let targets =
                    [heaps[0].target().unwrap().kind(from), heaps[1].target().unwrap().kind(to)];
                let a = targets[0].array(&[1.0_f32, 2.0, 3.0]).unwrap();
                let b = a.copy_to(&targets[1]).unwrap();
                assert_eq!(b.device().ordinal(), 1);
                assert_eq!(a.stream().id(), targets[0].stream().id(), "stays with its own");
                // The source is freed at once and overwritten, while the copy is still running.
                drop(a);
                let over = targets[0].filled(3, 9.0_f32).unwrap();
                let mut back = targets[0].copy_of(&b).unwrap();
                assert_eq!(back.to_vec().unwrap(), [1.0, 2.0, 3.0], "{pool} {from} {to}");
                back.slice_mut(1..).unwrap().copy_from(&b.slice(..2).unwrap()).unwrap();
                assert_eq!(back.to_vec().unwrap(), [1.0, 1.0, 2.0]);
                drop((b, over, back));
            }
            assert_all_returned(&devices[0], &heaps[0], pool.name());
            assert_all_returned(&devices[1], &heaps[1], pool.name());
        }
    }
}

/// The copy runs although the source's stream cannot be made to wait for the copy. Nevertheless, no
/// other stream gets the source's memory before the copy is completed.
#[test]
fn source_outlives_copy_without_wait() {
    let fails = [&["cuStreamWaitEvent"][..], &["cuStreamWaitEvent", "cuStreamSynchronize"]];
    for (pool, fails) in reached().flat_map(|pool| fails.map(|fails| (pool, fails))) {
        let profile = || Profile::with_memory(1 << 30).without_context();
        let devices = vec![profile(), profile()];
        let options = Options { devices, schedule: Schedule::OnDemand, ..Options::default() };
        let devices = Device::emulated_devices(options).unwrap();
        let heaps = [heap(&devices[0], pool), heap(&devices[1], pool)];
        let targets = [heaps[0].target().unwrap(), heaps[1].target().unwrap()];
        let a = targets[0].filled(1 << 20, 1_u8).unwrap();
        let mut b = targets[1].filled(1 << 20, 2_u8).unwrap();
        let nth = |name: &&'static str| {
            // The wait of the source's stream for the copy has to fail. That is the second wait,
            // because first the copy waits for the source.
            let nth = if *name == "cuStreamWaitEvent" { 2 } else { 1 };
            Fault::nth(name, nth, CUresult::ERROR_UNKNOWN)
        };
        let emulator = devices[0].emulator().unwrap();
        emulator.set_faults(FaultPlan::new(fails.iter().map(nth)));
        let copied = b.copy_from(&a);
        assert_eq!(copied.is_ok(), fails.len() == 1, "{pool}: {copied:?}");
        emulator.set_faults(FaultPlan::default());
        drop(a);
        let next = targets[0].filled(1 << 20, 3_u8).unwrap();
        assert!(next.to_vec().unwrap() == [3; 1 << 20] && b.to_vec().unwrap() == [1; 1 << 20]);
        drop((b, next));
        assert_all_returned(&devices[0], &heaps[0], pool.name());
    }
}

#[test]
fn copy_across_drivers_passes_host() {
    for pool in PoolKind::ALL {
        let devices = [(); 2].map(|()| emulated(1 << 30, Schedule::OnDemand));
        let heaps = [heap(&devices[0], pool), heap(&devices[1], pool)];
        let a = heaps[0].target().unwrap().array(&[1_u8, 2, 3]).unwrap();
        let b = a.copy_to(&heaps[1].target().unwrap()).unwrap();
        assert_eq!(b.to_vec().unwrap(), [1, 2, 3]);
        let error = a.device_ptr(b.target().stream()).unwrap_err().to_string();
        assert!(error.ends_with("(no peer access); copy it there with copy_to"), "{error}");
        drop((a, b));
        for (device, heap) in devices.iter().zip(&heaps) {
            assert_all_returned(device, heap, pool.name());
        }
    }
}

#[test]
fn peer_device_uses_reachable_array() {
    let schedules = [Schedule::OnDemand, Schedule::Seeded(8)];
    for (pool, schedule) in reached().flat_map(|pool| schedules.map(|schedule| (pool, schedule))) {
        let devices = peers(schedule);
        if !devices[1].can_reach(&devices[0]).unwrap() {
            return;
        }
        let heap = heap(&devices[0], pool);
        let near = devices[0].stream().unwrap();
        let far = devices[1].stream().unwrap();
        for kind in KINDS {
            let a = heap.on(&near).kind(kind).filled(1 << 16, 5_u8).unwrap();
            write(&a, 6, &far);
            assert_eq!(a.stream().id(), far.id());
            // The copy is made on the array's own device, although a peer used the array last.
            let copy = a.copy().unwrap();
            assert_eq!(copy.device().ordinal(), a.device().ordinal());
            let read = a.to_vec().unwrap();
            // The array is freed on its own device, ordered after the other device's work. The
            // checks report no finding.
            drop(a);
            let next = heap.on(&near).kind(kind).filled(1 << 16, 7_u8).unwrap();
            let six = vec![6; 1 << 16];
            assert_eq!((read, copy.to_vec().unwrap()), (six.clone(), six), "{pool} {kind}");
            drop((copy, next));
        }
        assert_all_returned(&devices[0], &heap, pool.name());
    }
}

/// Peer access is set for each mapping. Tests memory mapped before a peer's first use, memory
/// mapped later, and a range stitched from both.
#[test]
fn peer_reaches_all_mapped_memory() {
    const BYTES: usize = 4 << 20;
    let [near, far] = peers(Schedule::OnDemand);
    let builder = Heap::builder(&near).without_environment().pool(PoolKind::Stitched);
    let heap = builder.hard_limit(8 * BYTES as u64).build().unwrap();
    let other = crate::support::heap(&near, PoolKind::Stitched);
    let stream = far.stream().unwrap();
    let made = |count| (0..count).map(|_| heap.target().unwrap().filled(BYTES, 1).unwrap());
    let mut arrays: Vec<DeviceArray<u8>> = made(4).collect();
    let beside = other.target().unwrap().filled(BYTES, 1).unwrap();
    if !far.can_reach(&near).unwrap() {
        return;
    }
    arrays.extend(made(4));
    for (array, value) in arrays.iter().chain([&beside]).zip(2..) {
        write(array, value, &stream);
    }
    for (array, value) in arrays.iter().chain([&beside]).zip(2..) {
        assert!(array.to_vec().unwrap() == vec![value; BYTES], "{value}");
    }
    // Every second block is freed, so that only a stitched range is large enough.
    let mut number = 0;
    arrays.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    let stitched = heap.target().unwrap().filled(4 * BYTES, 20).unwrap();
    write(&stitched, 21, &stream);
    assert!(stitched.to_vec().unwrap() == vec![21; 4 * BYTES]);
    for (array, value) in arrays.iter().zip([3, 5, 7, 9]) {
        assert!(array.to_vec().unwrap() == vec![value; BYTES], "as it was: {value}");
    }
    drop((arrays, beside, stitched));
    assert_all_returned(&near, &heap, "mapped");
    assert_all_returned(&near, &other, "mapped in another heap");
}

/// If the driver cannot give a peer access, the use returns an error, and the heap does not record
/// the access. At the peer's next use, the heap tries again.
#[test]
fn failed_peer_mapping_is_error() {
    let profile = || Profile::with_memory(1 << 30).without_context();
    let options = Options { devices: vec![profile(), profile()], ..Options::default() };
    let devices = Device::emulated_devices(options).unwrap();
    let heap = heap(&devices[0], PoolKind::Stitched);
    let far = devices[1].stream().unwrap();
    let a = heap.target().unwrap().filled(1 << 20, 5_u8).unwrap();
    let emulator = devices[0].emulator().unwrap();
    let fault = Fault::nth("cuMemSetAccess", 1, CUresult::ERROR_UNKNOWN);
    emulator.set_faults(FaultPlan::new([fault]));
    let error = a.device_ptr(&far).unwrap_err().to_string();
    assert!(error.contains("cuMemSetAccess failed with CUDA_ERROR_UNKNOWN"), "{error}");
    emulator.set_faults(FaultPlan::default());
    // `b` is mapped after the failure. The peer's next use gives it access to `a` and to `b`.
    let b = heap.target().unwrap().filled(64 << 20, 5_u8).unwrap();
    for array in [&a, &b] {
        write(array, 6, &far);
        assert!(array.to_vec().unwrap() == vec![6; array.len()]);
    }
    drop((a, b));
    assert_all_returned(&devices[0], &heap, "not opened");
}

/// `cuStreamWaitEvent` fails, so the free makes the host wait for the other device's stream.
#[test]
fn free_outlives_peer_use_without_wait() {
    let ways: [fn(DeviceArray<u8>); 3] = [
        |array| drop(array),
        |array| array.free().unwrap(),
        |array| assert!(array.release().unwrap() > 0),
    ];
    for pool in reached() {
        let profile = || Profile::with_memory(1 << 30).without_context();
        let devices = vec![profile(), profile()];
        let options = Options { devices, schedule: Schedule::OnDemand, ..Options::default() };
        let devices = Device::emulated_devices(options).unwrap();
        let heap = heap(&devices[0], pool);
        let target = heap.target().unwrap();
        for way in ways {
            let far = devices[1].stream().unwrap();
            let a = target.filled(1 << 20, 5_u8).unwrap();
            write(&a, 6, &far);
            let emulator = devices[0].emulator().unwrap();
            let fault = Fault::nth("cuStreamWaitEvent", 1, CUresult::ERROR_UNKNOWN);
            emulator.set_faults(FaultPlan::new([fault]));
            way(a);
            emulator.set_faults(FaultPlan::default());
            assert!(far.is_done().unwrap(), "{pool}");
            assert_eq!(heap.usage().unwrap().live, 0, "{pool}");
            let next = target.filled(1 << 20, 7_u8).unwrap();
            devices[1].synchronize().unwrap();
            assert!(next.to_vec().unwrap() == [7; 1 << 20], "{pool}");
        }
        assert_all_returned(&devices[0], &heap, pool.name());
    }
}

/// A peer's writes to a pool of the driver were seen to be lost, so such access is refused.
#[test]
fn driver_pool_is_unreachable_by_peer() {
    for pool in PoolKind::ALL {
        let devices = peers(Schedule::OnDemand);
        if !devices[1].can_reach(&devices[0]).unwrap() {
            return;
        }
        let heap = heap(&devices[0], pool);
        let far = devices[1].stream().unwrap();
        for kind in KINDS {
            let a = heap.target().unwrap().kind(kind).filled(3, 5_u8).unwrap();
            let reached = a.device_ptr(&far);
            let of_driver = pool == PoolKind::Driver;
            if kind != MemoryKind::Device || !of_driver {
                reached.unwrap();
                continue;
            }
            let error = reached.unwrap_err().to_string();
            assert!(error.contains("which cannot reach its memory (no peer access)"), "{error}");
            assert!(error.contains("copy it there with copy_to"), "{error}");
            assert_ne!(a.stream().id(), far.id());
            assert_eq!(a.to_vec().unwrap(), [5; 3], "as it was");
        }
        assert_all_returned(&devices[0], &heap, pool.name());
    }
}

#[test]
fn missing_peer_access_names_both_devices() {
    for pool in PoolKind::ALL {
        let devices = strangers();
        let heap = heap(&devices[0], pool);
        let a = heap.target().unwrap().filled(3, 5_u8).unwrap();
        let far = devices[1].stream().unwrap();
        let error = a.device_ptr(&far).unwrap_err().to_string();
        assert!(error.contains(&devices[0].to_string()), "{error}");
        assert!(error.contains(&devices[1].to_string()), "{error}");
        assert!(
            error.contains("copy it there with copy_to, or allocate it as unified memory"),
            "{error}"
        );
        assert_eq!(a.to_vec().unwrap(), [5; 3], "as it was");
        let pinned = heap.target().unwrap().kind(MemoryKind::Pinned).filled(3, 5_u8).unwrap();
        pinned.device_ptr(&far).unwrap();
        let error = heap.on(&far).uninit::<u8, _>(3).unwrap_err().to_string();
        assert!(error.contains("use a stream of the heap's own device"), "{error}");
        drop((a, pinned));
        assert_all_returned(&devices[0], &heap, pool.name());
    }
}

/// An array that was last used on a peer survives the peer's reset, because the reset waits for
/// that use.
#[test]
fn peer_reset_leaves_other_device() {
    if on_real_gpu() {
        return; // On a GPU, the reset would end objects of other tests.
    }
    for pool in reached() {
        let [near, far] = peers(Schedule::OnDemand);
        let heap = heap(&near, pool);
        let target = heap.target().unwrap();
        let stream = far.stream().unwrap();
        let [a, b] = [0, 1].map(|_| target.filled(1000, 7_u8).unwrap());
        let vector = target.register(vec![3_u32; 8]).unwrap();
        for array in [&a, &b] {
            array.device_ptr(&stream).unwrap();
        }
        vector.device_ptr(&stream).unwrap();
        // SAFETY: nothing else uses the device, and no memory of it is borrowed.
        unsafe { far.reset() }.unwrap();
        assert_eq!(a.to_vec().unwrap(), [7; 1000]);
        a.device_ptr(target.stream()).unwrap();
        let copy = b.copy().unwrap();
        a.free().unwrap();
        drop((b, copy));
        assert_eq!(vector.unregister().unwrap(), [3; 8]);
        assert_all_returned(&near, &heap, pool.name());
    }
}

/// If an array was last used on a peer, a copy into it runs on the array's own device, provided
/// that device can access the source.
#[test]
fn copy_runs_on_device_reaching_both() {
    for pool in reached() {
        let [near, far] = peers(Schedule::OnDemand);
        let plain = heap(&near, pool);
        let pooled = heap(&near, PoolKind::Driver);
        let stream = far.stream().unwrap();
        let mut to = plain.target().unwrap().filled(64, 1_u32).unwrap();
        to.device_ptr(&stream).unwrap();
        let from = pooled.target().unwrap().filled(64, 2_u32).unwrap();
        to.copy_from(&from).unwrap();
        assert_eq!(to.to_vec().unwrap(), [2; 64]);
        drop((to, from));
        assert_all_returned(&near, &plain, pool.name());
        assert_all_returned(&near, &pooled, "pooled");
    }
}
