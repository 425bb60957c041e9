//! Tests the texts of out-of-memory errors, on made-up figures.

use crate::{Cause, MemoryKind, OutOfMemory, PoolKind, ReclaimStep};

const MIB: u64 = 1 << 20;

fn evidence(kind: MemoryKind, cause: Cause, on_wsl2: bool) -> OutOfMemory {
    let is_limit = matches!(cause, Cause::Limit | Cause::LargerThanLimit);
    OutOfMemory {
        requested: 300 * MIB,
        kind,
        pool: PoolKind::Split,
        cause,
        short_by: (cause != Cause::Refused).then_some(44 * MIB),
        limit_short_by: if is_limit { 44 * MIB } else { 0 },
        total_short_by: 0,
        device_short_by: match cause {
            Cause::Refused => None,
            _ if is_limit => Some(0),
            _ => Some(44 * MIB),
        },
        needed: 302 * MIB,
        live: 500 * MIB,
        live_blocks: 501 * MIB,
        pending: 0,
        cached: 10 * MIB,
        largest_cached_block: 8 * MIB,
        largest_stitchable: 8 * MIB,
        cached_on_other_streams: 0,
        reserved: 512 * MIB,
        other_heaps: 0,
        other_heaps_cached: 0,
        foreign: Some(1 << 30),
        device: Some(if cause == Cause::LargerThanDevice { 256 * MIB } else { 8 << 30 }),
        device_free: Some(6 << 30),
        limit: Some(if cause == Cause::LargerThanLimit { 256 * MIB } else { 768 * MIB }),
        total_limit: None,
        devices: Vec::new(),
        device_name: None,
        limit_is_fixed: false,
        on_wsl2,
        consumers: Vec::new(),
        tried: Vec::new(),
    }
}

#[test]
fn pinned_memory_errors_name_host() {
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
fn pinned_refusal_names_wsl2() {
    let pinned = evidence(MemoryKind::Pinned, Cause::Refused, true);
    insta::assert_snapshot!(pinned.to_string());
}

#[test]
fn limit_error_names_settings_without_zeros() {
    let limit = evidence(MemoryKind::Device, Cause::Limit, true);
    let mut bare = limit.clone();
    (bare.live_blocks, bare.cached, bare.foreign) = (limit.live, 0, Some(0));
    bare.tried =
        vec![(ReclaimStep::Ready, 0), (ReclaimStep::Cache, 2 * MIB), (ReclaimStep::WholeCache, 0)];
    let mut nothing = bare.clone();
    (nothing.live, nothing.live_blocks, nothing.reserved, nothing.limit) = (0, 0, 0, None);
    nothing.tried = vec![(ReclaimStep::Ready, 0)];
    insta::assert_snapshot!([limit, bare, nothing].map(|one| one.to_string()).join("\n\n"));
}

#[test]
fn unified_memory_errors_name_device() {
    let texts = [Cause::DeviceFull, Cause::Refused]
        .map(|cause| evidence(MemoryKind::Unified, cause, false).to_string());
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn stitched_error_recommends_no_pool() {
    let mut fragmented = evidence(MemoryKind::Device, Cause::Fragmentation, false);
    let more = "free 44 MiB first, in whole segments, or use a device with 44 MiB more";
    let named = format!("; the stitched pool maps such pieces together; else {more}");
    assert!(fragmented.remedy().ends_with(&named), "{}", fragmented.remedy());
    fragmented.pool = PoolKind::Stitched;
    let unnamed = format!("the largest piece is 8 MiB; {more}");
    assert!(fragmented.remedy().ends_with(&unnamed), "{}", fragmented.remedy());
}

/// Advice to free memory does not name live or cached memory if there are 0 bytes of it.
#[test]
fn remedy_omits_memory_of_zero_bytes() {
    let mut full = evidence(MemoryKind::Device, Cause::DeviceFull, false);
    (full.live, full.live_blocks, full.reserved) = (0, 0, 0);
    assert!(!full.remedy().contains(" first"), "{}", full.remedy());
    let mut limit = evidence(MemoryKind::Device, Cause::Limit, false);
    (limit.live, limit.live_blocks, limit.reserved) = (0, 0, 0);
    assert_eq!(limit.remedy(), "raise the limit by 44 MiB");
    // On WSL2 the driver reports more memory as free than there is.
    let full = evidence(MemoryKind::Device, Cause::DeviceFull, true);
    assert!(full.remedy().starts_with("free at least 44 MiB first"), "{}", full.remedy());
}

#[test]
fn contiguous_and_stitchable_bytes_differ() {
    let mut one = evidence(MemoryKind::Device, Cause::Fragmentation, false);
    one.pool = PoolKind::Stitched;
    one.largest_stitchable = 9 * MIB;
    let text = one.to_string();
    let expected = "largest 8 MiB, or 9 MiB of pieces mapped together)";
    assert!(text.contains(expected), "{text}");
    let expected = "the largest piece is 8 MiB, or 9 MiB of pieces mapped together; ";
    assert!(one.remedy().contains(expected), "{}", one.remedy());
}
