//! Benchmarks parts of the heap on an emulated device: `cargo bench -p gpuheap --bench heap`.
//!
//! * `pair`: an allocation that the cache serves, and its free, for each policy;
//! * `miss`: an allocation that takes memory from the driver, with an empty cache;
//! * `live`: frees the oldest block and allocates one of a random size, with 1,000 to 100,000
//!   blocks live. The cost should not depend on the number of live blocks;
//! * `live-random`: frees a random block instead. The time includes the harness's own access to the
//!   block, which misses the CPU's cache. `harness` times only that access.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use gpuheap::emu::Profile;
use gpuheap::{Block, Device, Heap, PoolKind};
use gpuheap_pool::testing::Random;

fn pair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    for pool in PoolKind::ALL {
        let device = Device::emulated(Profile::h200()).unwrap();
        let heap = Heap::builder(&device).pool(pool).build().unwrap();
        let stream = device.stream().unwrap();
        for bytes in [1 << 10, 1 << 20, 64 << 20] {
            group.bench_function(BenchmarkId::new(pool.name(), bytes), |bencher| {
                bencher.iter(|| drop(heap.allocate(black_box(bytes), &stream).unwrap()));
            });
        }
    }
}

fn miss(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("miss");
    for pool in PoolKind::ALL {
        let device = Device::emulated(Profile::h200()).unwrap();
        let heap = Heap::builder(&device).pool(pool).build().unwrap();
        let stream = device.stream().unwrap();
        for bytes in [1 << 10, 1 << 20, 64 << 20] {
            group.bench_function(BenchmarkId::new(pool.name(), bytes), |bencher| {
                bencher.iter_batched(
                    || heap.reclaim_all().unwrap(),
                    // Criterion drops the block only after it has read the clock.
                    |_| heap.allocate(black_box(bytes), &stream).unwrap(),
                    BatchSize::PerIteration,
                );
            });
        }
    }
}

fn live(criterion: &mut Criterion) {
    for pool in [PoolKind::Binned, PoolKind::Split] {
        for count in [1_000, 10_000, 100_000] {
            exchanges(criterion, "live", pool, count, |at, _, count| (at + 1) % count);
            exchanges(criterion, "live-random", pool, count, |_, random, count| {
                random.below(count as u64) as usize
            });
        }
    }
    let mut group = criterion.benchmark_group("live-random");
    for count in [1_000, 10_000, 100_000] {
        let mut random = Random(count);
        let mut blocks = vec![[0_u64; size_of::<Block>() / 8]; count as usize];
        group.bench_function(BenchmarkId::new("harness", count), |bencher| {
            bencher.iter(|| {
                let at = random.below(count) as usize;
                let bytes = size(&mut random);
                black_box(std::mem::replace(&mut blocks[at], [bytes; size_of::<Block>() / 8]))
            });
        });
    }
}

/// Benchmarks an exchange among `count` live blocks: frees the block that `next` chooses, and
/// allocates a block of another size.
fn exchanges(
    criterion: &mut Criterion,
    name: &str,
    pool: PoolKind,
    count: usize,
    next: impl Fn(usize, &mut Random, usize) -> usize,
) {
    let device = Device::emulated(Profile::h200()).unwrap();
    let heap = Heap::builder(&device).pool(pool).build().unwrap();
    let stream = device.stream().unwrap();
    let mut random = Random(count as u64);
    let mut blocks: Vec<Option<Block>> =
        (0..count).map(|_| Some(heap.allocate(size(&mut random), &stream).unwrap())).collect();
    let mut at = 0;
    let mut exchange = || {
        at = next(at, &mut random, count);
        let bytes = size(&mut random);
        drop(blocks[at].take());
        blocks[at] = Some(heap.allocate(bytes, &stream).unwrap());
    };
    // Makes as many exchanges as there are blocks, to reach the steady state.
    (0..count).for_each(|_| exchange());
    let mut group = criterion.benchmark_group(name);
    group.bench_function(BenchmarkId::new(pool.name(), count), |bencher| {
        bencher.iter(&mut exchange)
    });
}

/// Returns a log-uniform size from 512 bytes to 1 MiB. 100,000 such blocks fit into 141 GiB.
fn size(random: &mut Random) -> u64 {
    1 << (9 + random.below(11)) | random.below(512)
}

criterion_group!(benches, pair, miss, live);
criterion_main!(benches);
