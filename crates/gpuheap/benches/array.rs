//! Cost of arrays and of tracking, on an emulated device or on `GPUHEAP_TEST_DEVICE`:
//! `cargo bench -p gpuheap --bench array`.
//!
//! * `pair`: from cache, a block of the raw heap and an array, each made and dropped. Their
//!   difference is the cost of an array.
//! * `tracking`: an array made and dropped with tracking off, with counts, and with backtraces of
//!   stacks of 12 and 30 frames. Frames of gpuheap and of the thread's start are included.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gpuheap::emu::Profile;
use gpuheap::{Device, Heap, Target, Tracking};

fn heap(tracking: Tracking) -> Heap {
    let device = match std::env::var("GPUHEAP_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap(),
        Err(_) => Device::emulated(Profile::h200()).unwrap(),
    };
    Heap::builder(&device).without_environment().track(tracking).build().unwrap()
}

fn pair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    let heap = heap(Tracking::Off);
    let target = heap.target().unwrap();
    for bytes in [1 << 10, 1 << 20, 64 << 20] {
        group.bench_function(BenchmarkId::new("block", bytes), |bencher| {
            bencher.iter(|| drop(heap.allocate(black_box(bytes), target.stream()).unwrap()));
        });
        group.bench_function(BenchmarkId::new("array", bytes), |bencher| {
            bencher.iter(|| drop(target.uninit::<u8, _>(black_box(bytes) as usize).unwrap()));
        });
    }
}

fn tracking(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tracking");
    for (tracking, depth) in [
        (Tracking::Off, 10),
        (Tracking::Counts, 10),
        (Tracking::Backtraces, 12),
        (Tracking::Backtraces, 30),
    ] {
        let heap = heap(tracking);
        group.bench_function(BenchmarkId::new(tracking.name(), depth), |bencher| {
            let least = at_depth(&heap, 0, frames);
            assert!(tracking != Tracking::Backtraces || least <= depth, "{least} frames at least");
            let levels = depth.saturating_sub(least);
            bencher
                .iter_custom(|count| at_depth(&heap, levels, move |target| pairs(target, count)));
        });
    }
}

/// Times `count` pairs.
fn pairs(target: &Target, count: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        drop(target.uninit::<u8, _>(black_box(1024)).unwrap());
    }
    start.elapsed()
}

/// Returns the number of frames in the stack kept for an allocation; zero if no stack is kept.
fn frames(target: &Target) -> usize {
    let _array = target.uninit::<u8, _>(1024).unwrap();
    let outstanding = target.heap().outstanding().unwrap_or_default();
    outstanding.first().map_or(0, |one| one.stack.depth())
}

/// Runs `body` on a thread of its own, under `levels` more frames. A harness's own stack is deeper
/// than 10.
fn at_depth<R: Send + 'static>(
    heap: &Heap,
    levels: usize,
    body: impl Fn(&Target) -> R + Send + 'static,
) -> R {
    let target = heap.target().unwrap();
    std::thread::spawn(move || nested(levels, &target, &body)).join().unwrap()
}

#[inline(never)]
fn nested<R>(levels: usize, target: &Target, body: &dyn Fn(&Target) -> R) -> R {
    match levels {
        0 => black_box(body(target)),
        _ => black_box(nested(black_box(levels - 1), target, body)),
    }
}

criterion_group!(benches, pair, tracking);
criterion_main!(benches);
