//! Tests of threads' own default streams. One handle names a different stream on each thread.

use std::sync::mpsc;
use std::thread;

use gpuheap::emu::Schedule;
use gpuheap::{Block, Device, ErrorKind, Heap, PoolKind, Stream};
use gpuheap_driver::{CUgraph, CUstream, CUstreamCaptureMode, check};

use crate::support::{
    Witness, allocate_filled, assert_all_returned, assert_no_findings, begin_capture, device,
    emulated, fill, heap, make_heap, make_heap_and_stream, on_real_gpu,
};

const MIB: u64 = 1 << 20;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(1), Schedule::Seeded(2)];

/// Returns the calling thread's own default stream.
fn thread_stream(device: &Device) -> Stream {
    // SAFETY: every thread has this stream, and no test uses the stream while its thread ends.
    unsafe { device.foreign_stream(CUstream::PER_THREAD) }.unwrap()
}

/// Runs `work` on a new thread. The thread has ended when this function returns.
fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// Runs a test for each pool and schedule, on a device so small that memory is reused.
fn for_each(test: impl Fn(&Device, &Heap)) {
    for pool in PoolKind::ALL.into_iter().filter(|pool| *pool != PoolKind::Driver) {
        for schedule in SCHEDULES {
            let (device, heap) = make_heap(72 << 20, schedule, pool);
            test(&device, &heap);
            assert_all_returned(&device, &heap, &format!("{pool}, {schedule:?}"));
        }
    }
}

#[test]
fn driver_pool_refuses_thread_stream() {
    let (device, heap) = make_heap(72 << 20, Schedule::Immediate, PoolKind::Driver);
    let (own, ordinary) = (thread_stream(&device), device.stream().unwrap());
    let refused = |error: gpuheap::Error| {
        assert_eq!(error.kind(), ErrorKind::StreamUnusable, "{error}");
        assert!(error.to_string().contains("use a stream of your own"), "{error}");
    };
    refused(heap.allocate(MIB, &own).unwrap_err());
    // A block of an ordinary stream cannot be freed on a thread's default stream.
    refused(heap.allocate(MIB, &ordinary).unwrap().free_on(&own).unwrap_err());
    assert_all_returned(&device, &heap, "driver");
}

/// An array may be used on a thread's default stream, but is not freed there. The array's own
/// stream waits for that use and frees the array.
#[test]
fn driver_pool_array_frees_on_stream() {
    if on_real_gpu() {
        return;
    }
    let device = emulated(72 << 20, Schedule::OnDemand);
    let heap = heap(&device, PoolKind::Driver);
    let waits = || device.emulator().unwrap().calls_of("cuStreamWaitEvent");
    for has_ended in [false, true] {
        let stream = device.stream().unwrap();
        let array = heap.on(&stream).filled(MIB as usize, 1_u8).unwrap();
        let use_array = || {
            let own = thread_stream(&device);
            array.device_ptr(&own).unwrap();
        };
        if has_ended {
            on_a_thread(use_array)
        } else {
            use_array()
        }
        let before = waits();
        drop(array);
        assert_eq!(waits() - before, 1, "the array's own stream waits for the thread's");
    }
    assert_no_findings(&device, "an array of the driver's pool");
    assert_all_returned(&device, &heap, "an array of the driver's pool");
}

#[test]
fn thread_stream_keeps_identity_across_threads() {
    let device = device(1 << 30, Schedule::Immediate);
    let (one, again) = (thread_stream(&device), thread_stream(&device));
    assert_eq!((one.id(), one.raw()), (again.id(), CUstream::PER_THREAD));
    // SAFETY: every thread has this stream.
    let unannounced = unsafe { device.unannounced_stream(CUstream::PER_THREAD) }.unwrap();
    assert_eq!(unannounced.id(), one.id());
    let other = on_a_thread(|| {
        assert_eq!(one.raw(), CUstream::LEGACY);
        let other = thread_stream(&device);
        assert_eq!(other.raw(), CUstream::PER_THREAD);
        other
    });
    assert_ne!(other.id(), one.id());
    assert_eq!((other.raw(), one.raw()), (CUstream::LEGACY, CUstream::PER_THREAD));
    let third = on_a_thread(|| thread_stream(&device).id());
    assert!(third != other.id() && third != one.id(), "an id is never used again");
}

#[test]
fn ended_threads_memory_serves_others() {
    for_each(|device, heap| {
        let stream = device.stream().unwrap();
        for tag in 1..6 {
            let mut witness = Witness::new(device, 2);
            let block =
                on_a_thread(|| allocate_filled(heap, 40 * MIB, tag, &thread_stream(device)));
            drop(block);
            let block = allocate_filled(heap, 40 * MIB, tag + 100, &stream);
            witness.see(&block, tag + 100, &stream);
            drop(block);
            witness.check();
        }
    });
}

#[test]
fn stream_works_after_thread_end() {
    for_each(|device, heap| {
        let other = device.stream().unwrap();
        for tag in 1..4 {
            let mut witness = Witness::new(device, 4);
            let (stream, block) = on_a_thread(|| {
                let stream = thread_stream(device);
                let block = allocate_filled(heap, 40 * MIB, tag, &stream);
                (stream, block)
            });
            witness.see(&block, tag, &stream);
            fill(&block, tag + 10, &stream);
            witness.see(&block, tag + 10, &stream);
            drop(block);
            let block = allocate_filled(heap, 40 * MIB, tag + 20, &other);
            witness.see(&block, tag + 20, &other);
            drop(block);
            assert!(!stream.is_retired());
            stream.synchronize().unwrap();
            witness.check();
        }
    });
}

/// Each of two threads allocates on its own default stream, and frees the other thread's blocks.
/// Every free is ordered after the work on the block's stream. Every second free is also ordered
/// after the work on the freeing thread's stream.
#[test]
fn threads_free_others_blocks() {
    for_each(|device, heap| {
        let (to_first, first) = mpsc::channel::<(Block, u8)>();
        let (to_second, second) = mpsc::channel::<(Block, u8)>();
        let work = |send: mpsc::Sender<_>, receive: mpsc::Receiver<(Block, u8)>, base: u8| {
            let stream = thread_stream(device);
            let mut witness = Witness::new(device, 64);
            for round in 0..8 {
                let tag = base + round;
                let block = allocate_filled(heap, u64::from(round % 3 + 1) * 4 * MIB, tag, &stream);
                witness.see(&block, tag, &stream);
                send.send((block, tag)).unwrap();
                let (theirs, _) = receive.recv().unwrap();
                match round % 2 {
                    0 => drop(theirs),
                    _ => theirs.free_on(&stream).unwrap(),
                }
            }
            witness.check();
        };
        thread::scope(|scope| {
            scope.spawn(|| work(to_second, first, 1));
            scope.spawn(|| work(to_first, second, 101));
        });
    });
}

/// Another thread enqueues work in the order of this thread's default stream. A wait for this
/// stream covers that work.
#[test]
fn wait_covers_other_threads_work() {
    for is_done in [false, true] {
        for schedule in SCHEDULES {
            let (device, heap) = make_heap(1 << 30, schedule, PoolKind::Split);
            let (stream, other) = (thread_stream(&device), device.stream().unwrap());
            let block = heap.allocate(MIB, &stream).unwrap();
            on_a_thread(|| fill(&block, 1, &stream));
            match is_done {
                true => while !stream.is_done().unwrap() {},
                false => stream.synchronize().unwrap(),
            }
            // Only the host's wait orders the fill after the earlier work.
            fill(&block, 2, &other);
            other.synchronize().unwrap();
            drop(block);
            assert_all_returned(&device, &heap, "a wait");
        }
    }
}

#[test]
fn array_crosses_thread_streams() {
    for schedule in SCHEDULES {
        let (device, heap, stream) = make_heap_and_stream(1 << 30, schedule, PoolKind::Split);
        let (array, first) = on_a_thread(|| {
            let first = thread_stream(&device);
            (heap.on(&first).filled(100_000, 3_u8).unwrap(), first)
        });
        let copy = array.copy_to(&heap.on(&stream)).unwrap();
        let mine = copy.copy_to(&heap.on(&thread_stream(&device))).unwrap();
        let back = mine.copy_to(&heap.on(&first)).unwrap();
        drop((array, copy, mine));
        assert_eq!(back.to_vec().unwrap(), vec![3; 100_000]);
        drop((back, first));
        assert_all_returned(&device, &heap, "an array");
    }
}

#[test]
fn thread_stream_can_capture() {
    let (device, heap) = make_heap(1 << 30, Schedule::Immediate, PoolKind::Split);
    let stream = thread_stream(&device);
    drop(heap.allocate(MIB, &stream).unwrap());
    begin_capture(&device, CUstream::PER_THREAD, CUstreamCaptureMode::RELAXED);
    assert!(stream.is_capturing().unwrap());
    assert_eq!(thread_stream(&device).id(), stream.id(), "known before the capture");
    drop(heap.allocate(MIB, &stream).unwrap());
    on_a_thread(|| {
        assert!(stream.is_capturing().unwrap());
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Capturing);
        assert!(!thread_stream(&device).is_capturing().unwrap(), "another stream");
    });
    let mut graph = CUgraph::NULL;
    // SAFETY: the pointer is valid, and the graph belongs to this test.
    let ended = device.with_current(|gpu| unsafe {
        check("end", gpu.cuStreamEndCapture(CUstream::PER_THREAD, &mut graph)).unwrap();
        check("destroy", gpu.cuGraphDestroy(graph))
    });
    ended.unwrap().unwrap();
    drop(stream);
    assert_all_returned(&device, &heap, "a capture");
}

/// The handle of the per-thread default stream means a different stream on each thread. Nothing
/// orders these streams with one another.
#[test]
fn checks_distinguish_thread_streams() {
    if on_real_gpu() {
        return;
    }
    let device = emulated(1 << 30, Schedule::OnDemand);
    let heap = heap(&device, PoolKind::Split);
    let stream = thread_stream(&device);
    let block = allocate_filled(&heap, MIB, 1, &stream);
    assert_no_findings(&device, "its own thread");
    on_a_thread(|| fill(&block, 2, &thread_stream(&device)));
    assert_eq!(device.emulator().unwrap().findings().unwrap().len(), 1);
}
