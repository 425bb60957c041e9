//! Tests a fork without exec. In the child, every function returns a status, and no function blocks
//! on a lock.
#![cfg(unix)]

use std::sync::atomic::{AtomicBool, Ordering};

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_driver::CUstream;

use crate::all_functions::call_each;
use crate::client::{Client, Status, last_error};

#[test]
fn forked_child_gets_a_status() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let memory = client.allocate(1 << 20, CUstream::NULL).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two threads call the heap all the time, so that a thread may hold a lock during the fork.
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

/// Calls every function of the C interface in a forked child. Returns 0 if each returns
/// GPUHEAP_STATUS_GONE and the error text names exec, else the number of the first failed check.
fn child(client: Client, memory: crate::client::Memory) -> i32 {
    if client.allocate(1, CUstream::NULL).err() != Some(Status::Gone) {
        return 100;
    }
    if !last_error().contains("exec") {
        return 101;
    }
    let called = call!(call_each(client.0, memory.address));
    let wrong = called.iter().position(|(_, status)| *status != Status::Gone);
    wrong.map_or(0, |at| 1 + at as i32)
}

/// Forks a child that runs `work`. Returns the child's exit code, or `None` if a signal or the
/// timeout ended the child.
fn end_of(work: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child calls only functions that may be called in a forked child, allocates
    // little, and ends with `_exit`. glibc keeps its allocator usable in a child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` ends a child that hangs. `_exit` ends the child without the parent's exit
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
