//! Tests of thread caches. Cached blocks are reused without a driver call, and are never lost.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Block, Device, Heap, PoolKind, Stream};
use gpuheap_driver::CUresult;
use gpuheap_pool::testing::Random;

use crate::support::{
    PAST_SPARE, allocate_filled, assert_all_returned, assert_no_findings, device, emulated, fill,
    free_memory, heap, make_heap, make_heap_and_stream, on_real_gpu, order,
};

/// Pools whose blocks threads cache.
const KEPT: [PoolKind; 3] = [PoolKind::Binned, PoolKind::Split, PoolKind::Stitched];

#[test]
fn thread_reuses_frees_without_driver() {
    for pool in KEPT {
        let (device, heap, stream) = make_heap_and_stream(1 << 30, Schedule::OnDemand, pool);
        let first = heap.allocate(1000, &stream).unwrap();
        let address = first.address();
        drop(first);
        let calls = heap.usage().unwrap().driver_calls;
        for _ in 0..100 {
            let again = heap.allocate(1000, &stream).unwrap();
            assert_eq!(again.address(), address, "{pool}");
        }
        let usage = heap.usage().unwrap();
        assert_eq!(usage.driver_calls, calls, "{pool}");
        assert_eq!((usage.stats.allocations, usage.stats.frees), (101, 101), "{pool}");
        assert_eq!((usage.live, usage.live_peak), (0, 1000), "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn other_stream_takes_cached_blocks_first() {
    for pool in KEPT {
        let (device, heap) = make_heap(1 << 30, Schedule::OnDemand, pool);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let rest = heap.allocate(PAST_SPARE, &streams[0]).unwrap();
        let block = heap.allocate(1 << 16, &streams[0]).unwrap();
        fill(&block, 1, &streams[0]);
        drop(block);
        let taken = heap.usage().unwrap().stats.taken;
        // The work of the first stream is not done, so the second stream has to wait for it.
        let block = heap.allocate(1 << 16, &streams[1]).unwrap();
        fill(&block, 2, &streams[1]);
        assert_eq!(heap.usage().unwrap().stats.taken, taken, "{pool}");
        drop((block, rest));
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn short_thread_takes_others_cache() {
    for pool in KEPT {
        let device = device(1 << 30, Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).hard_limit(64 << 20).thread_cache(1 << 30);
        let heap = heap.build().unwrap();
        let (kept, (end, ended)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            let (heap, device) = (&heap, &device);
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                let blocks: Vec<Block> =
                    (0..256).map(|_| heap.allocate(128 << 10, &stream).unwrap()).collect();
                drop(blocks);
                kept.0.send(()).unwrap();
                // Keeps the thread, and so its cache, until the other thread's request returned.
                let _ = ended.recv();
            });
            kept.1.recv().unwrap();
            let stream = device.stream().unwrap();
            let most = heap.allocate(64 << 20, &stream);
            drop(end);
            assert!(most.is_ok(), "{pool}: {}", most.unwrap_err());
        });
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
#[cfg(feature = "arrays")]
fn heap_ends_with_last_block() {
    for pool in KEPT {
        let device = emulated(1 << 30, Schedule::Immediate);
        let before = free_memory(&device);
        let heap = heap(&device, pool);
        let stream = device.stream().unwrap();
        let (mine, theirs) =
            (heap.allocate(1 << 20, &stream).unwrap(), heap.allocate(1 << 20, &stream).unwrap());
        drop(heap.allocate(5000, &stream).unwrap());
        let other = heap.clone();
        let handed = std::thread::spawn(move || {
            let stream = other.target().unwrap();
            drop(stream.zeroed::<u8, _>(5000).unwrap());
            drop(theirs);
        });
        handed.join().unwrap();
        drop(heap);
        drop(stream);
        assert!(free_memory(&device) < before, "{pool}: a block is there still");
        std::thread::spawn(move || drop(mine)).join().unwrap();
        assert_eq!(free_memory(&device), before, "{pool}");
        assert_no_findings(&device, pool.name());
    }
}

#[test]
fn reacquired_heap_continues() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let before = free_memory(&device);
    let stream = device.stream().unwrap();
    let block = device.heap().unwrap().allocate(1 << 20, &stream).unwrap();
    // The only handle is dropped, and the block keeps the heap alive.
    let heap = device.heap().unwrap();
    assert_eq!(heap.usage().unwrap().live, 1 << 20);
    for _ in 0..10 {
        drop(heap.allocate(4096, &stream).unwrap());
    }
    drop(block);
    assert_eq!(heap.usage().unwrap().stats.frees, 11);
    drop((heap, stream));
    assert_eq!(free_memory(&device), before);
}

/// The last handle and the last blocks are dropped at the same time, each on its own thread. Half
/// of the threads have a cache.
#[test]
fn whoever_is_last_ends_the_heap() {
    for pool in KEPT {
        let device = emulated(1 << 30, Schedule::Immediate);
        let before = free_memory(&device);
        let streams = [(); 4].map(|()| device.stream().unwrap());
        for round in 0..150 {
            let heap = heap(&device, pool);
            let blocks = streams.each_ref().map(|one| heap.allocate(64 << 10, one).unwrap());
            let start = Barrier::new(blocks.len() + 1);
            std::thread::scope(|scope| {
                for (at, block) in blocks.into_iter().enumerate() {
                    let (own, stream, start) = (heap.clone(), &streams[at], &start);
                    scope.spawn(move || {
                        if at % 2 == 0 {
                            drop(own.allocate(5000, stream).unwrap());
                        }
                        drop(own);
                        start.wait();
                        drop(block);
                    });
                }
                start.wait();
                drop(heap);
            });
            assert_eq!(free_memory(&device), before, "{pool}, round {round}");
        }
        assert_no_findings(&device, pool.name());
    }
}

/// Threads drop the device's own heap while other threads acquire it. Blocks outlive the handles.
#[test]
fn concurrent_drop_and_reacquire_lose_nothing() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let before = free_memory(&device);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let (mut random, stream) = (Random(thread), device.stream().unwrap());
                let mut held = Vec::new();
                for _ in 0..400 {
                    let heap = device.heap().unwrap();
                    let block =
                        allocate_filled(&heap, 1 + random.below(100_000), thread as u8, &stream);
                    held.push(block);
                    drop(heap);
                    if random.below(2) == 0 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert_eq!(free_memory(&device), before);
    assert_no_findings(&device, "let go of and asked for");
}

/// Threads end while the last handles of their heap are dropped, so both may give back a thread's
/// cache. Threads of the next heap reuse these caches. No cache may serve two threads.
#[test]
fn returned_cache_serves_one_thread() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let streams = [(); 4].map(|()| device.stream().unwrap());
    for round in 0..300 {
        let heap = heap(&device, PoolKind::Binned);
        let held = Mutex::new(BTreeSet::new());
        let start = Barrier::new(streams.len());
        std::thread::scope(|scope| {
            for stream in &streams {
                let (own, held, start) = (heap.clone(), &held, &start);
                scope.spawn(move || {
                    drop(own.allocate(4096, stream).unwrap());
                    start.wait();
                    for _ in 0..20 {
                        let block = own.allocate(4096, stream).unwrap();
                        let is_new = held.lock().unwrap().insert(block.address());
                        assert!(is_new, "round {round}: {block:?} is another thread's too");
                        held.lock().unwrap().remove(&block.address());
                    }
                    assert!(own.usage().unwrap().stats.allocations > 20);
                    start.wait();
                });
            }
            drop(heap);
        });
    }
    assert_no_findings(&device, "caches");
}

#[test]
fn frees_that_fail_keep_the_account() {
    for pool in KEPT {
        let device = emulated(1 << 30, Schedule::Immediate);
        let emulator = device.emulator().unwrap();
        let heap = Heap::builder(&device).pool(pool).soft_limit(4 << 20).build().unwrap();
        let stream = device.stream().unwrap();
        let blocks: Vec<Block> =
            (0..8).map(|_| heap.allocate(16 << 20, &stream).unwrap()).collect();
        let symbols = ["cuMemFree_v2", "cuMemUnmap", "cuMemRelease"];
        let fails = |symbol| Fault::nth(symbol, 1, CUresult::ERROR_UNKNOWN).onwards();
        emulator.set_faults(FaultPlan::new(symbols.map(fails)));
        // Half of the blocks are freed by `free` and return errors. The heap counts all failures.
        let failed = blocks.into_iter().enumerate().filter_map(|(at, block)| match at % 2 {
            0 => block.free().err(),
            _ => None,
        });
        assert_eq!(failed.count(), 4, "{pool}");
        emulator.set_faults(FaultPlan::default());
        let stats = heap.usage().unwrap().stats;
        assert_eq!(stats.failed_frees, 8, "{pool}");
        assert_eq!((stats.live, stats.live_blocks, stats.live_allocations), (0, 0, 0), "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// A freed block that cannot be filled with zeros is not reused. The heap still ends after this
/// last free, and gives the memory back.
#[test]
fn failing_last_free_ends_heap() {
    for pool in KEPT {
        let device = emulated(1 << 30, Schedule::Immediate);
        let before = free_memory(&device);
        let emulator = device.emulator().unwrap();
        let heap = Heap::builder(&device).pool(pool).zero_on_free(true).build().unwrap();
        let stream = device.stream().unwrap();
        let block = heap.allocate(1 << 20, &stream).unwrap();
        drop(heap);
        let fault = Fault::nth("cuMemsetD8Async", 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([fault]));
        assert!(block.free().is_err(), "{pool}");
        emulator.set_faults(FaultPlan::default());
        assert_eq!(free_memory(&device), before, "{pool}");
        assert_no_findings(&device, pool.name());
    }
}

#[test]
fn soft_limit_empties_thread_caches() {
    for pool in KEPT {
        let device = device(1 << 30, Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).soft_limit(4 << 20).build().unwrap();
        let stream = device.stream().unwrap();
        let blocks: Vec<Block> =
            (0..64).map(|_| heap.allocate(256 << 10, &stream).unwrap()).collect();
        assert!(heap.usage().unwrap().reserved > 4 << 20, "{pool}");
        drop(blocks);
        device.synchronize().unwrap();
        let usage = heap.usage().unwrap();
        assert!(usage.reserved <= 4 << 20, "{pool}: {usage:?}");
        assert_all_returned(&device, &heap, pool.name());
    }
}

#[test]
fn more_streams_than_cache_places_work() {
    for pool in KEPT {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(3), pool);
        let streams: Vec<Stream> = (0..150).map(|_| device.stream().unwrap()).collect();
        for _ in 0..3 {
            for stream in &streams {
                let block = heap.allocate(3000, stream).unwrap();
                fill(&block, 5, stream);
            }
        }
        drop(streams);
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// Channel for blocks that one thread passes to another, each with the stream of its last use.
type Post = (Sender<(Block, Stream)>, Arc<Mutex<Receiver<(Block, Stream)>>>);

/// Runs a thread that allocates, passes blocks on, frees blocks of other threads and drops streams.
/// It ends at a random point, sometimes by a panic.
fn wander(heap: &Heap, device: &Device, post: &Post, seed: u64) {
    let mut random = Random(seed);
    let mut streams = vec![device.stream().unwrap()];
    let mut held: Vec<(Block, Stream)> = Vec::new();
    for _ in 0..random.below(400) {
        match random.below(10) {
            0 => streams.push(device.stream().unwrap()),
            1 if streams.len() > 1 => {
                streams.swap_remove(random.below(streams.len() as u64) as usize);
            }
            2 if !held.is_empty() => {
                let at = random.below(held.len() as u64) as usize;
                post.0.send(held.swap_remove(at)).unwrap();
            }
            3 => {
                let got = post.1.lock().unwrap().try_recv();
                held.extend(got);
            }
            4 | 5 if !held.is_empty() => {
                let (block, last) = held.swap_remove(random.below(held.len() as u64) as usize);
                let stream = &streams[random.below(streams.len() as u64) as usize];
                if random.below(2) == 0 {
                    order(device, &last, stream);
                    block.free_on(stream).unwrap();
                }
            }
            6 if random.below(40) == 0 => panic!("on purpose"),
            _ => {
                let stream = &streams[random.below(streams.len() as u64) as usize];
                let bytes = 1 << random.below(21) | random.below(999);
                let block = heap.allocate(bytes, stream).unwrap();
                fill(&block, seed as u8, stream);
                held.push((block, stream.clone()));
            }
        }
    }
}

#[test]
fn ending_threads_and_streams_lose_nothing() {
    let rounds = if on_real_gpu() { 3 } else { 12 };
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(11), pool);
        let (sender, receiver) = channel();
        let post: Post = (sender, Arc::new(Mutex::new(receiver)));
        for round in 0..rounds {
            std::thread::scope(|scope| {
                for thread in 0..6 {
                    let (heap, device, post) = (&heap, &device, post.clone());
                    scope.spawn(move || {
                        let wandered = AssertUnwindSafe(|| {
                            wander(heap, device, &post, 1 + round * 6 + thread);
                        });
                        // If the work panics, the values that it holds are dropped.
                        let _ = catch_unwind(wandered);
                    });
                }
            });
            let usage = heap.usage().unwrap();
            let stats = usage.stats;
            assert_eq!(stats.allocations - stats.frees, stats.live_allocations, "{pool}");
            let waiting: Vec<_> = post.1.lock().unwrap().try_iter().collect();
            let live: u64 = waiting.iter().map(|(block, _)| block.bytes()).sum();
            assert_eq!(
                (usage.live, stats.live_allocations),
                (live, waiting.len() as u64),
                "{pool}"
            );
            waiting.into_iter().for_each(|one| post.0.send(one).unwrap());
        }
        drop(post);
        assert_all_returned(&device, &heap, pool.name());
    }
}
