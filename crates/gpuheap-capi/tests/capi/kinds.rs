//! Tests memory that the host also uses, and the reset of a device with all its heaps.

use std::ffi::c_void;
use std::ptr;

use gpuheap::PoolKind;
use gpuheap::emu::{FaultPlan, Schedule};
use gpuheap_capi::*;
use gpuheap_driver::{CUresult, CUstream};

use crate::client::{Client, Memory, Status, destroy_stream, handle, last_error, make_stream};
use crate::failing::{assert_errs_or_recovers, with_failing_call};
use crate::support::{assert_no_findings, emulated};

const UNIFIED: u32 = gpuheap_kind::Unified as u32;
const PINNED: u32 = gpuheap_kind::Pinned as u32;
const REGISTERED: u32 = gpuheap_kind::Registered as u32;

fn allocate(client: &Client, kind: u32, bytes: u64, stream: CUstream) -> Result<Memory, Status> {
    let mut address = ptr::without_provenance_mut(1);
    // SAFETY: the heap is open, the stream is alive, and the pointer is valid.
    let status = call!(gpuheap_allocate_kind(client.0, kind, bytes, handle(stream), &mut address));
    match status {
        Status::Ok => Ok(Memory { address, bytes }),
        status => {
            assert!(address.is_null(), "nothing that fails leaves an address");
            Err(status)
        }
    }
}

fn wait_for(client: &Client, stream: CUstream) -> Status {
    call!(gpuheap_wait_for_stream(client.0, handle(stream)))
}

fn live(client: &Client, kind: u32) -> u64 {
    let mut now =
        gpuheap_statistics { size: size_of::<gpuheap_statistics>(), ..Default::default() };
    let status = call!(gpuheap_get_kind_statistics(client.0, kind, &mut now));
    assert_eq!(status, Status::Ok, "{}", last_error());
    now.live
}

/// Returns the bytes of memory that the host can access.
fn bytes(memory: Memory) -> &'static mut [u8] {
    // SAFETY: the memory is live, no device work uses it, and the test holds one such slice at a
    // time.
    unsafe { std::slice::from_raw_parts_mut(memory.address.cast(), memory.bytes as usize) }
}

/// The device starts an enqueued fill only when something waits for it. Without the wait before the
/// host's writes, the fill would overwrite the host's bytes.
#[test]
fn host_waits_before_using_memory() {
    for kind in [UNIFIED, PINNED] {
        let device = emulated(64 << 20, Schedule::OnDemand);
        let client = Client::new(&device, PoolKind::Split);
        let stream = make_stream(&device);
        let before = allocate(&client, kind, 1 << 20, stream).unwrap();
        before.fill(&device, 7, stream);
        assert_eq!(client.free(before), Status::Ok);
        let memory = allocate(&client, kind, 1 << 20, stream).unwrap();
        assert_eq!(memory.address, before.address, "reused at once on its stream");
        assert_eq!(wait_for(&client, stream), Status::Ok);
        bytes(memory).fill(1);
        device.synchronize().unwrap();
        assert!(bytes(memory).iter().all(|byte| *byte == 1));
        assert_eq!((live(&client, kind), live(&client, 0)), (1 << 20, 0));
        assert_eq!(client.free(memory), Status::Ok);
        assert_eq!(client.free(memory), Status::UnknownAddress);
        assert_eq!(live(&client, kind), 0);
        assert_eq!(client.stream_ended(stream), Status::Ok);
        destroy_stream(&device, stream);
        client.assert_all_returned("host memory");
    }
}

#[test]
fn each_kind_frees_in_order() {
    let device = emulated(64 << 20, Schedule::OnDemand);
    let client = Client::new(&device, PoolKind::Stitched);
    let [home, other] = [(); 2].map(|()| make_stream(&device));
    for kind in [0, UNIFIED, PINNED] {
        let on_other = allocate(&client, kind, 1000, home).unwrap();
        crate::client::order(&device, home, other);
        assert_eq!(client.free_on(on_other, other), Status::Ok);
        let used = allocate(&client, kind, 1000, home).unwrap();
        assert_eq!(call!(gpuheap_used_on(client.0, used.address, handle(other))), Status::Ok);
        assert_eq!(client.free(used), Status::Ok);
        let mut scope = ptr::null_mut();
        assert_eq!(call!(gpuheap_open_scope(client.0, ptr::null(), &mut scope)), Status::Ok);
        allocate(&client, kind, 2000, home).unwrap();
        assert_eq!(call!(gpuheap_close_scope(scope, ptr::null_mut())), Status::Ok);
        assert_eq!(live(&client, kind), 0, "{kind}");
    }
    // Closing the heap frees live memory.
    allocate(&client, PINNED, 1000, home).unwrap();
    assert_eq!(call!(gpuheap_close(client.0)), Status::Ok);
    assert_no_findings(&device, "kinds");
}

/// The device starts the fill only when something waits for it. So gpuheap_unregister has to wait.
#[test]
fn registered_memory_outlasts_its_work() {
    let device = emulated(64 << 20, Schedule::OnDemand);
    let client = Client::new(&device, PoolKind::Split);
    let stream = make_stream(&device);
    let mut own = vec![1_u8; 10_000];
    let (memory, mut address) = (own.as_mut_ptr().cast(), ptr::null_mut());
    assert_eq!(call!(gpuheap_register(client.0, memory, 10_000, &mut address)), Status::Ok);
    assert_eq!(live(&client, REGISTERED), 10_000);
    assert_eq!(call!(gpuheap_register(client.0, memory, 10_000, ptr::null_mut())), Status::Driver);
    Memory { address, bytes: 10_000 }.fill(&device, 7, stream);
    assert_eq!(call!(gpuheap_unregister(client.0, memory)), Status::Ok, "{}", last_error());
    assert_eq!(call!(gpuheap_unregister(client.0, memory)), Status::UnknownAddress);
    assert_eq!(live(&client, REGISTERED), 0);
    assert!(own.iter().all(|byte| *byte == 7));
    for (memory, bytes) in [(ptr::null_mut(), 1), (memory, 0)] {
        assert_eq!(
            call!(gpuheap_register(client.0, memory, bytes, ptr::null_mut())),
            Status::Refused
        );
    }
    // Closing the heap unlocks this memory.
    assert_eq!(call!(gpuheap_register(client.0, memory, 100, ptr::null_mut())), Status::Ok);
    assert_eq!(call!(gpuheap_close(client.0)), Status::Ok);
    assert_no_findings(&device, "registered");
    let other = Client::new(&device, PoolKind::Split);
    assert_eq!(call!(gpuheap_register(other.0, memory, 100, ptr::null_mut())), Status::Ok);
    assert_eq!(call!(gpuheap_close(other.0)), Status::Ok);
}

#[test]
fn other_kinds_are_refused() {
    let device = emulated(64 << 20, Schedule::Immediate);
    let client = Client::new(&device, PoolKind::Split);
    assert_eq!(allocate(&client, 3, 1000, CUstream::NULL).unwrap_err(), Status::Refused);
    assert!(last_error().contains("call gpuheap_register"), "{}", last_error());
    assert_eq!(allocate(&client, 4, 1000, CUstream::NULL).unwrap_err(), Status::Refused);
    assert!(
        last_error().contains("the kind is 4; pass GPUHEAP_KIND_DEVICE (0)"),
        "{}",
        last_error()
    );
    let nowhere: *mut *mut c_void = ptr::null_mut();
    assert_eq!(
        call!(gpuheap_allocate_kind(client.0, 1, 1, ptr::null_mut(), nowhere)),
        Status::Refused
    );
    assert_eq!(call!(gpuheap_get_kind_statistics(client.0, 1, ptr::null_mut())), Status::Refused);
    assert_eq!(call!(gpuheap_wait_for_stream(ptr::null_mut(), ptr::null_mut())), Status::Refused);
    assert_eq!(call!(gpuheap_reset_device(ptr::null_mut())), Status::Refused);
    assert_eq!(
        allocate(&client, PINNED, u64::MAX, CUstream::NULL).unwrap_err(),
        Status::OutOfMemory
    );
    let nothing = allocate(&client, UNIFIED, 0, CUstream::NULL).unwrap();
    assert!(nothing.address.is_null());
    client.assert_all_returned("refused");
}

#[test]
fn reset_ends_all_heaps() {
    let device = emulated(64 << 20, Schedule::OnDemand);
    let [client, other] = [(); 2].map(|()| Client::new(&device, PoolKind::Split));
    let stream = make_stream(&device);
    let memory = client.allocate(1 << 20, stream).unwrap();
    memory.fill(&device, 1, stream);
    allocate(&other, PINNED, 1 << 20, stream).unwrap();
    assert_eq!(call!(gpuheap_reset_device(client.0)), Status::Ok, "{}", last_error());
    assert_eq!(call!(gpuheap_reset_device(client.0)), Status::Gone);
    assert_eq!(client.free(memory), Status::Gone);
    assert_eq!(other.allocate(1000, CUstream::NULL).unwrap_err(), Status::Gone);
    call!(gpuheap_close(other.0));
    let emulator = device.emulator().unwrap();
    assert_eq!(emulator.usage(device.ordinal()).plain, 0);
}

/// Runs a program whose driver call number `nth` fails. Returns whether a C call failed, and
/// whether the program made `nth` driver calls.
fn run(nth: u64, code: CUresult) -> (bool, bool) {
    let device = emulated(64 << 20, Schedule::Seeded(3));
    let emulator = device.emulator().unwrap().clone();
    let client = Client::new(&device, PoolKind::Split);
    let stream = make_stream(&device);
    let (mut failed, mut is_stuck, mut own) = (false, false, vec![0_u8; 1000]);
    let ((), got_there) = with_failing_call(&emulator, nth, code, || {
        for kind in [UNIFIED, PINNED, UNIFIED] {
            match allocate(&client, kind, 1 << 20, stream) {
                Ok(memory) => {
                    failed |= wait_for(&client, stream) != Status::Ok;
                    failed |= client.free(memory) != Status::Ok;
                }
                Err(_) => failed = true,
            }
        }
        let memory = own.as_mut_ptr().cast();
        call!(match gpuheap_register(client.0, memory, 1000, ptr::null_mut()) {
            Status::Ok => is_stuck = gpuheap_unregister(client.0, memory) != Status::Ok,
            _ => failed = true,
        })
    });
    failed |= is_stuck;
    emulator.set_faults(FaultPlan::default());
    for kind in [UNIFIED, PINNED] {
        assert_eq!(live(&client, kind), 0, "{code:?} at call {nth}");
    }
    // Memory that could not be unlocked still counts as registered.
    let registered = if is_stuck { 1000 } else { 0 };
    assert_eq!(live(&client, REGISTERED), registered, "{code:?} at call {nth}");
    assert_eq!(client.stream_ended(stream), Status::Ok, "{}", last_error());
    destroy_stream(&device, stream);
    if is_stuck {
        // After a failed `gpuheap_unregister`, the device may use `own`, so `own` is never freed.
        std::mem::forget(own);
        assert_eq!(call!(gpuheap_close(client.0)), Status::Ok);
    } else {
        client.assert_all_returned(&format!("{code:?} at call {nth}"));
    }
    (failed, got_there)
}

#[test]
fn any_failed_call_loses_nothing() {
    assert_errs_or_recovers("kinds", (0, 0), run);
}
