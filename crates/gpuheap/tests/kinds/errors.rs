//! Tests of error texts when a kind of memory runs out.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Cause, Device, ErrorKind, Heap, MemoryKind, PoolKind};

use crate::support::device;

const MIB: u64 = 1 << 20;

#[test]
fn pinned_limit_holds_and_is_named() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).pinned_limit(4 * MIB).build().unwrap();
    let target = heap.on(&device.stream().unwrap()).kind(MemoryKind::Pinned);
    let kept = target.filled(3 * MIB as usize, 1_u8).unwrap();
    let error = target.filled(2 * MIB as usize, 1_u8).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.kind, evidence.cause), (MemoryKind::Pinned, Cause::Limit), "{error}");
    assert_eq!(evidence.limit, Some(4 * MIB));
    drop(kept);
    // The limit of pinned memory does not affect other kinds of memory.
    drop(target.kind(MemoryKind::Unified).filled(8 * MIB as usize, 1_u8).unwrap());
    let error = target.filled(5 * MIB as usize, 1_u8).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().cause, Cause::LargerThanLimit);
    assert!(error.to_string().contains("raise pinned_limit by "), "{error}");
}

#[test]
fn useless_pinned_limit_is_refused() {
    let device = device(1 << 30, Schedule::Immediate);
    for pool in PoolKind::ALL {
        let (taker, least) = match pool {
            PoolKind::None | PoolKind::Binned | PoolKind::Simple => (pool, 1),
            _ => (PoolKind::Split, 2 * MIB),
        };
        let builder = Heap::builder(&device).pool(pool);
        let error = builder.clone().pinned_limit(least - 1).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSetting, "{pool}");
        let text = error.to_string();
        assert!(text.starts_with("the pinned limit of "), "{pool}: {text}");
        let expected = format!("that the {taker} pool takes from the driver at a time");
        assert!(text.contains(&expected), "{pool}: {text}");
        // The smallest limit that is accepted leaves room for a request.
        let heap = builder.pinned_limit(least).build().unwrap();
        let target = heap.on(&device.stream().unwrap()).kind(MemoryKind::Pinned);
        target.filled(1, 1_u8).unwrap();
    }
}

/// The error of a request names the pool that serves the requested kind. Only device memory can be
/// in a `stitched` or `driver` pool; a `split` pool then serves the other kinds.
#[test]
fn error_names_pool_of_kind() {
    let device = device(1 << 30, Schedule::Immediate);
    let pools = [
        (PoolKind::None, PoolKind::None),
        (PoolKind::Binned, PoolKind::Binned),
        (PoolKind::Stitched, PoolKind::Split),
        (PoolKind::Driver, PoolKind::Split),
    ];
    for (pool, expected) in pools {
        let heap = Heap::builder(&device).pool(pool).pinned_limit(4 * MIB).build().unwrap();
        let target = heap.on(&device.stream().unwrap()).kind(MemoryKind::Pinned);
        let kept = target.filled(3 * MIB as usize, 1_u8).unwrap();
        let error = target.filled(3 * MIB as usize, 1_u8).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().pool, expected, "{pool}: {error}");
        assert!(error.to_string().contains(&format!("{expected} pool")), "{pool}: {error}");
        drop(kept);
    }
}

#[test]
fn pin_refusal_differs_from_full_host() {
    let profile = Profile { pinned_limit: Some(8 * MIB), ..Profile::wsl2_rtx4060() };
    let device = Device::emulated_with(Options::with_device(profile)).unwrap();
    let heap = Heap::new(&device).unwrap();
    let target = heap.on(&device.stream().unwrap()).kind(MemoryKind::Pinned);
    let error = target.filled(9 * MIB as usize, 1_u8).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.cause, evidence.on_wsl2), (Cause::Refused, true), "{error}");
    assert!(error.to_string().contains("WSL2 lets a process pin"), "{error}");
    let error = target.uninit::<u8, _>(1 << 60).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().cause, Cause::LargerThanDevice);
    assert!(error.to_string().contains("larger than the host's memory"), "{error}");
}
