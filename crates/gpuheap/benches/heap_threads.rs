//! Benchmarks the heap under several threads, on an emulated device: `cargo bench -p gpuheap
//! --bench heap_threads`.
//!
//! * `threads`: 1 to 16 threads, each with a stream and sixteen live blocks of 256 B to 512 KiB. An
//!   iteration frees one block and allocates another on every thread. The time of an iteration does
//!   not depend on the number of threads if they share nothing and there are enough cores;
//! * `free-elsewhere`: one thread allocates, and another thread frees.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gpuheap::emu::Profile;
use gpuheap::{Block, Device, Heap, PoolKind, Stream};

/// Number of live blocks in each thread.
const RING: usize = 16;
/// Number of blocks that are passed to the other thread at a time.
const HANDFUL: u64 = 64;

fn threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("threads");
    for pool in PoolKind::ALL {
        let (device, heap) = heap(pool);
        for count in [1, 2, 4, 8, 16] {
            let streams: Vec<Stream> = (0..count).map(|_| device.stream().unwrap()).collect();
            group.bench_function(BenchmarkId::new(pool.name(), count), |bencher| {
                bencher.iter_custom(|pairs| in_rings(&heap, &streams, pairs));
            });
        }
    }
}

/// Returns how long the slowest thread takes to free and allocate `pairs` blocks. Timing starts
/// once all threads run.
fn in_rings(heap: &Heap, streams: &[Stream], pairs: u64) -> Duration {
    let begin = Barrier::new(streams.len());
    thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .map(|stream| {
                let begin = &begin;
                scope.spawn(move || {
                    let mut ring = [const { None }; RING];
                    exchange(heap, stream, &mut ring, 20 * RING as u64);
                    begin.wait();
                    let start = Instant::now();
                    exchange(heap, stream, &mut ring, pairs);
                    start.elapsed()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    })
}

fn exchange(heap: &Heap, stream: &Stream, ring: &mut [Option<Block>; RING], pairs: u64) {
    for pair in 0..pairs {
        let slot = &mut ring[pair as usize % RING];
        drop(slot.take());
        *slot = Some(heap.allocate(black_box(size(pair)), stream).unwrap());
    }
}

fn free_elsewhere(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("free-elsewhere");
    for pool in PoolKind::ALL {
        let (device, heap) = heap(pool);
        let stream = device.stream().unwrap();
        for timed in ["free", "allocation"] {
            group.bench_function(BenchmarkId::new(pool.name(), timed), |bencher| {
                bencher.iter_custom(|blocks| {
                    let rounds = blocks.div_ceil(HANDFUL);
                    let [allocations, frees] = in_turns(&heap, &stream, rounds);
                    let time = if timed == "free" { frees } else { allocations };
                    time.mul_f64(blocks as f64 / (rounds * HANDFUL) as f64)
                });
            });
        }
    }
}

/// Returns the time of all allocations on this thread, and the time of their frees on another
/// thread. If a free leaves work to a later allocation, the work counts as allocation time.
fn in_turns(heap: &Heap, stream: &Stream, rounds: u64) -> [Duration; 2] {
    let (give, taken) = channel::<Vec<Block>>();
    let (give_back, given_back) = channel();
    thread::scope(|scope| {
        let freeing = scope.spawn(move || {
            let mut spent = Duration::ZERO;
            for mut blocks in taken {
                let start = Instant::now();
                blocks.drain(..).for_each(drop);
                spent += start.elapsed();
                give_back.send(blocks).unwrap();
            }
            spent
        });
        let (mut spent, mut blocks) = (Duration::ZERO, Vec::with_capacity(HANDFUL as usize));
        for _ in 0..rounds {
            let start = Instant::now();
            blocks.extend((0..HANDFUL).map(|at| heap.allocate(size(at), stream).unwrap()));
            spent += start.elapsed();
            give.send(blocks).unwrap();
            blocks = given_back.recv().unwrap();
        }
        drop(give);
        [spent, freeing.join().unwrap()]
    })
}

fn heap(pool: PoolKind) -> (Device, Heap) {
    let device = Device::emulated(Profile::h200()).unwrap();
    let heap = Heap::builder(&device).pool(pool).build().unwrap();
    (device, heap)
}

/// Returns a power of two from 256 B to 512 KiB, chosen by a hash of `number`.
fn size(number: u64) -> u64 {
    256 << ((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 12)
}

criterion_group!(benches, threads, free_elsewhere);
criterion_main!(benches);
