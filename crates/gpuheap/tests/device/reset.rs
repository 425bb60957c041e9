//! Tests of device resets. Older handles return errors and free nothing twice. Newer handles work.

use std::ptr::from_mut;

use gpuheap::emu::{Fault, FaultPlan, Options, Schedule};
use gpuheap::{Device, Heap, MemoryKind, PoolKind, Tracking};
use gpuheap_driver::{CUresult, check};

use crate::support::{assert_no_findings, device, emulated, fill, read};

fn reset(device: Device) -> Device {
    // SAFETY: only the calling test uses the device. The test uses older objects only to read their
    // errors.
    unsafe { device.reset() }.unwrap()
}

fn is_active(device: &Device) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both pointers are valid for the call.
    let asked = unsafe {
        device.driver().cuDevicePrimaryCtxGetState(
            device.ordinal(),
            from_mut(&mut flags),
            from_mut(&mut active),
        )
    };
    check("cuDevicePrimaryCtxGetState", asked).unwrap();
    active != 0
}

#[test]
fn objects_older_than_reset_err() {
    for pool in PoolKind::ALL {
        for schedule in [Schedule::Immediate, Schedule::OnDemand] {
            let device = device(schedule);
            let (clone, stream) = (device.clone(), device.stream().unwrap());
            let heap = Heap::builder(&device).pool(pool).build().unwrap();
            let live = heap.allocate(3 << 20, &stream).unwrap();
            fill(&live, 1, &stream);
            drop(heap.allocate(5 << 20, &stream).unwrap());
            let event = stream.record().unwrap();

            let fresh = reset(device);
            insta::allow_duplicates! {
                insta::assert_snapshot!(clone.synchronize().unwrap_err(), @"the device was reset since this was made, and all that was in its context went with it; make it again on the device that Device::reset returned");
            }
            let gone = clone.synchronize().unwrap_err().to_string();
            for error in [
                clone.stream().unwrap_err(),
                clone.with_current(|_| ()).unwrap_err(),
                clone.can_reach(&fresh).unwrap_err(),
                fresh.can_reach(&clone).unwrap_err(),
                stream.synchronize().unwrap_err(),
                stream.is_done().unwrap_err(),
                stream.record().unwrap_err(),
                event.is_done().unwrap_err(),
                event.synchronize().unwrap_err(),
                fresh.stream().unwrap().wait(&event).unwrap_err(),
                heap.allocate(64 << 20, &stream).unwrap_err(),
                // SAFETY: as in `reset`.
                unsafe { clone.clone().reset() }.unwrap_err(),
            ] {
                assert_eq!(error.to_string(), gone, "{pool}");
            }
            // A stream from before the reset cannot be ordered with the blocks of a newer heap.
            let newer = Heap::builder(&fresh).pool(pool).build().unwrap();
            assert!(newer.allocate(1, &stream).is_err());

            // New memory has the addresses of old memory. The old handles must not free it.
            let again = fresh.stream().unwrap();
            let block = newer.allocate(3 << 20, &again).unwrap();
            fill(&block, 2, &again);
            drop((live, event, stream, heap, clone));
            assert!(read(&block, &fresh).iter().all(|byte| *byte == 2), "{pool}");
            drop((block, newer, again));
            fresh.synchronize().unwrap();
            assert_no_findings(&fresh);
        }
    }
}

/// Keeps every kind of handle past a reset. Calls of these handles return an error that reports the
/// reset, and dropping them frees nothing of the new device.
#[test]
fn handles_kept_past_reset_are_harmless() {
    for pool in PoolKind::ALL {
        let device = emulated(Schedule::OnDemand);
        let heap = Heap::builder(&device).pool(pool).track(Tracking::Counts).build().unwrap();
        // The test forgets an array below. Without a handler, the end of the thread would write a
        // report of its memory to stderr.
        heap.on_thread_end(|_| ());
        let target = heap.target().unwrap();
        let of_kind = |kind| target.kind(kind).filled(1000, 1_u8).unwrap();
        let mut plain = of_kind(MemoryKind::Device);
        let (unified, pinned) = (of_kind(MemoryKind::Unified), of_kind(MemoryKind::Pinned));
        let shared = of_kind(MemoryKind::Device).into_shared();
        let unwritten = target.uninit::<u8, _>(1000).unwrap();
        let registered = target.register(vec![5_u8; 1000]).unwrap();
        let mut batches = target.batches(vec![vec![7_u8; 100]; 6]).prefetch(2);
        let batch = batches.next();
        let (reclaimer, meter) = (heap.register_reclaimer(|_| 0), heap.meter().unwrap());
        let (stream, event) = (target.stream().clone(), target.stream().record_timed().unwrap());

        let (fresh, report) = heap.scope(|scope| {
            let inside = scope.target().unwrap();
            let forgotten = inside.filled(1000, 1_u8).unwrap();
            let fresh = reset(device.clone());
            for error in [
                inside.uninit::<u8, _>(1).unwrap_err(),
                forgotten.to_vec().unwrap_err(),
                scope.target().unwrap_err(),
            ] {
                assert!(error.is_gone(), "{pool}: {error}");
            }
            std::mem::forget(forgotten);
            fresh
        });
        assert_eq!(report.freed, 0, "{pool}: {report}");
        let newer = Heap::builder(&fresh).pool(pool).build().unwrap();
        let kept = newer.target().unwrap().filled(1000, 9_u8).unwrap();
        for error in [
            plain.to_vec().unwrap_err(),
            plain.fill(3).unwrap_err(),
            plain.copy().unwrap_err(),
            plain.copy_from(&kept).unwrap_err(),
            plain.copy_to(&newer.target().unwrap()).unwrap_err(),
            plain.device_ptr(&stream).unwrap_err(),
            plain.device_ptr(&kept.stream()).unwrap_err(),
            plain.slice(1..).unwrap().to_vec().unwrap_err(),
            (&plain + &kept).unwrap_err(),
            (&kept + &plain).unwrap_err(),
            plain.sum().unwrap_err(),
            unified.as_slice().map(|_| ()).unwrap_err(),
            pinned.as_slice().map(|_| ()).unwrap_err(),
            shared.free_early().unwrap_err(),
            shared.to_vec().unwrap_err(),
            unwritten.fill(1).unwrap_err(),
            registered.as_slice().map(|_| ()).unwrap_err(),
            target.register(vec![1_u8]).unwrap_err().error().clone(),
            target.array(&[1, 2, 3]).unwrap_err(),
            newer.allocate(1, &stream).unwrap_err(),
            kept.stream().wait(&event).unwrap_err(),
            fresh.stream().unwrap().record_timed().unwrap().elapsed_since(&event).unwrap_err(),
        ] {
            assert!(error.is_gone(), "{pool}: {error}");
        }
        let shown = format!("{plain:?} {unified:?} {shared:?} {registered:?} {heap:?} {batches:?}");
        assert!(shown.contains("unreadable: the device was reset"), "{shown}");
        drop((batches, batch, plain, unified, pinned, shared, registered));
        assert!(meter.read().unwrap_err().is_gone());
        drop((reclaimer, meter, stream, event, target, heap, device));
        assert_eq!(kept.to_vec().unwrap(), [9; 1000], "{pool}");
        drop((kept, newer));
        assert_no_findings(&fresh);
    }
}

#[test]
fn reset_keeps_context_references() {
    let device = device(Schedule::Immediate);
    assert!(is_active(&device));
    let older = device.clone();
    let fresh = reset(device);
    assert!(is_active(&fresh));
    drop(older);
    assert!(is_active(&fresh), "the old handle took no reference of the new one's");
    fresh.synchronize().unwrap();
    let Some(emulator) = fresh.emulator().cloned() else { return };
    let again = reset(fresh);
    drop(again);
    assert_eq!(emulator.usage(0).context, 0, "nobody holds it");
    // SAFETY: the call takes no pointer, and the emulator refuses to release a reference that was
    // not retained.
    let released = unsafe { gpuheap_driver::Driver::cuDevicePrimaryCtxRelease_v2(&*emulator, 0) };
    assert_eq!(released, CUresult::ERROR_INVALID_CONTEXT, "there is no reference left over");
}

#[test]
fn another_users_reference_stays() {
    let device = emulated(Schedule::Immediate);
    let emulator = device.emulator().unwrap().clone();
    let mut theirs = Default::default();
    // SAFETY: `theirs` is a local variable that the call writes.
    let code = unsafe {
        gpuheap_driver::Driver::cuDevicePrimaryCtxRetain(&*emulator, from_mut(&mut theirs), 0)
    };
    assert!(code.is_success());
    let fresh = reset(device);
    drop(fresh);
    // SAFETY: the context was retained above.
    let code = unsafe { gpuheap_driver::Driver::cuDevicePrimaryCtxRelease_v2(&*emulator, 0) };
    assert!(code.is_success());
    assert_eq!(emulator.usage(0), emulated(Schedule::Immediate).emulator().unwrap().usage(0));
}

#[test]
fn reset_recovers_lost_context() {
    let device = emulated(Schedule::Immediate);
    let emulator = device.emulator().unwrap().clone();
    let fault = Fault::nth("cuCtxSynchronize", 1, CUresult::ERROR_ILLEGAL_ADDRESS).context_lost();
    emulator.set_faults(FaultPlan::new([fault]));
    assert!(device.synchronize().is_err());
    assert!(device.stream().is_err());
    let fresh = reset(device);
    let stream = fresh.stream().unwrap();
    let heap = Heap::new(&fresh).unwrap();
    drop(heap.allocate(1 << 20, &stream).unwrap());
    assert_no_findings(&fresh);
}

#[test]
fn refused_reset_changes_nothing() {
    let device = emulated(Schedule::Immediate);
    let emulator = device.emulator().unwrap().clone();
    let (clone, stream) = (device.clone(), device.stream().unwrap());
    let heap = Heap::new(&device).unwrap();
    let live = heap.allocate(1 << 20, &stream).unwrap();
    let symbol = "cuDevicePrimaryCtxReset_v2";
    emulator.set_faults(FaultPlan::new([Fault::nth(symbol, 1, CUresult::ERROR_NOT_SUPPORTED)]));
    // SAFETY: as in `reset`.
    let error = unsafe { device.reset() }.unwrap_err();
    assert_eq!(error.driver().unwrap().function(), symbol);
    fill(&live, 1, &stream);
    drop((live, heap, stream));
    clone.synchronize().unwrap();
    assert_no_findings(&clone);
}

#[test]
fn reset_ends_one_device() {
    let options = Options { devices: vec![gpuheap::emu::Profile::t4(); 2], ..Options::default() };
    let mut devices = Device::emulated_devices(options).unwrap();
    let (two, one) = (devices.pop().unwrap(), devices.pop().unwrap());
    assert!(one.can_reach(&two).unwrap());
    let fresh = reset(one);
    assert!(two.synchronize().is_ok());
    // The reset ended the context, and with it the peer access. `can_reach` enables it again.
    assert!(fresh.can_reach(&two).unwrap());
    assert_eq!(fresh.emulator().unwrap().calls_of("cuCtxEnablePeerAccess"), 2);
    assert!(two.can_reach(&fresh).unwrap());
    assert_no_findings(&two);
}
