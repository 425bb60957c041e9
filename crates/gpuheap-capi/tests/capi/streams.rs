//! Streams that the program makes and ends itself.

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_driver::CUstream;

use crate::client::{Client, Status, destroy_stream, device, make_stream};
use crate::support::emulated;

const SCHEDULES: [Schedule; 3] = [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(5)];

/// The emulator's device is so small that the second block must have the memory of the first.
#[test]
fn memory_of_a_stream_that_ended_is_used_on_others_in_order() {
    for (pool, schedule) in PoolKind::ALL.into_iter().flat_map(|pool| SCHEDULES.map(|s| (pool, s)))
    {
        let device = crate::support::device(64 << 20, schedule);
        let client = Client::new(&device, pool);
        let other = make_stream(&device);
        for round in 0..6 {
            let stream = make_stream(&device);
            let memory = client.allocate(40 << 20, stream).unwrap();
            memory.fill(&device, round, stream);
            // In half of the rounds the block outlives its stream.
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

#[test]
fn memory_crosses_between_streams_in_order() {
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

/// After the announcement nothing of the stream is touched: on the emulator a handle that is gone is
/// an error of the call that uses it, and a finding.
#[test]
fn every_use_of_a_heap_goes_on_after_its_streams_ended() {
    for pool in PoolKind::ALL {
        let device = device(Schedule::OnDemand);
        let client = Client::new(&device, pool);
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
            // Saying so twice is fine while the handle is not a new stream's.
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
fn the_end_of_streams_that_do_not_matter_changes_nothing() {
    let device = device(Schedule::Immediate);
    let client = Client::new(&device, PoolKind::Split);
    let unseen = make_stream(&device);
    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();
    for stream in [unseen, CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD] {
        assert_eq!(client.stream_ended(stream), Status::Ok);
    }
    assert_eq!(client.free_on(memory, CUstream::LEGACY), Status::Ok);
    client.assert_all_returned("no matter");
}

/// What the announcement is for: without it the heap asks about a stream that is gone.
#[test]
fn a_stream_that_ends_in_silence_is_missed() {
    let device = emulated(1 << 30, Schedule::OnDemand);
    let client = Client::new(&device, PoolKind::Split);
    let stream = make_stream(&device);
    let memory = client.allocate(1 << 20, stream).unwrap();
    assert_eq!(client.free(memory), Status::Ok);
    destroy_stream(&device, stream);
    assert!(client.inside().1.reclaim_all().is_err(), "a real driver may crash here");
}
