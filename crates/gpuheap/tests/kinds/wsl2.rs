//! Tests of unified memory on devices where host and device must not access it at the same time.
//! The tests run only on the emulator's profile of such a device.

use std::sync::atomic::{AtomicBool, Ordering};

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Advice, Cause, Device, Location, MemoryKind, PoolKind};
use gpuheap_driver::check;

use crate::support::{
    assert_all_returned, assert_no_findings, device, heap, make_foreign_stream, on_real_gpu,
};

fn wsl2(schedule: Schedule) -> Device {
    let profile = Profile::wsl2_rtx4060().without_context();
    Device::emulated_with(Options { schedule, ..Options::with_device(profile) }).unwrap()
}

#[test]
fn prefetch_explains_missing_effect() {
    let device = wsl2(Schedule::Immediate);
    let target = heap(&device, PoolKind::Split).on(&device.stream().unwrap());
    let array = target.kind(MemoryKind::Unified).filled(100, 1_u8).unwrap();
    for to in [Location::Device, Location::Host, Location::Other(device.clone())] {
        for error in [
            array.prefetch(to.clone()).unwrap_err(),
            array.advise(Advice::PreferredLocation(to.clone())).unwrap_err(),
            array.advise(Advice::AccessedBy(to.clone())).unwrap_err(),
            array.unadvise(Advice::AccessedBy(to.clone())).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(error.driver().is_none(), "{text}");
            assert!(text.contains("lacks concurrent access") && text.contains("WSL2"), "{text}");
        }
    }
    array.advise(Advice::ReadMostly).unwrap();
    assert_eq!(array.to_vec().unwrap(), [1; 100]);
    assert_no_findings(&device, "refused");
}

#[test]
fn host_borrow_waits_for_device() {
    let device = wsl2(Schedule::OnDemand);
    let heap = heap(&device, PoolKind::Split);
    let [mine, other] = [(); 2].map(|()| device.stream().unwrap());
    let unified = heap.on(&mine).kind(MemoryKind::Unified).filled(100, 1_u8).unwrap();
    let busy = heap.on(&other).filled(1 << 20, 2_u8).unwrap();
    // Do not query the stream before this read. On the emulator, a query would run a part of the
    // work, and the read itself has to wait for all of it.
    let seen = unified.as_slice().unwrap();
    assert!(other.is_done().unwrap());
    assert_eq!(seen[..], [1; 100]);
    drop(seen);
    drop((unified, busy));
    assert_all_returned(&device, &heap, "waits");
}

#[test]
fn host_borrow_blocks_device_work() {
    let device = wsl2(Schedule::Seeded(5));
    let heap = heap(&device, PoolKind::Split);
    let stream = device.stream().unwrap();
    let target = heap.on(&stream);
    let unified = target.kind(MemoryKind::Unified).filled(100, 1_u8).unwrap();
    let mut array = target.filled(100, 2_u8).unwrap();
    let refused = |error: gpuheap::Error| {
        let text = error.to_string();
        assert!(text.contains("has a unified array of it borrowed"), "{text}");
        assert!(text.contains("drop the borrow first"), "{text}");
    };
    let first = unified.as_slice().unwrap();
    let second = unified.as_slice().unwrap();
    refused(array.fill(3).unwrap_err());
    refused(array.device_ptr(&stream).unwrap_err());
    refused(array.to_vec().unwrap_err());
    refused(array.copy().unwrap_err());
    refused(array.write_from(&[1; 100]).unwrap_err());
    refused(target.zero_on_alloc(true).uninit::<u8, _>(10).unwrap_err());
    drop(first);
    refused(array.fill(3).unwrap_err());
    drop(second);
    array.fill(3).unwrap();
    assert_eq!(array.to_vec().unwrap(), [3; 100]);
    // The host and the device may access pinned memory at the same time.
    let pinned = target.kind(MemoryKind::Pinned).filled(100, 1_u8).unwrap();
    let seen = pinned.as_slice().unwrap();
    array.fill(4).unwrap();
    drop(seen);
    drop((unified, array, pinned));
    assert_all_returned(&device, &heap, "refused");
}

#[test]
fn zeroing_waits_for_host_borrow() {
    for pool in PoolKind::ALL {
        let device = wsl2(Schedule::Seeded(5));
        let (heap, raw) = (heap(&device, pool), make_foreign_stream(&device));
        let unified = heap.on(&device.stream().unwrap()).kind(MemoryKind::Unified);
        let unified = unified.filled(100, 1_u8).unwrap();
        // SAFETY: the stream is alive until its memory is freed.
        let stream = unsafe { device.unannounced_stream(raw) }.unwrap();
        let secret = heap.on(&stream).zero_on_free(true).filled(1 << 20, 2_u8).unwrap();
        let borrow = unified.as_slice().unwrap();
        drop((secret, stream));
        assert_eq!(heap.usage().unwrap().live, 1 << 20);
        drop(borrow);
        // SAFETY: the stream is alive and is not used again.
        let ended = device.with_current(|driver| unsafe { driver.cuStreamDestroy_v2(raw) });
        check("cuStreamDestroy_v2", ended.unwrap()).unwrap();
        heap.reclaim_all().unwrap();
        let usage = heap.usage().unwrap();
        // Only the free during the borrow failed.
        assert_eq!((usage.live, usage.reserved, usage.stats.failed_frees), (0, 0, 1), "{pool}");
        drop(unified);
        assert_all_returned(&device, &heap, "kept");
    }
}

#[test]
fn concurrent_access_holds_up_nothing() {
    let device = device(1 << 30, Schedule::OnDemand);
    if on_real_gpu() && !device.describe().concurrent_managed_access {
        return;
    }
    let heap = heap(&device, PoolKind::Split);
    let [mine, other] = [(); 2].map(|()| device.stream().unwrap());
    let mut unified = heap.on(&mine).kind(MemoryKind::Unified).filled(100, 1_u8).unwrap();
    let mut array = heap.on(&other).filled(100, 2_u8).unwrap();
    let mut seen = unified.as_mut_slice().unwrap();
    array.fill(3).unwrap();
    seen[7] = 9;
    drop(seen);
    array.copy_from(&unified).unwrap();
    assert_eq!(array.to_vec().unwrap()[6..9], [1, 9, 1]);
    drop((unified, array));
    assert_all_returned(&device, &heap, "concurrent");
}

#[test]
fn host_borrows_and_work_alternate() {
    let device = wsl2(Schedule::OnDemand);
    let heap = heap(&device, PoolKind::Split);
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    /// Dropping this sets the flag, so that the other threads end even if a test fails.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        for stream in &streams {
            let (heap, done) = (&heap, &done);
            scope.spawn(move || {
                let mut array = heap.on(stream).uninit::<u8, _>(4096).unwrap();
                let mut array = loop {
                    array = match array.device_ptr(stream) {
                        // SAFETY: any byte is a u8.
                        Ok(_) => break unsafe { array.assume_written() },
                        Err(_) => array,
                    };
                };
                while !done.load(Ordering::Relaxed) {
                    if let Err(error) = array.fill(1) {
                        assert!(error.to_string().contains("borrowed"), "{error}");
                    }
                }
            });
        }
        let mine = device.stream().unwrap();
        let mut unified = loop {
            let target = heap.on(&mine).kind(MemoryKind::Unified);
            if let Ok(array) = target.filled(100, 1_u8) {
                break array;
            }
        };
        for round in 0..300 {
            let mut seen = unified.as_mut_slice().unwrap();
            assert!(streams.iter().all(|stream| stream.is_done().unwrap()), "{round}");
            seen[0] = round as u8;
            std::thread::yield_now();
            assert!(streams.iter().all(|stream| stream.is_done().unwrap()), "{round}");
        }
    });
    assert_all_returned(&device, &heap, "turns");
}

#[test]
fn oversized_unified_memory_is_refused() {
    let device = wsl2(Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    let target = heap.on(&device.stream().unwrap()).kind(MemoryKind::Unified);
    let error = target.zeroed::<u8, _>(9 << 30).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.kind, evidence.cause), (MemoryKind::Unified, Cause::LargerThanDevice));
    let text = error.to_string();
    assert!(text.contains("larger than the device"), "{text}");
    assert!(text.contains("the device has 7.82 GiB; work in smaller pieces"), "{text}");
    // Both kinds of memory share the device.
    let unified = target.zeroed::<u8, _>(4 << 30).unwrap();
    let error = target.kind(MemoryKind::Device).zeroed::<u8, _>(4 << 30).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    drop(unified);
    assert_all_returned(&device, &heap, "refused");
}
