//! What is said when a kind of memory runs out.

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Cause, Device, Heap, MemoryKind, OutOfMemory, PoolKind, Step};

use crate::support::device;

const MIB: u64 = 1 << 20;

fn evidence(kind: MemoryKind, cause: Cause, on_wsl2: bool) -> OutOfMemory {
    OutOfMemory {
        requested: 300 * MIB,
        kind,
        pool: PoolKind::Split,
        cause,
        short_by: 44 * MIB,
        live: 500 * MIB,
        live_blocks: 501 * MIB,
        pending: 0,
        cached: 10 * MIB,
        largest_cached_block: 8 * MIB,
        cached_on_other_streams: 0,
        reserved: 512 * MIB,
        other_heaps: 0,
        other_heaps_cached: 0,
        foreign: 1 << 30,
        device: 8 << 30,
        device_free: 6 << 30,
        limit: Some(768 * MIB),
        on_wsl2,
        consumers: Vec::new(),
        tried: Vec::new(),
    }
}

#[test]
fn pinned_memory_speaks_of_the_host() {
    let causes = [
        Cause::LargerThanDevice,
        Cause::LargerThanLimit,
        Cause::Limit,
        Cause::DeviceFull,
        Cause::Fragmentation,
        Cause::Foreign,
        Cause::Refused,
    ];
    let texts = causes.map(|cause| evidence(MemoryKind::Pinned, cause, false).to_string());
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn wsl2_is_named_where_it_is_what_is_scarce() {
    let pinned = evidence(MemoryKind::Pinned, Cause::Refused, true);
    insta::assert_snapshot!(pinned.to_string());
}

#[test]
fn the_knobs_of_the_limit_are_named_and_what_is_zero_is_not() {
    let limit = evidence(MemoryKind::Device, Cause::Limit, true);
    let bare = OutOfMemory {
        live_blocks: limit.live,
        cached: 0,
        foreign: 0,
        tried: vec![(Step::Ready, 0), (Step::Cache, 2 * MIB), (Step::WholeCache, 0)],
        ..limit.clone()
    };
    let nothing = OutOfMemory {
        live: 0,
        live_blocks: 0,
        reserved: 0,
        limit: None,
        tried: vec![(Step::Ready, 0)],
        ..bare.clone()
    };
    insta::assert_snapshot!([limit, bare, nothing].map(|one| one.to_string()).join("\n\n"));
}

#[test]
fn unified_memory_speaks_of_the_device() {
    let texts = [Cause::DeviceFull, Cause::Refused]
        .map(|cause| evidence(MemoryKind::Unified, cause, false).to_string());
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn a_pool_that_moves_pages_is_not_sent_for_one() {
    let fragmented = evidence(MemoryKind::Device, Cause::Fragmentation, false);
    assert!(
        fragmented.remedy().ends_with("; a pool that moves pages, or 44.000 MiB more, would do")
    );
    let stitched = OutOfMemory { pool: PoolKind::Stitched, ..fragmented };
    assert!(stitched.remedy().ends_with("; 44.000 MiB more would do"), "{}", stitched.remedy());
}

#[test]
fn the_limit_of_pinned_memory_holds_and_is_named() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).pinned_limit(4 * MIB).build().unwrap();
    let target = heap.on(&device.stream().unwrap()).kind(MemoryKind::Pinned);
    let kept = target.filled(3 * MIB as usize, 1_u8).unwrap();
    let error = target.filled(2 * MIB as usize, 1_u8).unwrap_err();
    let evidence = error.out_of_memory().unwrap();
    assert_eq!((evidence.kind, evidence.cause), (MemoryKind::Pinned, Cause::Limit), "{error}");
    assert_eq!(evidence.limit, Some(4 * MIB));
    drop(kept);
    // The other kinds have nothing to do with it.
    drop(target.kind(MemoryKind::Unified).filled(8 * MIB as usize, 1_u8).unwrap());
    let error = target.filled(5 * MIB as usize, 1_u8).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().cause, Cause::LargerThanLimit);
    assert!(error.to_string().contains("raise pinned_limit by 1.000 MiB"), "{error}");
}

/// Only device memory has pages of ours, or pools of the driver's.
#[test]
fn the_pool_that_is_named_is_the_one_of_the_kind() {
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
fn a_driver_that_pins_no_more_is_told_from_a_full_host() {
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
