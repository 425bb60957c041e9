//! Tests streams that the program makes and destroys itself.

use gpuheap::emu::Schedule;
use gpuheap::{Heap, PoolKind};
use gpuheap_capi::gpuheap_heap;
use gpuheap_driver::{CUgraph, CUstream, CUstreamCaptureMode, check};

use crate::client::{Client, Status, destroy_stream, make_stream, order};
use crate::support::emulated;

const SCHEDULES: [Schedule; 3] = [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(5)];

/// The emulator's device is so small that the second block must reuse the first block's memory.
#[test]
fn ended_streams_memory_is_reused_safely() {
    for (pool, schedule) in PoolKind::ALL.into_iter().flat_map(|pool| SCHEDULES.map(|s| (pool, s)))
    {
        let device = crate::support::device(64 << 20, schedule);
        let client = Client::new(&device, pool);
        let other = make_stream(&device);
        for round in 0..6 {
            let stream = make_stream(&device);
            let memory = client.allocate(40 << 20, stream).unwrap();
            memory.fill(&device, round, stream);
            // In every second round, the block outlives its stream.
            let outlives = round % 2 == 0;
            if !outlives {
                assert_eq!(client.free(memory), Status::Ok);
            }
            assert_eq!(client.stream_ended(stream), Status::Ok);
            destroy_stream(&device, stream);
            if outlives {
                assert_eq!(client.free(memory), Status::Ok);
            }
            let memory = client.allocate(40 << 20, other).unwrap();
            memory.fill(&device, round, other);
            assert_eq!(client.free_on(memory, other), Status::Ok);
        }
        client.assert_all_returned(pool.name());
        destroy_stream(&device, other);
    }
}

/// Tests the header's guarantee for captures: the calls are not part of the graph and do not break
/// the capture.
#[test]
fn capturing_stream_allocates_and_frees() {
    let pools = PoolKind::ALL.into_iter();
    for pool in pools.filter(|pool| *pool != PoolKind::Driver) {
        for unannounced in [false, true] {
            let device = crate::support::device(256 << 20, Schedule::OnDemand);
            let client = match unannounced {
                false => Client::new(&device, pool),
                true => Client::with_unannounced_streams(&device, pool, false),
            };
            let [stream, unknown, other] = [(); 3].map(|()| make_stream(&device));
            let before = client.allocate(1 << 20, stream).unwrap();
            let mut after = Vec::new();
            for stream in [stream, unknown] {
                let begun = device.with_current(|driver| {
                    // SAFETY: the stream is alive.
                    unsafe { driver.cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::GLOBAL) }
                });
                check("cuStreamBeginCapture_v2", begun.unwrap()).unwrap();
            }
            for stream in [stream, unknown] {
                let [freed, late] = [3 << 20, 1 << 20].map(|bytes| {
                    let memory = client.allocate(bytes, stream).unwrap();
                    memory.fill(&device, 1, stream);
                    memory
                });
                assert_eq!(client.free(freed), Status::Ok, "{pool}");
                after.push(late);
            }
            let theirs = client.allocate(5 << 20, other).unwrap();
            assert_eq!(client.free(theirs), Status::Ok, "{pool}");
            for stream in [stream, unknown] {
                let mut graph = CUgraph::NULL;
                let ended = device.with_current(|driver| {
                    // SAFETY: the stream is alive, the pointer is valid, and the graph belongs to
                    // this test.
                    unsafe {
                        check("cuStreamEndCapture", driver.cuStreamEndCapture(stream, &mut graph))?;
                        check("cuGraphDestroy", driver.cuGraphDestroy(graph))
                    }
                });
                ended.unwrap().unwrap();
            }
            assert_eq!(client.free(before), Status::Ok, "{pool}");
            for memory in after {
                assert_eq!(client.free(memory), Status::Ok, "{pool}");
            }
            client.assert_all_returned(pool.name());
            for stream in [stream, unknown, other] {
                destroy_stream(&device, stream);
            }
        }
    }
}

#[test]
fn memory_crosses_streams_in_order() {
    for pool in PoolKind::ALL {
        let device = crate::support::device(64 << 20, Schedule::Seeded(8));
        let client = Client::new(&device, pool);
        let streams =
            [CUstream::NULL, make_stream(&device), make_stream(&device), CUstream::LEGACY];
        for round in 0..12 {
            let stream = streams[round % 4];
            let memory = client.allocate(40 << 20, stream).unwrap();
            memory.fill(&device, round as u8, stream);
            let freed =
                if round % 3 == 0 { client.free_on(memory, stream) } else { client.free(memory) };
            assert_eq!(freed, Status::Ok, "{pool}");
        }
        client.assert_all_returned(pool.name());
    }
}

/// Once the program has announced the end of a stream, the heap does not use the stream. On the
/// emulator, a call with a stale handle fails and is a finding.
#[test]
fn heap_works_after_streams_ended() {
    for pool in PoolKind::ALL {
        let (device, client) = Client::scheduled(Schedule::OnDemand, pool);
        let mut kept = Vec::new();
        for round in 0..20 {
            let stream = make_stream(&device);
            for bytes in [1000, 3 << 20] {
                let memory = client.allocate(bytes, stream).unwrap();
                memory.fill(&device, round, stream);
                assert_eq!(client.free(memory), Status::Ok);
                kept.push(client.allocate(bytes, stream).unwrap());
            }
            assert_eq!(client.stream_ended(stream), Status::Ok);
            // gpuheap_stream_ended may be called again, as long as the handle does not belong to a
            // new stream.
            assert_eq!(client.stream_ended(stream), Status::Ok);
            destroy_stream(&device, stream);
            if round % 4 == 3 {
                assert!(kept.drain(..).all(|memory| client.free(memory) == Status::Ok));
                client.statistics();
            }
            if round % 5 == 4 {
                client.inside().1.reclaim(1).unwrap();
            }
        }
        let now = client.statistics();
        assert_eq!((now.live, now.failed_frees), (0, 0), "{pool}: {now:?}");
        client.assert_all_returned(pool.name());
    }
}

#[test]
fn unknown_stream_end_changes_nothing() {
    let (device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let unseen = make_stream(&device);
    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();
    for stream in [unseen, CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD] {
        assert_eq!(client.stream_ended(stream), Status::Ok);
    }
    assert_eq!(client.free_on(memory, CUstream::LEGACY), Status::Ok);
    client.assert_all_returned("no matter");
}

/// Each round allocates on a new thread. The emulated device is so small that the thread gets
/// memory that was freed on the previous thread's stream.
#[test]
fn per_thread_stream_differs_by_thread() {
    let cases = PoolKind::ALL.into_iter().flat_map(|pool| SCHEDULES.map(|s| (pool, s)));
    for ((pool, schedule), unannounced) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let device = crate::support::device(72 << 20, schedule);
        let client = match unannounced {
            false => Client::new(&device, pool),
            true => Client::with_unannounced_streams(&device, pool, false),
        };
        let own = CUstream::PER_THREAD;
        if pool == PoolKind::Driver {
            // The pool "driver" refuses a thread's own stream, because the driver may hang if the
            // memory is freed after the thread has ended.
            assert_eq!(client.allocate(1 << 20, own).unwrap_err(), Status::Refused);
            continue;
        }
        for round in 0..6 {
            let memory = std::thread::scope(|scope| {
                let allocating = scope.spawn(|| {
                    let memory = client.allocate(40 << 20, own).unwrap();
                    memory.fill(&device, round, own);
                    memory
                });
                allocating.join().unwrap()
            });
            // This is another thread's own stream. It does not wait for the first thread's stream.
            let other = client.allocate(1 << 20, own).unwrap();
            other.fill(&device, round, own);
            assert_eq!((client.free(memory), client.free(other)), (Status::Ok, Status::Ok));
        }
        client.assert_all_returned(pool.name());
    }
}

/// Other streams get the memory of a stream that ended unannounced. The emulator's device is so
/// small that they must reuse that memory.
#[test]
fn unannounced_streams_may_end() {
    let cases = PoolKind::ALL.into_iter().flat_map(|pool| SCHEDULES.map(|s| (pool, s)));
    for ((pool, schedule), zero) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let device = crate::support::device(72 << 20, schedule);
        let client = Client::with_unannounced_streams(&device, pool, zero);
        let kept = make_stream(&device);
        for round in 0..8 {
            let [stream, other] = [make_stream(&device), make_stream(&device)];
            let small = client.allocate(1000, stream).unwrap();
            let memory = client.allocate(40 << 20, stream).unwrap();
            let outlives = client.allocate(2000, stream).unwrap();
            [small, memory, outlives].iter().for_each(|memory| memory.fill(&device, round, stream));
            assert_eq!(client.free(memory), Status::Ok);
            assert_eq!(client.free_on(small, stream), Status::Ok);
            order(&device, stream, kept);
            destroy_stream(&device, stream);
            client.statistics();
            let memory = client.allocate(40 << 20, other).unwrap();
            memory.fill(&device, round, other);
            // Frees a block whose stream has ended, in the order of a live stream.
            assert_eq!(client.free_on(outlives, kept), Status::Ok);
            match round % 3 {
                0 => assert_eq!(client.free(memory), Status::Ok),
                1 => {
                    order(&device, other, kept);
                    assert_eq!(client.free_on(memory, kept), Status::Ok);
                }
                _ => {
                    assert_eq!(client.free(memory), Status::Ok);
                    // A stream's end may also be announced after the stream was destroyed.
                    destroy_stream(&device, other);
                    assert_eq!(client.stream_ended(other), Status::Ok);
                    continue;
                }
            }
            destroy_stream(&device, other);
        }
        client.assert_all_returned(&format!("{pool}, {schedule:?}, zero {zero}"));
        destroy_stream(&device, kept);
    }
}

/// Two devices use equal handles. Each handle is used again after its stream's announced end.
#[test]
fn thread_uses_many_heaps_and_streams() {
    let devices = [emulated(1 << 30, Schedule::Seeded(3)), emulated(1 << 30, Schedule::Seeded(4))];
    let heaps: Vec<Vec<Client>> = devices
        .iter()
        .map(|device| [PoolKind::Split, PoolKind::Binned].map(|pool| Client::new(device, pool)))
        .map(Vec::from)
        .collect();
    // The emulators of different devices give out equal handles.
    let streams: Vec<[CUstream; 20]> =
        devices.iter().map(|device| [(); 20].map(|()| make_stream(device))).collect();
    assert_eq!(streams[0], streams[1]);
    for round in 0..3 {
        for (device, heaps, streams) in (0..2).map(|at| (&devices[at], &heaps[at], &streams[at])) {
            for (stream, client) in streams.iter().flat_map(|s| heaps.iter().map(move |h| (*s, h)))
            {
                let memory = client.allocate(1000, stream).unwrap();
                memory.fill(device, round, stream);
                assert_eq!(client.free(memory), Status::Ok);
                if round == 1 {
                    assert_eq!(client.stream_ended(stream), Status::Ok);
                }
            }
        }
    }
    for client in heaps.iter().flatten() {
        client.inside().1.reclaim_all().unwrap();
    }
    heaps.into_iter().flatten().for_each(|client| client.assert_all_returned("many"));
}

/// A Rust program that shares the heap may retire all streams of the heap while C still uses them.
#[test]
fn retired_stream_is_queried_once() {
    for unannounced in [false, true] {
        let device = emulated(1 << 30, Schedule::OnDemand);
        let heap = Heap::builder(&device).without_environment().build().unwrap();
        let client = Client(gpuheap_heap::with_streams(&device, &heap, unannounced));
        let stream = make_stream(&device);
        let emulator = device.emulator().unwrap();
        let questions = || emulator.calls_of("cuStreamGetId");
        let before = questions();
        assert_eq!(client.free(client.allocate(1000, stream).unwrap()), Status::Ok);
        let first = questions() - before;
        heap.retire_all().unwrap();
        let before = questions();
        let memory = client.allocate(1000, stream).unwrap();
        assert_eq!(questions() - before, first, "unannounced: {unannounced}");
        assert_eq!(client.free(memory), Status::Ok);
        client.assert_all_returned("retired");
    }
}

/// Shows why a program calls gpuheap_stream_ended: without the call, the heap queries a stream that
/// no longer exists.
#[test]
fn unannounced_stream_end_is_found() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let client = Client::new(&device, PoolKind::Split);
    let stream = make_stream(&device);
    let memory = client.allocate(1 << 20, stream).unwrap();
    assert_eq!(client.free(memory), Status::Ok);
    destroy_stream(&device, stream);
    assert!(client.inside().1.reclaim_all().is_err(), "a real driver may crash here");
}
