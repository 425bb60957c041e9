//! Texts of the evidence, from figures that no device has to be brought to.

use crate::{Cause, MemoryKind, OutOfMemory, PoolKind, Step};

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
