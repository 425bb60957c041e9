//! Tests requests that are refused. Each returns a status and a text, and changes nothing.

use std::ffi::{CStr, c_char};
use std::ptr;

use gpuheap::emu::Schedule;
use gpuheap::{Device, PoolKind};
use gpuheap_capi::*;
use gpuheap_driver::{CUcontext, CUstream, check};

use crate::all_functions::call_each;
use crate::client::{Client, Memory, Status, device, last_error, make_stream};

fn assert_says(status: Status, expected: Status, text: &str) {
    let said = last_error();
    assert_eq!(status, expected, "{said}");
    assert!(said.contains(text), "'{said}' does not say '{text}'");
}

#[test]
fn null_pointers_are_refused() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let (none, heap) = (ptr::null_mut::<gpuheap_heap>(), client.0);
    let (mut address, mut bytes, mut length) = (ptr::null_mut(), 0, 0);
    let mut statistics = client.statistics();
    let start = c"emulated:1GiB".as_ptr();
    let refused = |status, text: &str| assert_says(status, Status::Refused, text);
    refused(
        call!(gpuheap_open(start, ptr::null(), ptr::null_mut())),
        "where the heap goes is a null",
    );
    refused(call!(gpuheap_allocate(none, 1, ptr::null_mut(), &mut address)), "the heap is a null");
    refused(
        call!(gpuheap_allocate(heap, 1, ptr::null_mut(), ptr::null_mut())),
        "the address goes is",
    );
    refused(call!(gpuheap_free(none, ptr::null_mut())), "the heap is a null");
    refused(call!(gpuheap_free_on(none, ptr::null_mut(), ptr::null_mut())), "the heap is a null");
    refused(call!(gpuheap_stream_ended(none, ptr::null_mut())), "the heap is a null");
    refused(
        call!(gpuheap_allocation_size(none, ptr::null_mut(), &mut bytes)),
        "the heap is a null",
    );
    refused(
        call!(gpuheap_allocation_size(heap, ptr::null_mut(), ptr::null_mut())),
        "the size goes is",
    );
    refused(call!(gpuheap_reclaim(none, 1, &mut bytes)), "the heap is a null");
    refused(call!(gpuheap_reclaim_all(none, &mut bytes)), "the heap is a null");
    refused(call!(gpuheap_set_limits(none, 1, 2, &mut bytes)), "the heap is a null");
    refused(call!(gpuheap_get_statistics(none, &mut statistics)), "the heap is a null");
    refused(call!(gpuheap_get_statistics(heap, ptr::null_mut())), "the statistics go is a null");
    let nowhere = ptr::null_mut::<c_char>();
    refused(call!(gpuheap_memory_status(none, 0, nowhere, 0, &mut length)), "the heap is a null");
    refused(call!(gpuheap_memory_status(heap, 0, nowhere, 1, &mut length)), "the buffer is a null");
    refused(call!(gpuheap_memory_status(heap, 2, nowhere, 0, &mut length)), "the format is 2");
    let (mut flushed, mut fit) = (gpuheap_flushed::default(), gpuheap_fit::No);
    refused(call!(gpuheap_flush(none, ptr::null_mut())), "the heap is a null");
    refused(call!(gpuheap_flush(heap, &mut flushed)), "the figures of the flush have a size of 0");
    let long = &mut length;
    refused(call!(gpuheap_would_fit(none, 1, &mut fit, nowhere, 0, long)), "the heap is a null");
    refused(
        call!(gpuheap_would_fit(heap, 1, ptr::null_mut(), nowhere, 0, long)),
        "the forecast goes",
    );
    refused(call!(gpuheap_would_fit(heap, 1, &mut fit, nowhere, 1, long)), "the buffer is a null");
    refused(call!(gpuheap_leaks(none, 0, nowhere, 0, long, &mut bytes)), "the heap is a null");
    refused(
        call!(gpuheap_leaks(heap, 0, nowhere, 0, long, &mut bytes)),
        "gpuheap_options.tracking",
    );
    let (mut snapshot, no_snapshot) = (ptr::null_mut(), ptr::null_mut());
    refused(call!(gpuheap_take_snapshot(none, &mut snapshot)), "the heap is a null");
    refused(call!(gpuheap_take_snapshot(heap, ptr::null_mut())), "the snapshot goes is a null");
    refused(call!(gpuheap_take_snapshot(heap, &mut snapshot)), "gpuheap_options.tracking");
    assert!(snapshot.is_null());
    refused(
        call!(gpuheap_snapshot_difference(
            no_snapshot,
            no_snapshot,
            0,
            nowhere,
            0,
            long,
            ptr::null_mut(),
        )),
        "a snapshot is a null",
    );
    assert_eq!(call!(gpuheap_drop_snapshot(no_snapshot)), Status::Ok, "as free of a null");
    let null = ptr::null_mut();
    refused(call!(gpuheap_used_on(none, null, null)), "the heap is a null");
    refused(call!(gpuheap_fill(none, null, 0, 1, 0, null)), "the heap is a null");
    refused(call!(gpuheap_wait(none)), "the heap is a null");
    refused(call!(gpuheap_allocate_batch(none, 1, &1, null, &mut address)), "the heap is a null");
    refused(call!(gpuheap_allocate_batch(heap, 1, ptr::null(), null, &mut address)), "is a null");
    refused(call!(gpuheap_allocate_batch(heap, 1, &1, null, ptr::null_mut())), "is a null");
    refused(call!(gpuheap_free_batch(none, 1, &null)), "the heap is a null");
    refused(call!(gpuheap_free_batch(heap, 1, ptr::null())), "the addresses are a null");
    let mut scope = ptr::null_mut();
    refused(call!(gpuheap_open_scope(none, ptr::null(), &mut scope)), "the heap is a null");
    refused(
        call!(gpuheap_open_scope(heap, ptr::null(), ptr::null_mut())),
        "the scope goes is a null",
    );
    refused(call!(gpuheap_keep(none, null)), "the heap is a null");
    assert_eq!(call!(gpuheap_close_scope(ptr::null_mut(), ptr::null_mut())), Status::Ok);
    refused(call!(gpuheap_on_shortage(none, None, null)), "the heap is a null");
    refused(call!(gpuheap_on_thread_end(none, None, null)), "the heap is a null");
    refused(call!(gpuheap_on_thread_end(heap, None, null)), "the end of a thread is a null");
    assert_eq!(call!(gpuheap_close(none)), Status::Ok, "as free of a null");
    assert_eq!(client.statistics().allocations, 0);
    client.assert_all_returned("null pointers");
}

#[test]
fn closed_heap_is_refused() {
    let (device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let memory = client.allocate(1000, CUstream::NULL).unwrap();
    let heap = client.0;
    assert_eq!(call!(gpuheap_close(heap)), Status::Ok);
    // Another heap may get the memory of the closed heap.
    let another = Client::new(&device, PoolKind::Split);
    for (name, status) in call!(call_each(heap, memory.address)) {
        assert_eq!(status, Status::Gone, "{name}");
        assert!(last_error().starts_with("gpuheap_close: the heap was closed"), "{}", last_error());
    }
    another.assert_all_returned("another");
}

#[test]
fn invalid_options_are_refused() {
    let zeroed = || gpuheap_options {
        size: size_of::<gpuheap_options>(),
        pool: ptr::null(),
        tracking: ptr::null(),
        hard_limit: 0,
        soft_limit: 0,
        idle_trim_milliseconds: 0,
        zero_on_free: 0,
        zero_on_alloc: 0,
        without_environment: 0,
        unannounced_streams: 0,
        slack: 0.0,
    };
    let open = |device: &CStr, options: gpuheap_options| {
        let mut heap = ptr::without_provenance_mut(1);
        let status = call!(gpuheap_open(device.as_ptr(), &options, &mut heap));
        assert!(heap.is_null());
        status
    };
    let refused = |options, text| {
        assert_says(open(c"emulated:1GiB", options), Status::Refused, text);
    };
    assert_says(open(c"gpu0", zeroed()), Status::Refused, "'gpu0' is not a device; write cuda:0");
    assert_says(open(c"\xff", zeroed()), Status::Refused, "is not UTF-8");
    refused(gpuheap_options { size: 0, ..zeroed() }, "sizeof(gpuheap_options)");
    refused(gpuheap_options { size: size_of::<usize>(), ..zeroed() }, "sizeof(gpuheap_options)");
    refused(gpuheap_options { pool: c"cuda".as_ptr(), ..zeroed() }, "'cuda'");
    refused(gpuheap_options { pool: c"\xff".as_ptr(), ..zeroed() }, "the pool '\u{fffd}' is not");
    refused(gpuheap_options { tracking: c"all".as_ptr(), ..zeroed() }, "'all'");
    refused(gpuheap_options { zero_on_free: 2, ..zeroed() }, "zero_on_free is 2");
    refused(gpuheap_options { zero_on_alloc: -2, ..zeroed() }, "zero_on_alloc is -2");
    refused(gpuheap_options { without_environment: 7, ..zeroed() }, "without_environment is 7");
    refused(gpuheap_options { unannounced_streams: 7, ..zeroed() }, "unannounced_streams is 7");
    refused(gpuheap_options { slack: f64::NAN, ..zeroed() }, "slack is not a number");
    refused(gpuheap_options { soft_limit: 2, hard_limit: 1, ..zeroed() }, "soft limit");

    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    for size in [0, size_of::<usize>()] {
        let mut statistics = gpuheap_statistics { size, ..Default::default() };
        let status = call!(gpuheap_get_statistics(client.0, &mut statistics));
        assert_says(status, Status::Refused, "sizeof(gpuheap_statistics)");
        assert_eq!(statistics, gpuheap_statistics { size, ..Default::default() });
    }
    let status = call!(gpuheap_set_limits(client.0, 2, 1, ptr::null_mut()));
    assert_says(status, Status::Refused, "the soft limit");
    client.assert_all_returned("refusals");
}

#[test]
fn missing_device_is_unavailable() {
    let mut heap = ptr::null_mut();
    let status = call!(gpuheap_open(c"cuda:4711".as_ptr(), ptr::null(), &mut heap));
    assert!(heap.is_null());
    // If the machine has no driver, the device is unavailable. If it has a driver, the ordinal is
    // unknown.
    assert!(matches!(status, Status::Unavailable | Status::Driver | Status::Refused), "{status:?}");
    assert!(last_error().starts_with("gpuheap_open: "), "{}", last_error());
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        assert_eq!(status, Status::Unavailable, "{}", last_error());
    }
}

#[test]
fn address_is_freed_once() {
    let device = device(Schedule::Seeded(3));
    let (client, other) =
        (Client::new(&device, PoolKind::Split), Client::new(&device, PoolKind::None));
    let stream = make_stream(&device);
    let memory = client.allocate(1 << 20, stream).unwrap();
    let inside = Memory { address: memory.address.wrapping_byte_add(512), bytes: 1 };
    let unknown =
        |status| assert_says(status, Status::UnknownAddress, "no allocation of this heap");
    let mut bytes = 5;

    for address in [0x1, 0x2, 0x200, 0x7fff_ffff_fe00, usize::MAX] {
        unknown(client.free(Memory { address: ptr::without_provenance_mut(address), bytes: 1 }));
    }
    unknown(other.free(memory));
    unknown(client.free(inside));
    unknown(call!(gpuheap_allocation_size(client.0, inside.address, &mut bytes)));
    unknown(call!(gpuheap_allocation_size(client.0, ptr::null_mut(), &mut bytes)));
    assert_eq!(bytes, 5);
    assert_eq!(client.free_on(memory, stream), Status::Ok);
    unknown(client.free(memory));
    unknown(client.free_on(memory, stream));
    assert_eq!(client.statistics().frees, 1);
    client.assert_all_returned("once");
    other.assert_all_returned("the other");
}

#[test]
fn stream_of_another_context_is_refused() {
    let (device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();

    let foreign = stream_of_another_context(&device);
    assert_says(client.allocate(1, foreign).unwrap_err(), Status::Refused, "another context");
    assert_says(client.free_on(memory, foreign), Status::Refused, "another context");

    // None of these calls freed anything.
    assert_eq!((client.statistics().live_allocations, client.free(memory)), (1, Status::Ok));
    client.assert_all_returned("streams");
}

/// Makes a stream in a context that the program made itself. The stream and the context are never
/// destroyed.
fn stream_of_another_context(device: &Device) -> CUstream {
    let (mut context, mut popped) = (CUcontext::NULL, CUcontext::NULL);
    let driver = device.driver();
    // SAFETY: the pointers are valid, and the context is popped again.
    unsafe {
        check("create", driver.cuCtxCreate_v2(&mut context, 0, device.ordinal())).unwrap();
        let mut stream = CUstream::NULL;
        check("stream", driver.cuStreamCreate(&mut stream, 0)).unwrap();
        check("pop", driver.cuCtxPopCurrent_v2(&mut popped)).unwrap();
        stream
    }
}
