//! Giving everything back, and what is left.

use gpuheap::emu::Schedule;
use gpuheap::{FlushedKind, MemoryKind, PoolKind};

use crate::support::{assert_all_returned, device, emulated, heap};

const MIB: u64 = 1 << 20;

#[test]
fn a_flush_waits_and_empties_the_pools_of_all_kinds() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::OnDemand);
        let heap = heap(&device, pool);
        let target = heap.target().unwrap();
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned] {
            drop(target.kind(kind).filled(40 << 20, 1_u8).unwrap());
        }
        let report = heap.flush().unwrap();
        let kinds: Vec<_> = report.kinds.iter().map(|kind| kind.kind).collect();
        assert_eq!(kinds, [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned]);
        for kind in &report.kinds {
            let FlushedKind { live, live_allocations, still_cached, .. } = *kind;
            assert_eq!((live, live_allocations, still_cached), (0, 0, 0), "{pool}");
            // What `none` frees is back before anybody asks.
            let cached = if pool == PoolKind::None { 0 } else { 40 * MIB };
            assert!(kind.given_back >= cached, "{pool}: {kind:?}");
            assert!(cached > 0 || kind.given_back == 0, "{pool}: {kind:?}");
        }
        assert_eq!(heap.flush().unwrap().given_back(), 0, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn the_report_says_what_is_left_and_why() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let [mine, other] = [(); 2].map(|()| heap(&device, PoolKind::Split));
    let target = mine.target().unwrap();
    let live = target.zeroed::<u8, _>(4 << 20).unwrap();
    drop(target.zeroed::<u8, _>(4 << 20).unwrap());
    drop(target.zeroed::<u8, _>(32 << 20).unwrap());
    let pinned = target.kind(MemoryKind::Pinned).zeroed::<u8, _>(1 << 20).unwrap();
    let theirs = other.target().unwrap().zeroed::<u8, _>(64 << 20).unwrap();
    let report = mine.flush().unwrap();
    insta::assert_snapshot!("one_heap", report);
    insta::assert_snapshot!("one_heap_json", report.to_json());
    assert_eq!(report.given_back(), 32 * MIB);
    assert_eq!((report.other_heaps, report.context_and_others), (64 * MIB, 0));
    drop(theirs);
    let report = device.flush().unwrap();
    insta::assert_snapshot!("all_heaps", report);
    assert_eq!((report.given_back(), report.other_heaps), (64 * MIB, 0));
    drop((live, pinned));
    assert_all_returned(&device, &mine, "mine");
    drop((mine, target, other));
    assert_eq!(device.flush().unwrap().kinds, []);
}
