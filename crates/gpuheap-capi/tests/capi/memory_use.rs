//! Tests memory that several streams use, and batches of blocks.

use std::ffi::c_void;
use std::ptr;

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_capi::*;
use gpuheap_driver::CUstream;

use crate::client::{
    Client, Memory, Status, destroy_stream, handle, last_error, make_stream, order,
};

const SCHEDULES: [Schedule; 3] = [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(7)];

fn use_on(client: &Client, memory: Memory, stream: CUstream) -> Status {
    call!(gpuheap_used_on(client.0, memory.address, handle(stream)))
}

/// The emulator's checks report a reuse that is not ordered after a use. The device is so small
/// that each block reuses the previous block's memory.
#[test]
fn free_waits_for_named_streams() {
    for (pool, schedule) in PoolKind::ALL.into_iter().flat_map(|pool| SCHEDULES.map(|s| (pool, s)))
    {
        let device = crate::support::device(64 << 20, schedule);
        let client = Client::new(&device, pool);
        let [home, first, second, next] = [(); 4].map(|()| make_stream(&device));
        for round in 0..4 {
            let memory = client.allocate(40 << 20, home).unwrap();
            memory.fill(&device, round, home);
            for user in [first, second] {
                order(&device, home, user);
                assert_eq!(use_on(&client, memory, user), Status::Ok);
                assert_eq!(use_on(&client, memory, user), Status::Ok, "twice is once");
            }
            order(&device, first, second);
            memory.fill(&device, round, second);
            order(&device, second, first);
            memory.fill(&device, round, first);
            assert_eq!(client.free(memory), Status::Ok);
            let reused = client.allocate(40 << 20, next).unwrap();
            reused.fill(&device, round, next);
            assert_eq!(client.free(reused), Status::Ok);
            order(&device, next, home);
        }
        client.assert_all_returned(pool.name());
        for stream in [home, first, second, next] {
            destroy_stream(&device, stream);
        }
    }
}

#[test]
fn free_waits_for_ended_stream() {
    let device = crate::support::device(64 << 20, Schedule::OnDemand);
    let client = Client::new(&device, PoolKind::Split);
    let [home, user, next] = [(); 3].map(|()| make_stream(&device));
    let memory = client.allocate(40 << 20, home).unwrap();
    order(&device, home, user);
    assert_eq!(use_on(&client, memory, user), Status::Ok);
    memory.fill(&device, 1, user);
    assert_eq!(client.stream_ended(user), Status::Ok);
    destroy_stream(&device, user);
    assert_eq!(client.free(memory), Status::Ok);
    let reused = client.allocate(40 << 20, next).unwrap();
    reused.fill(&device, 2, next);
    assert_eq!(client.free(reused), Status::Ok);
    client.assert_all_returned("a user that ended");
}

#[test]
fn fill_stays_inside_its_allocation() {
    let (device, client) = Client::scheduled(Schedule::OnDemand, PoolKind::Split);
    let memory = client.allocate(1000, CUstream::NULL).unwrap();
    let fill = |offset, bytes, value| {
        call!(gpuheap_fill(client.0, memory.address, offset, bytes, value, ptr::null_mut()))
    };
    assert_eq!(
        (fill(0, 1000, 0x1_07), fill(10, 5, 9), fill(1000, 0, 1)),
        (Status::Ok, Status::Ok, Status::Ok)
    );
    for (offset, bytes) in [(0, 1001), (1000, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert_eq!(fill(offset, bytes, 1), Status::Refused);
        assert!(last_error().contains("which has 1000 bytes"), "{}", last_error());
    }
    assert_eq!(call!(gpuheap_wait(client.0)), Status::Ok);
    let mut read = [0_u8; 1000];
    let copied = device.with_current(|driver| {
        // SAFETY: the memory is live, and as large as the array.
        unsafe { driver.cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), memory.address as u64, 1000) }
    });
    gpuheap_driver::check("cuMemcpyDtoH_v2", copied.unwrap()).unwrap();
    let expected: Vec<u8> =
        (0..1000).map(|at| if (10..15).contains(&at) { 9 } else { 7 }).collect();
    assert_eq!(read.as_slice(), expected);
    assert_eq!(client.free(memory), Status::Ok);
    let gone = call!(gpuheap_fill(client.0, memory.address, 0, 1, 0, ptr::null_mut()));
    assert_eq!(gone, Status::UnknownAddress);
    client.assert_all_returned("a fill");
}

#[test]
fn batch_comes_whole_or_empty() {
    let device = crate::support::emulated(64 << 20, Schedule::Immediate);
    let client = Client::new(&device, PoolKind::Split);
    let mut addresses: [*mut c_void; 4] = [ptr::without_provenance_mut(1); 4];
    let batch = |bytes: [u64; 4], addresses: &mut [*mut c_void; 4]| {
        call!(gpuheap_allocate_batch(
            client.0,
            4,
            bytes.as_ptr(),
            ptr::null_mut(),
            addresses.as_mut_ptr(),
        ))
    };
    assert_eq!(batch([1000, 0, 5 << 20, 1 << 30], &mut addresses), Status::OutOfMemory);
    assert_eq!(addresses, [ptr::null_mut(); 4]);
    assert_eq!(client.statistics().live, 0);
    assert_eq!(batch([1000, 0, 5 << 20, 7], &mut addresses), Status::Ok);
    assert_eq!(addresses.map(|address| address.is_null()), [false, true, false, false]);
    assert_eq!(client.statistics().live, 1000 + (5 << 20) + 7);
    // An unknown address in the batch does not prevent the other frees.
    let given = [addresses[0], ptr::without_provenance_mut(512), addresses[2], addresses[3]];
    let free = || call!(gpuheap_free_batch(client.0, 4, given.as_ptr()));
    assert_eq!(free(), Status::UnknownAddress);
    assert!(last_error().contains("begins at 0x200"), "{}", last_error());
    assert_eq!((client.statistics().live, free()), (0, Status::UnknownAddress));
    client.assert_all_returned("a batch");
}
