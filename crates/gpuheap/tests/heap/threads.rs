//! Tests of several threads that use one heap. Each thread has its own streams.

use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap::emu::Schedule;
use gpuheap::{Block, PoolKind, Stream};
use gpuheap_pool::testing::Random;

use crate::support::{Witness, assert_all_returned, device, fill, make_heap, on_real_gpu};

/// Runs one thread's work. Allocates blocks of random sizes, and keeps up to `most` of them. Each
/// block is written after its allocation and checked before its free.
fn work(
    heap: &gpuheap::Heap,
    device: &gpuheap::Device,
    seed: u64,
    rounds: u64,
    most: usize,
    failures: &AtomicU64,
) {
    let mut random = Random(seed);
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let mut witness = Witness::new(device, rounds as usize + most);
    let mut held: Vec<(Block, usize, u8)> = Vec::new();
    let free = |held: &mut Vec<(Block, usize, u8)>, at: usize, witness: &mut Witness<'_>| {
        let (block, stream, tag) = held.swap_remove(at);
        let stream: &Stream = &streams[stream];
        witness.see(&block, tag, stream);
        block.free_on(stream).unwrap();
    };
    for round in 0..rounds {
        if held.len() == most || (!held.is_empty() && random.below(5) < 2) {
            let at = random.below(held.len() as u64) as usize;
            free(&mut held, at, &mut witness);
            continue;
        }
        let stream = random.below(2) as usize;
        let bytes = 1 << (8 + random.below(15)) | random.below(4096);
        match heap.allocate(bytes, &streams[stream]) {
            Ok(block) => {
                let tag = (seed + round) as u8 | 1;
                fill(&block, tag, &streams[stream]);
                held.push((block, stream, tag));
            }
            Err(error) => {
                let evidence = error.out_of_memory().unwrap_or_else(|| panic!("{error}"));
                // The last attempt was made with the other threads paused, and the error has the
                // figures of that attempt. They show that a manual reclaim would not have helped.
                assert!(evidence.largest_cached_block < evidence.requested, "{error}");
                assert_eq!(evidence.pending, 0, "{error}");
                failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    while !held.is_empty() {
        free(&mut held, 0, &mut witness);
    }
    witness.check();
}

#[test]
fn threads_share_heap() {
    for pool in PoolKind::ALL {
        let (device, heap) = make_heap(1 << 30, Schedule::Seeded(7), pool);
        let failures = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..6 {
                let (heap, device, failures) = (&heap, &device, &failures);
                scope.spawn(move || work(heap, device, seed, 300, 12, failures));
            }
        });
        assert_eq!(failures.into_inner(), 0, "{pool}: a GiB is enough for this");
        assert_all_returned(&device, &heap, pool.name());
    }
}

/// 16 threads request more than a limit allows. A request may fail only if live memory leaves no
/// room, but not because other threads cache memory.
#[test]
fn threads_fail_only_for_live_memory() {
    use PoolKind::{Binned, Driver, Simple, Split, Stitched};
    for pool in [Simple, Binned, Split, Stitched, Driver] {
        let device = device(4 << 30, Schedule::Seeded(11));
        let limit: u64 = 40 << 20;
        let heap = gpuheap::Heap::builder(&device).pool(pool).hard_limit(limit).build().unwrap();
        let rounds = if on_real_gpu() { 1000 } else { 400 };
        let failures = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..16 {
                let (heap, device, failures) = (&heap, &device, &failures);
                // 16 threads with up to 40 blocks of up to 4 MiB need more than the limit.
                scope.spawn(move || work(heap, device, 100 + seed, rounds, 40, failures));
            }
        });
        assert_ne!(failures.into_inner(), 0, "{pool}: memory was never short");
        assert!(heap.usage().unwrap().reserved_peak <= limit, "{pool}");
        assert_all_returned(&device, &heap, pool.name());
    }
}
