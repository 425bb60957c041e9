//! Makes each driver call of a program fail in turn. In each run, every C call returns success or a
//! status with a text, and no memory is lost.

use gpuheap::PoolKind;
use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap_capi::gpuheap_close;
use gpuheap_driver::{CUresult, CUstream};

use crate::client::{Client, Status, destroy_stream, last_error, make_stream};
use crate::failing::{assert_errs_or_recovers, fail_each_call, with_failing_call};
use crate::support::{assert_no_findings, emulated};

/// Runs a program whose driver call number `nth` fails. Returns whether a C call failed, and
/// whether the program made `nth` driver calls.
fn run(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::Seeded(2));
    let emulator = device.emulator().unwrap().clone();
    let client = Client::new(&device, pool);
    let streams = [make_stream(&device), make_stream(&device)];
    let what = format!("{pool}, {code:?} at call {nth}");
    let mut failed = false;
    let mut note = |status: Status| {
        let expected = [Status::Ok, Status::OutOfMemory, Status::Driver, Status::Refused];
        assert!(expected.contains(&status), "{what}: {status:?} {}", last_error());
        failed |= status != Status::Ok;
        status
    };
    let (ended, got_there) = with_failing_call(&emulator, nth, code, || {
        let mut held = Vec::new();
        for (bytes, stream) in [(1000, 0), (30 << 20, 0), (30 << 20, 1)] {
            match client.allocate(bytes, streams[stream]) {
                Ok(memory) => held.push((memory, streams[stream])),
                Err(status) => drop(note(status)),
            }
        }
        if !held.is_empty() {
            // Frees only the first block. The others stay live until after `stream_ended`.
            note(client.free(held.remove(0).0));
        }
        let ended = note(client.stream_ended(streams[0]));
        for (memory, stream) in held {
            // A block of the live stream is freed on that stream, which must not be refused.
            if stream == streams[1] && note(client.free_on(memory, stream)) == Status::Refused {
                panic!("{what}: {}", last_error());
            } else if stream == streams[0] {
                note(client.free(memory));
            }
        }
        if let Ok(memory) = client.allocate(60 << 20, streams[1]).map_err(&mut note) {
            note(client.free(memory));
        }
        ended
    });
    if ended != Status::Ok {
        assert_eq!(client.stream_ended(streams[0]), Status::Ok, "{what}: it works when repeated");
    }
    destroy_stream(&device, streams[0]);
    let now = client.statistics();
    assert_eq!((now.live, now.live_allocations), (0, 0), "{what}: {now:?}");
    client.assert_all_returned(&what);
    (failed, got_there)
}

#[test]
fn any_failed_call_gives_a_status() {
    for pool in PoolKind::ALL {
        assert_errs_or_recovers(pool.name(), (0, 0), |nth, code| run(pool, nth, code));
    }
}

/// Runs a program whose streams end without gpuheap_stream_ended. If the fence (event) of a free
/// fails, the heap may keep the memory until it is closed, but never reuses it too early.
fn run_unannounced(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::OnDemand);
    let emulator = device.emulator().unwrap().clone();
    let client = Client::with_unannounced_streams(&device, pool, false);
    let streams = [make_stream(&device), make_stream(&device)];
    let what = format!("{pool}, {code:?} at call {nth}");
    let start = emulator.calls();
    let fail = || {
        let later = nth.saturating_sub(emulator.calls() - start);
        let plan =
            if later == 0 { FaultPlan::default() } else { FaultPlan::fail_call(later, code) };
        emulator.set_faults(plan);
    };
    let mut failed = false;
    fail();
    for (round, stream) in streams.into_iter().enumerate() {
        let other = streams[1 - round];
        for bytes in [1000, 30 << 20] {
            match client.allocate(bytes, stream) {
                Ok(memory) => {
                    emulator.set_faults(FaultPlan::default());
                    memory.fill(&device, 1, stream);
                    fail();
                    failed |= client.free(memory) != Status::Ok;
                }
                Err(_) => failed = true,
            }
        }
        if round == 0 {
            emulator.set_faults(FaultPlan::default());
            destroy_stream(&device, stream);
            fail();
            match client.allocate(30 << 20, other) {
                Ok(memory) => failed |= client.free_on(memory, other) != Status::Ok,
                Err(_) => failed = true,
            }
        }
    }
    let got_there = emulator.calls() - start >= nth;
    emulator.set_faults(FaultPlan::default());
    destroy_stream(&device, streams[1]);
    assert_eq!(call!(gpuheap_close(client.0)), Status::Ok, "{what}: {}", last_error());
    let used = emulator.usage(0);
    assert_eq!((used.plain, used.pools), (0, 0), "{what}");
    assert_no_findings(&device, &what);
    (failed, got_there)
}

#[test]
fn unannounced_streams_survive_any_failed_call() {
    for pool in PoolKind::ALL {
        for code in [CUresult::ERROR_OUT_OF_MEMORY, CUresult::ERROR_UNKNOWN] {
            assert!(!run_unannounced(pool, 0, code).0, "{pool}: {}", last_error());
            let (failed, made_good) = fail_each_call(|nth| run_unannounced(pool, nth, code));
            assert!(failed + made_good > 0, "{pool}, {code:?}");
        }
    }
}

#[test]
fn failed_close_still_closes() {
    for pool in PoolKind::ALL {
        let device = emulated(96 << 20, Schedule::Seeded(2));
        let emulator = device.emulator().unwrap();
        let client = Client::new(&device, pool);
        client.allocate(30 << 20, CUstream::NULL).unwrap().fill(&device, 1, CUstream::NULL);
        let fault = Fault::nth("cuCtxSynchronize", 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([fault]));
        assert_eq!(call!(gpuheap_close(client.0)), Status::Driver, "{pool}");
        assert!(last_error().contains("cuCtxSynchronize"), "{}", last_error());
        emulator.set_faults(FaultPlan::default());
        device.synchronize().unwrap();
        let used = emulator.usage(0);
        assert_eq!((used.plain, used.pools), (0, 0), "{pool}");
    }
}
