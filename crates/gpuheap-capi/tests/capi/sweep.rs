//! Runs a program that uses the whole interface. In each run, another driver call fails, every C
//! call returns success or a status with a text, and no memory is lost.

use std::ffi::c_void;
use std::ptr;

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_capi::*;
use gpuheap_driver::{CUresult, CUstream};

use crate::client::{Client, Status, destroy_stream, handle, last_error, make_stream, sized_room};
use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::emulated;

/// Size of the block that two streams use, in bytes.
const ON_TWO_STREAMS: u64 = 30 << 20;

/// Statuses of the calls in one run.
struct Calls {
    what: String,
    failed: bool,
}

impl Calls {
    fn note(&mut self, status: Status) -> Status {
        let expected = [Status::Ok, Status::OutOfMemory, Status::Driver, Status::Refused];
        assert!(expected.contains(&status), "{}: {status:?} {}", self.what, last_error());
        if status != Status::Ok {
            self.failed = true;
            assert!(!last_error().is_empty(), "{}: {status:?}", self.what);
        }
        status
    }
}

/// Calls each function that allocates, frees or reports, once or twice.
fn program(client: &Client, home: CUstream, other: CUstream, calls: &mut Calls) {
    let heap = client.0;
    let home = handle(home);
    let mut addresses = [ptr::null_mut::<c_void>(); 3];
    let sizes = [1000, ON_TWO_STREAMS, 5 << 20];
    let all = call!(gpuheap_allocate_batch(heap, 3, sizes.as_ptr(), home, addresses.as_mut_ptr()));
    if calls.note(all) == Status::Ok {
        calls.note(call!(gpuheap_fill(heap, addresses[1], 512, 1 << 20, 7, home)));
        calls.note(call!(gpuheap_used_on(heap, addresses[1], handle(other))));
        calls.note(call!(gpuheap_wait_for_stream(heap, home)));
    } else {
        assert!(addresses.iter().all(|address| address.is_null()), "{}", calls.what);
    }
    let (mut fit, mut length) = (gpuheap_fit::No, 0);
    calls.note(call!(gpuheap_would_fit(heap, 1 << 20, &mut fit, ptr::null_mut(), 0, &mut length)));
    for format in [gpuheap_format::Text, gpuheap_format::Json] {
        let no_text = ptr::null_mut();
        calls.note(call!(gpuheap_memory_status(heap, format as u32, no_text, 0, &mut length)));
    }
    let mut scope = ptr::null_mut();
    calls.note(call!(gpuheap_open_scope(heap, c"a scope".as_ptr(), &mut scope)));
    let mut inside = ptr::null_mut();
    for kind in [gpuheap_kind::Device, gpuheap_kind::Pinned] {
        calls.note(call!(gpuheap_allocate_kind(heap, kind as u32, 2000, home, &mut inside)));
    }
    if !inside.is_null() {
        let mut bytes = 0;
        calls.note(call!(gpuheap_keep(heap, inside)));
        calls.note(call!(gpuheap_allocation_size(heap, inside, &mut bytes)));
        calls.note(call!(gpuheap_free(heap, inside)));
    }
    calls.note(call!(gpuheap_free_batch(heap, 3, addresses.as_ptr())));
    // The scope is closed even if a driver call fails.
    calls.note(call!(gpuheap_close_scope(scope, ptr::null_mut())));
    calls.note(call!(gpuheap_set_limits(heap, 64 << 20, 90 << 20, ptr::null_mut())));
    account(client, calls);
    calls.note(call!(gpuheap_reclaim(heap, 1 << 20, ptr::null_mut())));
    calls.note(call!(gpuheap_reclaim_all(heap, ptr::null_mut())));
    calls.note(call!(gpuheap_flush(heap, ptr::null_mut())));
    calls.note(call!(gpuheap_wait(heap)));
}

/// Calls the functions that report outstanding allocations.
fn account(client: &Client, calls: &mut Calls) {
    let (heap, mut length) = (client.0, 0);
    let no_text = ptr::null_mut();
    let mut statistics =
        gpuheap_statistics { size: size_of::<gpuheap_statistics>(), ..Default::default() };
    let mut device = sized_room::<gpuheap_device>();
    calls.note(call!(gpuheap_get_heap_device(heap, device.as_mut_ptr())));
    calls.note(call!(gpuheap_get_kind_statistics(
        heap,
        gpuheap_kind::Pinned as u32,
        &mut statistics
    )));
    calls.note(call!(gpuheap_leaks(heap, 0, no_text, 0, &mut length, ptr::null_mut())));
    let mut snapshots = [ptr::null_mut(); 2];
    for snapshot in &mut snapshots {
        calls.note(call!(gpuheap_take_snapshot(heap, snapshot)));
    }
    let [earlier, later] = snapshots;
    let mut growth = 0;
    let difference =
        call!(gpuheap_snapshot_difference(earlier, later, 0, no_text, 0, &mut length, &mut growth));
    calls.note(difference);
    calls.note(call!(gpuheap_list_leaks(heap, ptr::null_mut(), 0, &mut length)));
    calls.note(call!(gpuheap_list_growth(earlier, later, ptr::null_mut(), 0, &mut length)));
    for snapshot in snapshots {
        calls.note(call!(gpuheap_drop_snapshot(snapshot)));
    }
}

/// Runs the program. Driver call number `nth` fails. Returns whether a C call failed, and whether
/// the program made `nth` driver calls.
fn run(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::Seeded(2));
    let emulator = device.emulator().unwrap().clone();
    let client = Client::tracked(&device, pool);
    let [home, other] = [(); 2].map(|()| make_stream(&device));
    let mut calls = Calls { what: format!("{pool}, {code:?} at call {nth}"), failed: false };
    let ((), got_there) = with_failing_call(&emulator, nth, code, || {
        program(&client, home, other, &mut calls);
    });
    let Calls { what, failed } = calls;
    for stream in [home, other] {
        assert_eq!(client.stream_ended(stream), Status::Ok, "{what}: {}", last_error());
        destroy_stream(&device, stream);
    }
    // If a driver call failed in the free of the block that two streams use, the block stays live.
    let now = client.statistics();
    if !failed {
        assert_eq!((now.live, now.live_allocations), (0, 0), "{what}: {now:?}");
    }
    if now.live == 0 {
        client.assert_all_returned(&what);
    } else {
        assert_eq!((now.live, now.live_allocations), (ON_TWO_STREAMS, 1), "{what}: {now:?}");
        assert_eq!(call!(gpuheap_close(client.0)), Status::Ok, "{what}: {}", last_error());
        let used = emulator.usage(0);
        assert_eq!((used.plain, used.pools), (0, 0), "{what}");
    }
    (failed, got_there)
}

#[test]
fn any_failed_call_gives_status() {
    for pool in PoolKind::ALL {
        assert_errs_or_recovers(pool.name(), (0, 0), |nth, code| run(pool, nth, code));
    }
}

/// Resets a device while driver call number `nth` fails, and checks that the heap is closed anyway.
/// Returns whether the reset failed, and whether the program made `nth` driver calls.
fn run_reset(pool: PoolKind, nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(96 << 20, Schedule::OnDemand);
    let emulator = device.emulator().unwrap().clone();
    let client = Client::new(&device, pool);
    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();
    memory.fill(&device, 1, CUstream::NULL);
    let (status, got_there) =
        with_failing_call(&emulator, nth, code, || call!(gpuheap_reset_device(client.0)));
    let what = format!("{pool}, {code:?} at call {nth}");
    assert!(status == Status::Ok || !last_error().is_empty(), "{what}");
    assert_eq!(client.free(memory), Status::Gone, "{what}");
    assert_eq!(call!(gpuheap_close(client.0)), Status::Gone, "{what}");
    (status != Status::Ok, got_there)
}

#[test]
fn failed_reset_closes_the_heap() {
    for pool in [PoolKind::Split, PoolKind::Stitched] {
        assert_errs_or_recovers(pool.name(), (0, 0), |nth, code| run_reset(pool, nth, code));
    }
}
