//! Tests of recordings of heaps. The captures have the heaps' own figures.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use gpuheap::emu::{Options, Profile, Schedule};
use gpuheap::{Device, Heap, HeapBuilder, MemoryKind, PoolKind, Tracking};
use gpuheap_trace::{Op, ReadOptions, RecordingEnd, Trace};
use support::device;

#[path = "heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;

/// Number of threads of a test.
const THREADS: u64 = 4;

fn builder() -> (Device, HeapBuilder) {
    let device = device(1 << 30, Schedule::Seeded(3));
    let builder = Heap::builder(&device).without_environment();
    (device, builder)
}

fn traces(path: &Path) -> Vec<Trace> {
    let options = ReadOptions::default().host_memory(true);
    gpuheap_trace::read(path, &options).unwrap()
}

/// All threads hold their largest blocks at the same time, so the peak does not depend on their
/// order.
#[test]
fn capture_has_heaps_own_figures() {
    for pool in PoolKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.gph");
        let (device, builder) = builder();
        let heap = builder.pool(pool).thread_cache(0).record(&path).build().unwrap();
        let barrier = Barrier::new(THREADS as usize);
        let work = |number: u64| {
            let stream = device.stream().unwrap();
            let take = |bytes: u64| heap.allocate(bytes, &stream).unwrap();
            for step in 0..20 {
                drop([take(100 + step), take(3000 * number)]);
            }
            let kept: Vec<_> = (1..20).map(|step| take(step * 10_007)).collect();
            barrier.wait();
            drop(kept);
            barrier.wait();
            std::mem::forget(take(number + 1));
        };
        thread::scope(|scope| {
            let spawn = |number: u64| {
                let builder = thread::Builder::new().name(format!("worker {number}"));
                let work = &work;
                builder.spawn_scoped(scope, move || work(number)).unwrap()
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            // Waits for each thread's end: a scope does not wait for thread-local destructors.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let usage = heap.usage().unwrap();
        drop(heap);
        let trace = &traces(&path)[0];
        let summary = trace.summary();
        let zero_sized = 20;
        assert_eq!(summary.left_live_bytes, usage.live, "{pool}");
        assert_eq!(summary.left_live_bytes, (1..=THREADS).sum::<u64>());
        assert_eq!(summary.peak_live_bytes, usage.live_peak, "{pool}");
        assert_eq!(summary.peak_live_bytes, 190 * 10_007 * THREADS, "{pool}");
        assert_eq!(summary.allocations + zero_sized, usage.stats.allocations);
        assert_eq!(summary.frees + zero_sized, usage.stats.frees);
        let ended = |thread: u32| trace.thread_info(thread).unwrap().ended_ns.is_some();
        let names: Vec<_> = (0..trace.events().len())
            .map(|at| trace.events()[at].thread)
            .filter(|thread| ended(*thread))
            .map(|thread| trace.thread_info(thread).unwrap().name.to_string())
            .collect();
        assert!((0..THREADS).all(|number| names.contains(&format!("worker {number}"))));
    }
}

#[test]
fn capture_names_callers_line() {
    for tracking in [Tracking::Off, Tracking::Counts, Tracking::Backtraces] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.gph");
        let (_, builder) = builder();
        let heap = builder.track(tracking).record(&path).build().unwrap();
        let line = line!() + 1;
        let array = heap.target().unwrap().zeroed::<f32, _>(1000).unwrap();
        let pinned = heap.target().unwrap().kind(MemoryKind::Pinned).array(&[1_u64; 8]).unwrap();
        assert_eq!(heap.memory_status().unwrap().recording.unwrap().path, path);
        drop((array, pinned, heap));
        let traces = traces(&path);
        let events = traces[0].events();
        let site = traces[0].site(events[0].stack);
        assert!(site.starts_with(&format!("recording.rs:{line}")), "{tracking}: {site}");
        assert!(matches!(events[0].op, Op::Allocate { bytes: 4000, .. }));
        assert_eq!(traces[1].summary().peak_live_bytes, 64);
        let recording = traces[0].recording().unwrap();
        assert_eq!(recording.end, RecordingEnd::Exit);
        assert_eq!(recording.devices[0].bytes, 1 << 30);
    }
}

#[test]
fn recording_covers_a_section() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    // The checks are off, so that thread caches serve requests.
    let options = Options { checks: false, ..Options::with_device(Profile::with_memory(1 << 30)) };
    let device = Device::emulated_with(options).unwrap();
    let heap = Heap::builder(&device).without_environment().build().unwrap();
    let stream = device.stream().unwrap();
    let before = heap.allocate(100, &stream).unwrap();
    drop(heap.allocate(1000, &stream).unwrap());
    let recording = heap.record(&path).unwrap();
    assert!(heap.record(folder.path().join("other.gph")).is_err());
    drop(before);
    assert!(heap.allocate_cached(1000, &stream).is_none());
    let kept = heap.allocate(1000, &stream).unwrap();
    drop(heap.allocate(300, &stream).unwrap());
    assert!(heap.leaks().is_err());
    assert_eq!(recording.path(), path);
    drop(recording);
    assert!(heap.memory_status().unwrap().recording.is_none());
    drop(kept);
    // Once the recording has ended, frees and allocations take no lock.
    drop(heap.allocate(1000, &stream).unwrap());
    assert!(heap.allocate_cached(1000, &stream).is_some());
    let summary = traces(&path)[0].summary().clone();
    assert_eq!((summary.allocations, summary.frees), (2, 1));
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (1300, 1000));

    let again = heap.record(&path).unwrap();
    assert_eq!(again.path(), folder.path().join("run.2.gph"));
    drop(heap.allocate(7, &stream).unwrap());
    drop(again);
    assert_eq!(traces(&folder.path().join("run.2.gph"))[0].summary().peak_live_bytes, 7);
    assert_eq!(heap.usage().unwrap().live, 0);
}

#[test]
fn failed_requests_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    let (device, builder) = builder();
    let heap = builder.hard_limit(4 << 20).record(&path).build().unwrap();
    let stream = device.stream().unwrap();
    drop(heap.allocate(1 << 20, &stream).unwrap());
    assert!(heap.allocate(16 << 20, &stream).is_err());
    drop(heap);
    assert_eq!(traces(&path)[0].summary().failures, 1);
}

#[test]
fn unusable_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/run.gph");
    let error = builder().1.record(&path).build().unwrap_err();
    assert!(error.to_string().contains("cannot record to"), "{error}");
    assert!(error.to_string().contains("missing/run.gph"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn heaps_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    let device = device(1 << 30, Schedule::Seeded(3));
    let build = || Heap::builder(&device).without_environment().record(&path).build().unwrap();
    let (one, other) = (build(), build());
    let stream = device.stream().unwrap();
    let blocks = [one.allocate(1000, &stream).unwrap(), other.allocate(500, &stream).unwrap()];
    drop(one);
    drop(blocks);
    drop(other);
    let summary = traces(&path)[0].summary().clone();
    assert_eq!((summary.peak_live_bytes, summary.left_live_bytes), (1500, 0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn sections_have_their_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    let device = device(1 << 30, Schedule::Seeded(3));
    let build = || {
        let builder = Heap::builder(&device).without_environment();
        builder.track(Tracking::Counts).build().unwrap()
    };
    let (one, other) = (build(), build());
    let stream = device.stream().unwrap();
    let (first, second) = (one.record(&path).unwrap(), other.record(&path).unwrap());
    let blocks = [one.allocate(1000, &stream).unwrap(), other.allocate(500, &stream).unwrap()];
    drop(first);
    let third = one.record(&path).unwrap();
    let paths: Vec<_> = [&second, &third].map(|one| one.path().to_owned()).into();
    // The first block was allocated in the first section. Its free is in no section.
    drop(blocks);
    drop((second, third));
    let left = |path| {
        let trace = &traces(path)[0];
        assert!(trace.warnings().is_empty(), "{:?}", trace.warnings());
        let summary = trace.summary();
        (summary.allocations, summary.frees, summary.left_live_bytes)
    };
    assert_eq!(left(&path), (1, 0, 1000));
    assert_eq!(left(&paths[0]), (1, 1, 0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    let error = gpuheap_trace::read(&paths[1], &ReadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("without an allocation"), "{error}");
}

#[test]
fn threads_of_ended_heap_have_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.gph");
    let device = device(1 << 30, Schedule::Seeded(3));
    let build = || Heap::builder(&device).without_environment().record(&path).build().unwrap();
    let (one, other) = (build(), build());
    let run = || {
        let stream = device.stream().unwrap();
        drop(one.allocate(1000, &stream).unwrap());
        drop(one);
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap());
    drop(other);
    let trace = &traces(&path)[0];
    let thread = trace.events()[0].thread;
    assert!(trace.thread_info(thread).unwrap().ended_ns.is_some());
}

/// The recorder opens its file again each time that it extends the file, so it notices that the
/// test removed the file.
#[test]
fn stopped_section_has_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (device, builder) = builder();
    let heap = builder.track(Tracking::Counts).build().unwrap();
    let stream = device.stream().unwrap();
    let recording = heap.record(folder.path().join("run.gph")).unwrap();
    assert_eq!(recording.stopped(), None);
    fs::remove_file(recording.path()).unwrap();
    for _ in 0..1 << 20 {
        drop(heap.allocate(1000, &stream).unwrap());
        if recording.stopped().is_some() {
            break;
        }
    }
    assert!(recording.stopped().unwrap().contains("No such file"));
    drop(heap);
    assert!(recording.stopped().is_some());
}
