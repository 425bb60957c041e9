//! What tracking costs: `cargo bench -p gpuheap --bench track`.
//!
//! `pair`: an allocation and its free, off, with counts, and with backtraces of stacks of 10 and 30
//! frames; the tracker's own and those of the thread's start are among them.

#![expect(clippy::unwrap_used, reason = "a bench that fails says where")]

// The tracker is inside of the library, and a heap around it would be measured too.
#[allow(dead_code, missing_docs, unreachable_pub, unused_imports, reason = "it is the library's")]
#[path = "../src/track/mod.rs"]
mod track;

use std::hint::black_box;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gpuheap::{Bytes, MemoryKind};
use track::{Tracker, Tracking};

/// The frames of a thread that calls `nested` with no levels.
const LEAST: usize = 10;

fn pair(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    for (tracking, depth) in [
        (Tracking::Off, 10),
        (Tracking::Counts, 10),
        (Tracking::Backtraces, 10),
        (Tracking::Backtraces, 30),
    ] {
        let tracker = Tracker::new(tracking);
        group.bench_function(BenchmarkId::new(tracking.name(), depth), |bencher| {
            let frames = at_depth(&tracker, depth, frames);
            assert!(tracking != Tracking::Backtraces || frames == depth, "{frames} of {depth}");
            bencher.iter_custom(|count| {
                at_depth(&tracker, depth, move |tracker| pairs(tracker, count))
            });
        });
    }
}

/// The time of `count` pairs.
fn pairs(tracker: &Tracker, count: u64) -> Duration {
    let start = Instant::now();
    for address in 0..count {
        if let Some(id) = allocate(tracker, address) {
            tracker.freed(id);
        }
    }
    start.elapsed()
}

/// How many frames a stack has that is kept by an allocation.
fn frames(tracker: &Tracker) -> usize {
    let id = allocate(tracker, 0);
    let frames = tracker.outstanding().first().map_or(0, |one| one.stack.depth());
    id.into_iter().for_each(|id| tracker.freed(id));
    frames
}

fn allocate(tracker: &Tracker, address: u64) -> Option<track::TrackId> {
    tracker.allocated(black_box(address), 8, MemoryKind::Device, Location::caller())
}

/// Runs `body` on a thread of its own, where a stack that is kept has `depth` frames: a harness's
/// own stack is deeper than 10.
fn at_depth<R: Send + 'static>(
    tracker: &Arc<Tracker>,
    depth: usize,
    body: impl Fn(&Tracker) -> R + Send + 'static,
) -> R {
    let tracker = tracker.clone();
    std::thread::spawn(move || nested(depth - LEAST, &tracker, &body)).join().unwrap()
}

#[inline(never)]
fn nested<R>(levels: usize, tracker: &Tracker, body: &dyn Fn(&Tracker) -> R) -> R {
    match levels {
        0 => black_box(body(tracker)),
        _ => black_box(nested(black_box(levels - 1), tracker, body)),
    }
}

criterion_group!(benches, pair);
criterion_main!(benches);
