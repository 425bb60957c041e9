//! Tests of scopes.

use std::ptr;

use gpuheap::PoolKind;
use gpuheap::emu::Schedule;
use gpuheap_capi::*;
use gpuheap_driver::CUstream;

use crate::client::{Client, Status, device, last_error};

struct Scope(*mut gpuheap_scope);

fn open(client: &Client) -> Scope {
    let mut scope = ptr::null_mut();
    let opened = call!(gpuheap_open_scope(client.0, c"a scope".as_ptr(), &mut scope));
    assert_eq!(opened, Status::Ok);
    Scope(scope)
}

impl Scope {
    fn close(self) -> gpuheap_scope_report {
        let size = size_of::<gpuheap_scope_report>();
        let mut report = gpuheap_scope_report { size, ..Default::default() };
        assert_eq!(call!(gpuheap_close_scope(self.0, &mut report)), Status::Ok);
        report
    }
}

#[test]
fn scope_end_frees_its_memory() {
    let (_device, client) = Client::scheduled(Schedule::OnDemand, PoolKind::Split);
    let before = client.allocate(10, CUstream::NULL).unwrap();
    let scope = open(&client);
    let [freed, left, kept] =
        [100, 1000, 10_000].map(|bytes| client.allocate(bytes, CUstream::NULL).unwrap());
    assert_eq!(client.free(freed), Status::Ok);
    assert_eq!(call!(gpuheap_keep(client.0, kept.address)), Status::Ok);
    assert_eq!(call!(gpuheap_keep(client.0, before.address)), Status::Ok, "of no scope");
    // The new allocation gets an address that was freed inside the scope. The address now belongs
    // to the new allocation.
    let again = client.allocate(100, CUstream::NULL).unwrap();
    assert_eq!(again.address, freed.address);
    let report = scope.close();
    assert_eq!((report.allocations, report.allocated_bytes, report.peak), (4, 11_200, 11_100));
    assert_eq!((report.freed_at_end, report.freed_at_end_bytes), (2, 1100));
    assert_eq!(client.free(left), Status::UnknownAddress);
    let outside = client.allocate(1, CUstream::NULL).unwrap();
    assert_eq!(client.statistics().live, 10 + 10_000 + 1);
    for memory in [before, kept, outside] {
        assert_eq!(client.free(memory), Status::Ok);
    }
    client.assert_all_returned("a scope");
}

#[test]
fn scopes_end_in_any_order() {
    let [client, another] =
        [(); 2].map(|()| Client::new(&device(Schedule::Immediate), PoolKind::Split));
    let outer = open(&client);
    let inner = open(&client);
    let _in_inner = client.allocate(1, CUstream::NULL).unwrap();
    let elsewhere = another.allocate(1, CUstream::NULL).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let theirs = client.allocate(1, CUstream::NULL).unwrap();
            assert_eq!(client.free(theirs), Status::Ok);
        });
    });
    let report = outer.close();
    assert_eq!((report.allocations, report.freed_at_end), (0, 0));
    let _in_inner_too = client.allocate(1, CUstream::NULL).unwrap();
    let report = inner.close();
    assert_eq!((report.allocations, report.freed_at_end), (2, 2));
    assert_eq!(another.free(elsewhere), Status::Ok);
    client.assert_all_returned("scopes");
    another.assert_all_returned("another heap");
}

#[test]
fn scope_of_another_thread_is_refused() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let scope = open(&client);
    let address = scope.0 as usize;
    std::thread::spawn(move || {
        let closed = call!(gpuheap_close_scope(address as *mut gpuheap_scope, ptr::null_mut()));
        assert_eq!(closed, Status::Refused);
        assert!(
            last_error().contains("'a scope' was opened by another thread"),
            "{}",
            last_error()
        );
    })
    .join()
    .unwrap();
    scope.close();
    client.assert_all_returned("a scope of another thread");
}

/// While a scope ends, another thread frees memory that the scope is about to free, and allocates
/// again. The emulator's checks must find nothing.
#[test]
fn scope_ends_amid_remote_frees() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    for _ in 0..200 {
        let scope = open(&client);
        let made: Vec<_> =
            (0..20).map(|_| client.allocate(1000, CUstream::NULL).unwrap()).collect();
        let theirs = std::thread::scope(|threads| {
            let other = threads.spawn(|| {
                let freed =
                    made.iter().filter(|memory| client.free(**memory) == Status::Ok).count();
                (0..freed)
                    .map(|_| client.allocate(1000, CUstream::NULL).unwrap())
                    .collect::<Vec<_>>()
            });
            scope.close();
            other.join().unwrap()
        });
        assert_eq!(client.statistics().live, theirs.len() as u64 * 1000);
        for memory in theirs {
            assert_eq!(client.free(memory), Status::Ok);
        }
    }
    client.assert_all_returned("threads");
}

#[test]
fn scope_outlives_its_heap() {
    let (_device, client) = Client::scheduled(Schedule::Immediate, PoolKind::Split);
    let scope = open(&client);
    client.allocate(1000, CUstream::NULL).unwrap();
    assert_eq!(call!(gpuheap_close(client.0)), Status::Ok);
    assert_eq!(call!(gpuheap_close_scope(scope.0, ptr::null_mut())), Status::Gone);
}
