//! Tests of which memory is filled with zeros, and when.

use gpuheap::emu::{Fault, FaultPlan, FindingKind, Schedule};
use gpuheap::{Device, DeviceArray, Heap, MemoryKind, PoolKind, Target};
use gpuheap_driver::{CUresult, check};

use crate::support::{
    PAST_SPARE, assert_all_returned, assert_memory_returned, assert_no_findings, device, emulated,
    fill, heap, make_heap, read,
};

const KINDS: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Pinned];
/// Pools that reuse their own cached blocks.
const POOLS: [PoolKind; 3] = [PoolKind::Simple, PoolKind::Binned, PoolKind::Split];
/// Size in bytes of a block that every pool caches.
const BLOCK: usize = 64 << 10;
/// Size in bytes that is a little smaller than [`BLOCK`]. Every pool serves such a request with a
/// cached block of [`BLOCK`] bytes.
const PART: usize = BLOCK - 24;

/// Returns the contents and the address of the next block that the pool hands out. The contents are
/// shortened: one byte stands for each run of equal bytes.
fn next_contents(target: &Target) -> (Vec<u8>, u64) {
    // SAFETY: any byte is a u8; the test reads the previous contents.
    let array = unsafe { target.uninit::<u8, _>(BLOCK).unwrap().assume_written() };
    let mut bytes = array.to_vec().unwrap();
    bytes.dedup();
    (bytes, array.device_ptr(target.stream()).unwrap())
}

/// Fills the next block of `target`'s pool with a pattern. Returns the block's address.
fn dirty(target: &Target) -> u64 {
    let array = target.filled(BLOCK, 0xab_u8).unwrap();
    array.device_ptr(target.stream()).unwrap()
}

/// Asserts that all memory is returned, and that all findings are about this test's own reads of
/// memory that it did not write.
fn assert_returned_after_reads(device: &Device, heap: &Heap, what: &str) {
    assert_memory_returned(device, heap, what);
    let Some(emulator) = device.emulator() else { return };
    for found in emulator.findings().unwrap() {
        let is_look = matches!(found.kind, FindingKind::Uninitialised | FindingKind::OutOfBounds);
        assert!(is_look && found.text.contains("block of "), "{what}: {found}");
    }
}

fn secret(target: &Target) -> DeviceArray<u8> {
    target.filled(PART, 0xcd_u8).unwrap()
}

#[test]
fn zero_on_free_covers_whole_block() {
    type Way = fn(DeviceArray<u8>);
    let ways: [(&str, Way); 4] = [
        ("drop", |array| drop(array)),
        ("free", |array| array.free().unwrap()),
        ("shared", |array| {
            let shared = array.into_shared();
            let second = shared.clone();
            drop(shared);
            assert_eq!(second.slice(..1).unwrap().to_vec().unwrap(), [0xcd]);
        }),
        ("early", |array| {
            let shared = array.into_shared();
            assert!(shared.free_early().unwrap());
        }),
    ];
    for pool in POOLS {
        for kind in KINDS {
            for (name, way) in ways {
                let what = format!("{pool} {kind} {name}");
                let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
                let target = heap.on(&device.stream().unwrap()).kind(kind);
                let address = dirty(&target);
                // Without filling, the next block contains the old bytes. The check below relies on
                // that.
                assert_eq!(next_contents(&target), (vec![0xab], address), "{what}");
                way(secret(&target.zero_on_free(true)));
                assert_eq!(next_contents(&target), (vec![0], address), "{what}");
                assert_returned_after_reads(&device, &heap, &what);
            }
        }
    }
}

#[test]
fn zeroing_heap_zeroes_every_array() {
    for pool in POOLS {
        for kind in KINDS {
            let device = device(1 << 30, Schedule::OnDemand);
            let heap = Heap::builder(&device).pool(pool).zero_on_free(true).build().unwrap();
            let target = heap.on(&device.stream().unwrap()).kind(kind);
            let address = target.filled(BLOCK, 1_u8).unwrap().device_ptr(target.stream()).unwrap();
            // A target cannot turn off the heap's setting for its arrays.
            drop(secret(&target.zero_on_free(false)));
            assert_eq!(next_contents(&target), (vec![0], address), "{pool} {kind}");
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn another_stream_finds_zeros_too() {
    for pool in POOLS {
        for kind in KINDS {
            let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
            let [one, two] = [(); 2].map(|()| device.stream().unwrap());
            let rest = heap.allocate(PAST_SPARE, &one).unwrap();
            let target = heap.on(&one).kind(kind).zero_on_free(true);
            let array = target.filled(BLOCK, 9_u8).unwrap();
            let address = array.device_ptr(&one).unwrap();
            drop(array);
            let next = next_contents(&target.on(&two));
            assert_eq!(next, (vec![0], address), "{pool} {kind}");
            drop(rest);
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn raw_blocks_zero_after_stream_end() {
    for pool in POOLS {
        for ends in [false, true] {
            let device = device(1 << 30, Schedule::OnDemand);
            let heap = Heap::builder(&device).pool(pool).zero_on_free(true).build().unwrap();
            let other = device.stream().unwrap();
            let stream = device.stream().unwrap();
            let rest = heap.allocate(PAST_SPARE, &other).unwrap();
            // Leaves a cached block that is larger than the next request. The simple pool hands out
            // the whole block for that request.
            drop(heap.allocate(BLOCK as u64, &stream).unwrap());
            let block = heap.allocate(PART as u64, &stream).unwrap();
            let (address, bytes) = (block.address(), block.block_bytes());
            let whole = device.with_current(|driver| {
                // SAFETY: `bytes` is the size of the whole block, after the request was rounded up.
                unsafe { driver.cuMemsetD8Async(address, 0xcd, bytes as usize, stream.raw()) }
            });
            check("cuMemsetD8Async", whole.unwrap()).unwrap();
            if ends {
                drop(stream);
                // With this request, the heap notices that the stream ended.
                drop(heap.allocate(100, &other).unwrap());
                drop(block);
            } else {
                block.free_on(&stream).unwrap();
            }
            let next = next_contents(&heap.on(&other));
            assert_eq!(next, (vec![0], address), "{pool} {ends}");
            drop(rest);
            assert_returned_after_reads(&device, &heap, pool.name());
        }
    }
}

#[test]
fn unzeroed_memory_is_not_reused() {
    for pool in POOLS {
        for kind in KINDS {
            let device = emulated(1 << 30, Schedule::Immediate);
            let emulator = device.emulator().unwrap();
            let heap = heap(&device, pool);
            let target = heap.on(&device.stream().unwrap()).kind(kind);
            let array = secret(&target.zero_on_free(true));
            let address = array.device_ptr(target.stream()).unwrap();
            let fault = Fault::nth("cuMemsetD8Async", 1, CUresult::ERROR_UNKNOWN);
            emulator.set_faults(FaultPlan::new([fault]));
            let error = array.free().unwrap_err();
            assert!(error.to_string().contains("cuMemsetD8Async"), "{error}");
            let usage = heap.usage_of(kind).unwrap();
            assert_eq!((usage.live, usage.stats.failed_frees), (PART as u64, 1), "{pool} {kind}");
            let next = target.filled(PART, 1_u8).unwrap();
            assert_ne!(next.device_ptr(target.stream()).unwrap(), address, "{pool} {kind}");
            drop(next);
            // The heap kept the block that it could not fill. A request that lacks memory makes the
            // heap fill the block again, and free it.
            heap.allocate(2 << 30, target.stream()).unwrap_err();
            target.uninit::<u8, _>(1 << 62).unwrap_err();
            secret(&target.zero_on_free(true)).release().unwrap();
            assert_eq!(heap.usage_of(kind).unwrap().live, 0, "{pool} {kind}");
            assert_no_findings(&device, "kept");
        }
    }
}

#[test]
fn ending_heap_zeroes_cache() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let emulator = device.emulator().unwrap();
    let heap = heap(&device, PoolKind::Split);
    let target = heap.on(&device.stream().unwrap()).zero_on_free(true);
    let array = secret(&target);
    emulator.set_faults(FaultPlan::new([Fault::nth(
        "cuMemsetD8Async",
        1,
        CUresult::ERROR_UNKNOWN,
    )]));
    drop(array);
    let before = emulator.calls_of("cuMemsetD8Async");
    drop((heap, target));
    assert_eq!(emulator.calls_of("cuMemsetD8Async"), before + 1);
    assert_eq!(emulator.usage(0).plain, 0);
}

#[test]
fn driver_pools_receive_zeroed_memory() {
    for pool in [PoolKind::None, PoolKind::Driver] {
        for kind in KINDS {
            let device = emulated(1 << 30, Schedule::Seeded(1));
            let emulator = device.emulator().unwrap();
            let heap = heap(&device, pool);
            let target = heap.on(&device.stream().unwrap()).kind(kind).zero_on_free(true);
            let array = target.filled(BLOCK, 1_u8).unwrap();
            let before = emulator.calls_of("cuMemsetD8Async");
            drop(array);
            assert_eq!(emulator.calls_of("cuMemsetD8Async"), before + 1, "{pool} {kind}");
            assert_all_returned(&device, &heap, pool.name());
        }
    }
}

#[test]
fn zero_on_alloc_covers_the_rounding() {
    for pool in PoolKind::ALL {
        for kind in KINDS {
            let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
            let target = heap.on(&device.stream().unwrap()).kind(kind);
            dirty(&target);
            // SAFETY: any byte is a u8.
            let array = unsafe {
                target.zero_on_alloc(true).uninit::<u8, _>(PART).unwrap().assume_written()
            };
            assert_eq!(array.to_vec().unwrap(), [0; PART], "{pool} {kind}");
            drop(array);
            if POOLS.contains(&pool) {
                assert_eq!(next_contents(&target).0, [0], "{pool} {kind}");
            }
            assert_returned_after_reads(&device, &heap, pool.name());
        }
        let device = device(1 << 30, Schedule::OnDemand);
        let heap = Heap::builder(&device).pool(pool).zero_on_alloc(true).build().unwrap();
        let stream = device.stream().unwrap();
        for _ in 0..2 {
            let block = heap.allocate(PART as u64, &stream).unwrap();
            let seen = read(&device, block.address(), block.block_bytes());
            assert!(seen.iter().all(|byte| *byte == 0), "{pool}");
            fill(&block, 7, &stream);
        }
        assert_returned_after_reads(&device, &heap, pool.name());
    }
}
