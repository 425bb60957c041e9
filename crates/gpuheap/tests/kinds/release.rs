//! Tests of the memory that the driver regains when an array is released.

use gpuheap::emu::Schedule;
use gpuheap::{Heap, MemoryKind, PoolKind};

use crate::support::{assert_all_returned, device, make_heap};

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];

#[test]
fn single_block_segment_is_released() {
    for (pool, bytes, block) in [
        (PoolKind::Binned, 1000, 1024),
        (PoolKind::Binned, (128 << 20) + 1, (128 << 20) + 1),
        (PoolKind::None, 5 << 20, 5 << 20),
        (PoolKind::Simple, 4 << 20, 4 << 20),
        (PoolKind::Split, 64 << 20, 64 << 20),
    ] {
        for kind in KINDS {
            let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
            let target = heap.on(&device.stream().unwrap()).kind(kind);
            let array = target.filled(bytes, 1_u8).unwrap();
            assert_eq!(array.release().unwrap(), block, "{pool} {kind} {bytes}");
            let usage = heap.usage_of(kind).unwrap();
            assert_eq!((usage.reserved, usage.cached), (0, 0), "{pool} {kind} {bytes}");
            assert_eq!(target.filled(0, 1_u8).unwrap().release().unwrap(), 0);
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn shared_segment_stays() {
    for kind in KINDS {
        let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::Split);
        let target = heap.on(&device.stream().unwrap()).kind(kind);
        let [one, two] = [1_u8, 2].map(|value| target.filled(1000, value).unwrap());
        assert_eq!(one.release().unwrap(), 0, "{kind}");
        assert_eq!(two.to_vec().unwrap(), [2; 1000], "{kind}");
        let reserved = heap.usage_of(kind).unwrap().reserved;
        assert_eq!(two.release().unwrap(), reserved, "{kind}");
        assert_eq!(heap.usage_of(kind).unwrap().reserved, 0, "{kind}");
        assert_all_returned(&device, &heap, "split");
    }
}

#[test]
fn driver_pool_reports_released_bytes() {
    for threshold in [0, u64::MAX] {
        let pool = PoolKind::Driver;
        for kind in KINDS {
            let device = device(1 << 30, Schedule::OnDemand);
            let builder = Heap::builder(&device).pool(pool);
            let heap = builder.release_threshold(threshold).build().unwrap();
            let target = heap.on(&device.stream().unwrap()).kind(kind);
            let array = target.filled(5 << 20, 1_u8).unwrap();
            let reserved = heap.usage_of(kind).unwrap().reserved;
            assert!(reserved >= 5 << 20, "{pool} {kind}");
            assert_eq!(array.release().unwrap(), reserved, "{pool} {kind}");
            assert_eq!(heap.usage_of(kind).unwrap().reserved, 0, "{pool} {kind}");
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}
