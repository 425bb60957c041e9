//! Status text of a heap's memory.

use std::fmt::Write;

use gpuheap::emu::Schedule;
use gpuheap::{Heap, Limits, MemoryKind, PoolKind, Tracking};

use crate::support::{assert_all_returned, device, emulated, heap, make_heap, on_real_gpu};

const MIB: u64 = 1 << 20;

/// Runs the example of CUDA.jl's documentation with every pool.
#[test]
fn status_follows_array_to_reclaim() {
    for pool in PoolKind::ALL {
        let device = emulated(16 << 30, Schedule::Immediate);
        let heap = heap(&device, pool);
        let mut text = String::new();
        let mut note = |what: &str| {
            writeln!(text, "{what}\n{}\n", heap.memory_status().unwrap()).unwrap();
        };
        note("at first");
        let array = heap.target().unwrap().zeroed::<i64, _>(1024).unwrap();
        note("an array of 1024 i64");
        drop(array);
        note("dropped");
        let reclaimed = heap.reclaim_all().unwrap();
        note(&format!("reclaimed {reclaimed}"));
        if pool == PoolKind::Binned {
            assert_eq!(reclaimed, 8192);
        }
        insta::assert_snapshot!(pool.name(), text);
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// `none` behaves as described on CUDA.jl's page on memory: there is no pool, and the driver serves
/// each request.
#[test]
fn pool_none_caches_nothing() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let emulator = device.emulator().unwrap();
    let heap = heap(&device, PoolKind::None);
    let target = heap.on(&device.stream().unwrap());
    for round in 1..=3 {
        // The array is being written when it is freed, so the free waits for that work.
        let array = target.filled(8192, 1_u8).unwrap();
        let status = heap.memory_status().unwrap();
        assert_eq!((status.taken, status.allocated, status.cached), (8192, 8192, 0));
        assert_eq!(status.device_used, Some(2 * MIB), "as the driver hands it out");
        drop(array);
        let status = heap.memory_status().unwrap();
        assert_eq!((status.taken, status.cached, status.pending), (0, 0, 0));
        assert_eq!((status.device_used, status.largest_free_block), (Some(0), 0));
        let calls = ["cuMemAlloc_v2", "cuMemFree_v2"].map(|name| emulator.calls_of(name));
        assert_eq!(calls, [round; 2]);
    }
    assert_eq!(emulator.calls_of("cuMemPoolCreate"), 0);
    assert_eq!(heap.reclaim_all().unwrap(), 0);
    // A limit works as with any pool, and can be raised.
    heap.set_limits(Limits { soft: None, hard: Some(64 * MIB) }).unwrap();
    target.filled(65 << 20, 1_u8).unwrap_err();
    heap.set_limits(Limits { soft: None, hard: Some(128 * MIB) }).unwrap();
    drop(target.filled(65 << 20, 1_u8).unwrap());
    assert_all_returned(&device, &heap, "none");
}

#[test]
fn stitchable_memory_is_not_contiguous() {
    let device = emulated(1 << 30, Schedule::Immediate);
    for (pool, stitchable) in [(PoolKind::Stitched, 32 * MIB), (PoolKind::Split, 8 * MIB)] {
        let builder = Heap::builder(&device).pool(pool).slack(0.0).thread_cache(0);
        let heap = builder.build().unwrap();
        let stream = device.stream().unwrap();
        let blocks: Vec<_> = (0..8).map(|_| heap.allocate(8 * MIB, &stream).unwrap()).collect();
        let mut blocks = blocks.into_iter();
        let kept: Vec<_> = std::iter::from_fn(|| {
            drop(blocks.next());
            blocks.next()
        })
        .collect();
        let usage = heap.usage().unwrap();
        let status = heap.memory_status().unwrap();
        assert_eq!(usage.largest_cached_block, 8 * MIB, "{pool}");
        assert_eq!(usage.largest_stitchable, stitchable, "{pool}");
        assert_eq!(status.largest_free_block, 8 * MIB, "{pool}");
        assert_eq!(status.largest_stitchable, stitchable, "{pool}");
        drop(kept);
    }
}

#[test]
fn none_free_waits_for_device() {
    let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, PoolKind::None);
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let [array, others] = [0, 1].map(|at| heap.on(&streams[at]).filled(8192, 1_u8).unwrap());
    assert!(on_real_gpu() || streams.iter().all(|stream| !stream.is_done().unwrap()));
    array.free().unwrap();
    assert!(streams.iter().all(|stream| stream.is_done().unwrap()));
    drop(others);
    assert_all_returned(&device, &heap, "none");
}

/// A pool of the driver gives freed memory back after a wait for the stream of the free.
#[test]
fn release_threshold_bounds_driver_pool() {
    for (threshold, soft, kept) in
        [(None, None, 128), (Some(0), None, 0), (Some(64), None, 64), (Some(64), Some(32), 32)]
    {
        let device = emulated(1 << 30, Schedule::OnDemand);
        let mut builder = Heap::builder(&device).pool(PoolKind::Driver);
        if let Some(threshold) = threshold {
            builder = builder.release_threshold(threshold * MIB);
        }
        if let Some(soft) = soft {
            builder = builder.soft_limit(soft * MIB);
        }
        let heap = builder.build().unwrap();
        let stream = device.stream().unwrap();
        let blocks: Vec<_> = (0..4).map(|_| heap.allocate(32 * MIB, &stream).unwrap()).collect();
        drop(blocks);
        stream.synchronize().unwrap();
        assert_eq!(heap.memory_status().unwrap().cached, kept * MIB, "{threshold:?} {soft:?}");
        assert_all_returned(&device, &heap, "driver");
    }
}

#[test]
fn dropped_array_counts_as_cached() {
    let device = device(1 << 30, Schedule::OnDemand);
    let [mine, other] = [(); 2].map(|()| heap(&device, PoolKind::Split));
    let before = mine.memory_status().unwrap();
    let array = other.target().unwrap().zeroed::<u8, _>(32 << 20).unwrap();
    let status = mine.memory_status().unwrap();
    // On a real GPU other tests free memory at the same time.
    if !on_real_gpu() {
        assert_eq!(status.device_used, before.device_used.map(|used| used + 32 * MIB));
    }
    assert_eq!((status.taken, status.allocated, status.cached), (0, 0, 0));
    drop(array);
    let status = other.memory_status().unwrap();
    assert_eq!((status.allocated, status.cached), (0, 32 * MIB));
    assert_eq!(status.largest_free_block, 32 * MIB);
    assert_all_returned(&device, &other, "split");
}

#[test]
fn status_shows_set_limits_and_kinds() {
    let (device, heap) = make_heap(8 << 30, Schedule::Immediate, PoolKind::Simple);
    assert_eq!(heap.memory_status().unwrap().to_string().lines().count(), 3);
    for (soft, hard, line) in [
        (Some(1 << 30), Some(2 << 30), "\nMemory limit: soft = 1 GiB, hard = 2 GiB"),
        (Some(1 << 30), None, "\nMemory limit: soft = 1 GiB"),
        (None, Some(2 << 30), "\nMemory limit: hard = 2 GiB"),
    ] {
        heap.set_limits(Limits { soft, hard }).unwrap();
        let text = heap.memory_status().unwrap().to_string();
        assert!(text.ends_with(line), "{text}");
    }
    heap.set_limits(Limits::default()).unwrap();
    let target = heap.target().unwrap();
    let pinned = target.kind(MemoryKind::Pinned).zeroed::<u8, _>(1 << 20).unwrap();
    let unified = target.kind(MemoryKind::Unified).zeroed::<u8, _>(2 << 20).unwrap();
    drop(pinned);
    let text = heap.memory_status().unwrap().to_string();
    let lines: Vec<_> = text.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "Unified memory usage: 2 MiB (2 MiB allocated, 0 cached)",
            "Pinned memory usage: 1 MiB (0 allocated, 1 MiB cached)",
        ]
    );
    drop(unified);
    heap.flush().unwrap();
    assert_eq!(heap.memory_status().unwrap().to_string().lines().count(), 3);
    assert_all_returned(&device, &heap, "simple");
}

#[test]
fn status_lists_first_allocations() {
    let device = device(1 << 30, Schedule::Immediate);
    let heap = Heap::builder(&device).track(Tracking::Counts).build().unwrap();
    let target = heap.target().unwrap();
    let mut arrays: Vec<_> = (0..50).map(|_| target.uninit::<u8, _>(1).unwrap()).collect();
    let text = heap.memory_status().unwrap().to_string();
    assert!(!text.contains("more outstanding"), "{text}");
    arrays.push(target.uninit::<u8, _>(1).unwrap());
    let status = heap.memory_status().unwrap();
    let text = status.to_string();
    assert_eq!(status.outstanding.len(), 51);
    assert_eq!(text.matches("Outstanding memory allocation of").count(), 50);
    let last = "1 more outstanding allocation; Heap::leaks groups all of them by the line that \
                allocated";
    assert!(text.ends_with(last), "{text}");
    drop(arrays);
    assert_all_returned(&device, &heap, "split");
}

#[test]
fn json_names_same_figures() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let heap =
        Heap::builder(&device).pool(PoolKind::Binned).pinned_limit(64 * MIB).build().unwrap();
    let _array = heap.target().unwrap().zeroed::<i64, _>(1024).unwrap();
    insta::assert_snapshot!("json", heap.memory_status().unwrap().to_json());
}

#[test]
fn zero_bytes_count_as_allocation() {
    for pool in PoolKind::ALL {
        let device = device(1 << 30, Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).track(Tracking::Counts).build().unwrap();
        let stream = device.stream().unwrap();
        let before = heap.usage().unwrap();
        let blocks = [0; 3].map(|bytes| heap.allocate(bytes, &stream).unwrap());
        assert!(blocks.iter().all(|block| block.address() == 0 && block.block_bytes() == 0));
        let usage = heap.usage().unwrap();
        assert_eq!((usage.stats.allocations, usage.stats.live_allocations), (3, 3), "{pool}");
        assert_eq!((usage.live, usage.live_blocks, usage.live_peak), (0, 0, 0), "{pool}");
        assert_eq!((usage.reserved, usage.cached), (before.reserved, 0), "{pool}");
        drop(blocks);
        assert_eq!(heap.usage().unwrap().stats.frees, 3, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}
