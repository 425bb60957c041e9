//! A fork without exec: in the child every function returns a status, and none blocks on a lock.
#![cfg(unix)]

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_capi::*;
use gpuheap_driver::CUstream;

use crate::client::{Client, Status, device, last_error};

#[test]
fn a_forked_child_gets_a_status() {
    let device = device(Schedule::Immediate);
    let client = Client::new(&device, PoolKind::Split);
    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Other threads hold the locks at any moment.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();
                    assert_eq!(client.free(memory), Status::Ok);
                }
            });
        }
        let ends: Vec<_> = (0..30).map(|_| end_of(|| child(client, memory))).collect();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(ends, vec![Some(0); 30], "see the child's list; None: it hung");
    });
    assert_eq!(client.free(memory), Status::Ok);
    client.assert_all_returned("the parent");
}

fn child(client: Client, memory: crate::client::Memory) -> i32 {
    let (mut bytes, mut length) = (0, 0);
    let mut statistics =
        gpuheap_statistics { size: size_of::<gpuheap_statistics>(), ..Default::default() };
    let heap = client.0;
    // SAFETY: the heap is open, the pointers valid.
    unsafe {
        match () {
            () if client.allocate(1, CUstream::NULL).err() != Some(Status::Gone) => 1,
            () if !last_error().contains("exec") => 2,
            () if client.free(memory) != Status::Gone => 3,
            () if client.free_on(memory, CUstream::NULL) != Status::Gone => 4,
            () if client.stream_ended(CUstream::NULL) != Status::Gone => 5,
            () if gpuheap_allocation_size(heap, memory.address, &mut bytes) != Status::Gone => 6,
            () if gpuheap_reclaim(heap, 1, &mut bytes) != Status::Gone => 7,
            () if gpuheap_reclaim_all(heap, &mut bytes) != Status::Gone => 8,
            () if gpuheap_set_limits(heap, 1, 2, &mut bytes) != Status::Gone => 9,
            () if gpuheap_get_statistics(heap, &mut statistics) != Status::Gone => 10,
            () if gpuheap_memory_status(heap, 0, ptr::null_mut(), 0, &mut length)
                != Status::Gone =>
            {
                11
            }
            () if gpuheap_close(heap) != Status::Gone => 12,
            () => 0,
        }
    }
}

/// Forks a child that runs `work`. Returns its exit code, if it ends by itself in good time.
fn end_of(work: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child calls functions made for it, allocates little, and ends by `_exit`. glibc
    // keeps its allocator usable in a child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` ends a child that hangs, and `_exit` ends it without the parent's exit
        // handlers.
        unsafe {
            libc::alarm(20);
            libc::_exit(work());
        }
    }
    let mut status = 0;
    // SAFETY: the pointer is valid, and this process forked the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}
