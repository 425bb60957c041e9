//! Tests the behaviour of each C function.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use gpuheap::emu::Schedule;
use gpuheap::{Heap, PoolKind};
use gpuheap_capi::*;
use gpuheap_driver::CUstream;

use crate::client::{Client, Status, destroy_stream, device, last_error, make_stream};
use crate::support;

const MIB: u64 = 1 << 20;

#[test]
fn statistics_count_allocations_and_frees() {
    for pool in PoolKind::ALL {
        let (device, client) = Client::scheduled(Schedule::Seeded(1), pool);
        let stream = make_stream(&device);
        let [one, two, three] =
            [1000, 3 * MIB, 5 * MIB].map(|bytes| client.allocate(bytes, stream).unwrap());
        assert_eq!(one.address as u64 % 512, 0);
        [one, two, three].into_iter().for_each(|memory| memory.fill(&device, 7, stream));
        let now = client.statistics();
        let total = 8 * MIB + 1000;
        assert_eq!((now.live, now.live_allocations, now.allocations), (total, 3, 3), "{pool}");
        assert_eq!((now.live_peak, now.allocated_bytes), (total, total), "{pool}");
        assert!(now.live_blocks >= total && now.reserved >= total, "{pool}: {now:?}");
        assert!(now.reserved_peak >= now.reserved && now.driver_calls > 0, "{pool}: {now:?}");

        let mut bytes = 0;
        call!(assert_eq!(gpuheap_allocation_size(client.0, two.address, &mut bytes), Status::Ok));
        assert_eq!(bytes, 3 * MIB);

        assert_eq!(client.free(two), Status::Ok);
        assert_eq!(client.free_on(three, stream), Status::Ok);
        let now = client.statistics();
        assert_eq!((now.live, now.live_peak, now.frees, now.failed_frees), (1000, total, 2, 0));
        assert_eq!(client.free(one), Status::Ok);
        client.assert_all_returned(pool.name());
        destroy_stream(&device, stream);
    }
}

#[test]
fn zero_bytes_give_a_null() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let none = client.allocate(0, CUstream::NULL).unwrap();
    assert!(none.address.is_null());
    let now = client.statistics();
    assert_eq!((now.allocations, now.frees, now.live_allocations), (1, 1, 0));
    assert_eq!((client.free(none), client.free_on(none, CUstream::NULL)), (Status::Ok, Status::Ok));
    client.assert_all_returned("no bytes");
}

#[test]
fn reclaim_returns_freed_bytes() {
    let (device, client) = Client::scheduled(Schedule::OnDemand, PoolKind::Binned);
    for _ in 0..2 {
        let memory = client.allocate(16 * MIB, CUstream::NULL).unwrap();
        memory.fill(&device, 1, CUstream::NULL);
        assert_eq!(client.free(memory), Status::Ok);
    }
    let other = client.allocate(8 * MIB, CUstream::NULL).unwrap();
    assert_eq!(client.free(other), Status::Ok);
    let mut back = 99;
    assert_eq!(call!(gpuheap_reclaim(client.0, MIB, &mut back)), Status::Ok);
    assert_eq!(back, 8 * MIB, "the smallest that is enough");
    assert_eq!(call!(gpuheap_reclaim_all(client.0, &mut back)), Status::Ok);
    assert_eq!(back, 16 * MIB);
    assert_eq!(call!(gpuheap_reclaim(client.0, MIB, ptr::null_mut())), Status::Ok);
    assert_eq!(call!(gpuheap_reclaim_all(client.0, ptr::null_mut())), Status::Ok);
    assert_eq!(client.statistics().given_back, 24 * MIB);
    client.assert_all_returned("reclaim");
}

#[test]
fn lowered_limits_return_cached_memory() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Binned);
    let cached = client.allocate(32 * MIB, CUstream::NULL).unwrap();
    assert_eq!(client.free(cached), Status::Ok);
    let mut back = 0;
    assert_eq!(call!(gpuheap_set_limits(client.0, 8 * MIB, 16 * MIB, &mut back)), Status::Ok);
    assert_eq!(back, 32 * MIB);
    assert_eq!(client.allocate(32 * MIB, CUstream::NULL).unwrap_err(), Status::OutOfMemory);
    let error = last_error();
    assert!(error.starts_with("gpuheap_allocate: out of GPU memory: 32 MiB"), "{error}");
    // The error's text names the options of the C interface, not functions of Rust.
    let knobs = "(gpuheap_options.hard_limit, gpuheap_set_limits or GPUHEAP_MEMORY_LIMIT)";
    assert!(error.contains(knobs) && !error.contains("::"), "{error}");
    // This call removes the limits.
    assert_eq!(call!(gpuheap_set_limits(client.0, 0, 0, ptr::null_mut())), Status::Ok);
    let memory = client.allocate(32 * MIB, CUstream::NULL).unwrap();
    assert_eq!(client.free(memory), Status::Ok);
    client.assert_all_returned("limits");
}

#[test]
fn refused_limits_change_nothing() {
    for pool in [PoolKind::None, PoolKind::Driver, PoolKind::Split] {
        let device = device(Schedule::Immediate);
        let heap = Heap::builder(&device).pool(pool).hard_limit(64 * MIB).build().unwrap();
        let client = Client(gpuheap_heap::new(&device, &heap));
        let before = heap.limits();
        let (soft, hard) = if pool == PoolKind::Driver { (8, 512) } else { (9, 8) };
        // SAFETY: the heap is open.
        let status = call!(gpuheap_set_limits(client.0, soft * MIB, hard * MIB, ptr::null_mut()));
        assert_eq!((status, heap.limits()), (Status::Refused, before), "{pool}: {}", last_error());
        assert_eq!(client.allocate(100 * MIB, CUstream::NULL).unwrap_err(), Status::OutOfMemory);
        drop(heap);
        client.assert_all_returned(pool.name());
    }
}

#[test]
fn status_text_is_cut_to_buffer() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let whole = client.inside().1.memory_status().unwrap().to_string();
    let read = |capacity: usize| {
        let mut buffer = vec![b'#'; whole.len() + 20];
        let mut length = 0;
        let pointer = buffer.as_mut_ptr().cast::<c_char>();
        let status = call!(gpuheap_memory_status(client.0, 0, pointer, capacity, &mut length));
        assert_eq!((status, length), (Status::Ok, whole.len()));
        assert!(buffer[capacity..].iter().all(|byte| *byte == b'#'), "written past {capacity}");
        buffer
    };
    for capacity in [1, 2, 10, whole.len(), whole.len() + 1, whole.len() + 10] {
        let buffer = read(capacity);
        let text = CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap();
        assert_eq!(text, &whole[..whole.len().min(capacity - 1)]);
    }
    read(0);
    assert_eq!(
        call!(gpuheap_memory_status(client.0, 0, ptr::null_mut(), 0, ptr::null_mut())),
        Status::Ok
    );
    client.assert_all_returned("status");
}

#[test]
fn options_choose_pool_and_limits() {
    let name = std::env::var("GPUHEAP_TEST_DEVICE").unwrap_or_else(|_| "emulated:1GiB".to_owned());
    let name = std::ffi::CString::new(name).unwrap();
    let options = gpuheap_options {
        size: size_of::<gpuheap_options>(),
        pool: c"binned".as_ptr(),
        tracking: c"counts".as_ptr(),
        hard_limit: 64 * MIB,
        soft_limit: 32 * MIB,
        idle_trim_milliseconds: 100_000,
        zero_on_free: -1,
        zero_on_alloc: 1,
        without_environment: 1,
        unannounced_streams: 0,
        slack: 0.0,
    };
    let mut heap = ptr::null_mut();
    assert_eq!(call!(gpuheap_open(name.as_ptr(), &options, &mut heap)), Status::Ok);
    let client = Client(heap);
    let inside = client.inside().1;
    assert_eq!(inside.pool(), PoolKind::Binned);
    let limits = inside.limits();
    assert_eq!((limits.hard, limits.soft), (Some(64 * MIB), Some(32 * MIB)));
    let memory = client.allocate(MIB, CUstream::NULL).unwrap();
    assert_eq!(inside.memory_status().unwrap().outstanding.len(), 1, "it is tracked");
    assert_eq!(client.free(memory), Status::Ok);
    client.assert_all_returned("options");

    // Free and live blocks of 2 MiB alternate. If the pool packs, it maps the free blocks together
    // for a request of 8 MiB. Otherwise it takes new memory from the driver.
    for (slack, packs) in [(0.0, false), (1.0, false), (-1.0, true)] {
        let mut heap = ptr::null_mut();
        let options = gpuheap_options {
            pool: c"stitched".as_ptr(),
            hard_limit: 1 << 30,
            soft_limit: 0,
            slack,
            ..options
        };
        assert_eq!(call!(gpuheap_open(name.as_ptr(), &options, &mut heap)), Status::Ok);
        let client = Client(heap);
        let inside = client.inside().1;
        let mut blocks: Vec<_> =
            (0..8).map(|_| client.allocate(2 * MIB, CUstream::NULL).unwrap()).collect();
        for at in [6, 4, 2, 0] {
            assert_eq!(client.free(blocks.remove(at)), Status::Ok);
        }
        let before = inside.usage().unwrap().reserved;
        blocks.push(client.allocate(8 * MIB, CUstream::NULL).unwrap());
        let more = inside.usage().unwrap().reserved - before;
        assert_eq!(more == 0, packs, "{slack}: {more} bytes more");
        for block in blocks {
            assert_eq!(client.free(block), Status::Ok);
        }
        client.assert_all_returned("slack");
    }

    // Null options, and options of a newer program that sets no new field, are accepted.
    // SAFETY: options of zeros are valid.
    let mut newer = unsafe { MaybeUninit::<[gpuheap_options; 2]>::zeroed().assume_init() };
    assert_eq!(call!(gpuheap_open(name.as_ptr(), ptr::null(), &mut heap)), Status::Ok);
    assert_eq!(call!(gpuheap_close(heap)), Status::Ok);
    newer[0].size = 2 * size_of::<gpuheap_options>();
    assert_eq!(call!(gpuheap_open(name.as_ptr(), newer.as_ptr().cast(), &mut heap)), Status::Ok);
    assert_eq!(call!(gpuheap_close(heap)), Status::Ok);
    // The newer program sets a field that this library does not know.
    newer[1].unannounced_streams = 1;
    assert_eq!(
        call!(gpuheap_open(name.as_ptr(), newer.as_ptr().cast(), &mut heap)),
        Status::Refused
    );
    assert!(heap.is_null());
    assert!(last_error().contains("others are set"), "{}", last_error());
}

#[test]
fn newer_program_gets_zeroed_fields() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let size = 2 * size_of::<gpuheap_statistics>();
    let mut both = [gpuheap_statistics { live: 77, size, ..Default::default() }; 2];
    assert_eq!(call!(gpuheap_get_statistics(client.0, both.as_mut_ptr())), Status::Ok);
    assert_eq!(both[0], gpuheap_statistics { size, ..client.statistics() });
    assert_eq!(both[1], gpuheap_statistics::default());
    client.assert_all_returned("statistics");
}

#[test]
fn closing_frees_live_memory() {
    let schedules = [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(4)];
    for (pool, schedule) in PoolKind::ALL.into_iter().flat_map(|pool| schedules.map(|s| (pool, s)))
    {
        let (device, client) = Client::scheduled(schedule, pool);
        let streams = [make_stream(&device), make_stream(&device)];
        for stream in streams {
            for _ in 0..3 {
                client.allocate(5 * MIB, stream).unwrap().fill(&device, 3, stream);
            }
            let freed = client.allocate(7 * MIB, stream).unwrap();
            freed.fill(&device, 4, stream);
            assert_eq!(client.free(freed), Status::Ok);
        }
        // Destroys the streams unannounced, before their work is done.
        streams.into_iter().for_each(|stream| destroy_stream(&device, stream));
        let touched = || {
            let calls = ["cuEventRecord", "cuStreamWaitEvent", "cuMemFreeAsync"];
            let count = |name| device.emulator().map(|emulator| emulator.calls_of(name));
            calls.map(count)
        };
        let before = touched();
        assert_eq!(call!(gpuheap_close(client.0)), Status::Ok, "{}", last_error());
        assert_eq!(touched(), before, "{pool}: a stream that is gone was used");
        device.synchronize().unwrap();
        if let Some(emulator) = device.emulator() {
            assert_eq!((emulator.usage(0).plain, emulator.usage(0).pools), (0, 0), "{pool}");
        }
        support::assert_no_findings(&device, pool.name());
    }
}

#[test]
fn version_equals_the_packages() {
    // SAFETY: the pointer is never null.
    let version = unsafe { CStr::from_ptr(gpuheap_version()) };
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}
