//! Handles, memory and queued work after their context ends. The tests cover cases in which a real
//! device crashes or was not measured.
#![allow(clippy::unwrap_used)]

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, FindingKind, Options, Profile, Schedule};

mod calls;

use calls::{call, made, ok};

const MIB: usize = 1 << 20;
const DESTROYED: CUresult = CUresult::ERROR_CONTEXT_IS_DESTROYED;

/// Creates an emulator that does its work on demand. The primary context of device 0 is current.
fn start(devices: usize) -> (Emulator, CUcontext) {
    let devices = vec![Profile::h200(); devices];
    let gpu = calls::start(Options { devices, schedule: Schedule::OnDemand, ..Options::default() });
    let context = made!(gpu, cuCtxGetCurrent());
    (gpu, context)
}

/// Creates a context, makes it current, and creates a stream in it.
fn own_context(gpu: &Emulator) -> (CUcontext, CUstream) {
    let own = made!(gpu, cuCtxCreate_v2(0, 0));
    let stream = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    (own, stream)
}

#[test]
fn a_destroyed_context_is_refused() {
    let (gpu, primary) = start(1);
    let (own, _) = own_context(&gpu);
    ok!(gpu, cuCtxDestroy_v2(own));
    assert_eq!(call!(gpu, cuCtxSetCurrent(own)), DESTROYED);
    assert_eq!(call!(gpu, cuCtxPushCurrent_v2(own)), DESTROYED);
    assert_eq!(call!(gpu, cuCtxDestroy_v2(own)), DESTROYED);
    let current = made!(gpu, cuCtxGetCurrent());
    assert_eq!(current, primary);
}

#[test]
fn stale_handles_name_their_context() {
    let (gpu, _) = start(1);
    let stream = made!(gpu, cuStreamCreate(0));
    let event = made!(gpu, cuEventCreate(0));
    ok!(gpu, cuDevicePrimaryCtxReset_v2(0));
    assert_eq!(call!(gpu, cuStreamSynchronize(stream)), DESTROYED);
    assert_eq!(call!(gpu, cuEventQuery(event)), DESTROYED);
    ok!(gpu, cuCtxSetCurrent(CUcontext::NULL));
    assert_eq!(call!(gpu, cuStreamSynchronize(stream)), CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(call!(gpu, cuEventQuery(event)), CUresult::ERROR_INVALID_HANDLE);
}

#[test]
fn orphaned_pool_memory_is_no_leak() {
    let (gpu, _) = start(1);
    let (own, stream) = own_context(&gpu);
    let pointer = made!(gpu, cuMemAllocAsync(MIB, stream));
    ok!(gpu, cuCtxDestroy_v2(own));
    // A new context that reuses the first context's index does not get the first context's objects.
    let (other, stream) = own_context(&gpu);
    let mut context = other;
    let attribute = CUpointer_attribute::CONTEXT;
    ok!(gpu, cuPointerGetAttribute((&raw mut context).cast(), attribute, pointer));
    assert_eq!(context, CUcontext::NULL);
    ok!(gpu, cuCtxDestroy_v2(other));
    assert_eq!(call!(gpu, cuStreamQuery(stream)), CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(gpu.findings().unwrap(), []);
    ok!(gpu, cuMemFree_v2(pointer));
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(gpu.usage(0).pools, 0);
}

#[test]
fn pool_memory_keeps_bytes_over_reset() {
    let (gpu, primary) = start(1);
    let (mut pointer, mut host) = (0, [0_u8; 4]);
    ok!(gpu, cuMemAllocAsync(&mut pointer, MIB, CUstream::NULL));
    ok!(gpu, cuMemsetD8_v2(pointer, 7, MIB));
    let reserved = gpu.usage(0).pools;
    assert!(reserved >= MIB as u64);
    ok!(gpu, cuDevicePrimaryCtxReset_v2(0));
    assert_eq!(gpu.usage(0).pools, reserved);
    let again = made!(gpu, cuDevicePrimaryCtxRetain(0));
    assert_eq!(again, primary);
    ok!(gpu, cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), pointer, host.len()));
    assert_eq!(host, [7; 4]);
    ok!(gpu, cuMemFreeAsync(pointer, CUstream::NULL));
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(gpu.usage(0).pools, 0, "nothing is reserved for memory that was freed");
    assert_eq!(gpu.findings().unwrap(), []);
}

#[test]
fn pool_memory_at_release_is_leak() {
    let (gpu, _) = start(1);
    ok!(gpu, cuMemAllocAsync(&mut 0, MIB, CUstream::NULL));
    ok!(gpu, cuDevicePrimaryCtxRelease_v2(0));
    let kinds: Vec<_> = gpu.findings().unwrap().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Leak]);
}

#[test]
fn foreign_stream_free_returns_memory_once() {
    let (gpu, primary) = start(1);
    let pointer = made!(gpu, cuMemAllocAsync(40 * MIB, CUstream::NULL));
    ok!(gpu, cuCtxSynchronize());
    let (own, stream) = own_context(&gpu);
    ok!(gpu, cuMemFreeAsync(pointer, stream));
    ok!(gpu, cuDevicePrimaryCtxReset_v2(0));
    ok!(gpu, cuCtxSetCurrent(own));
    // The free is still queued, so no other stream may use the freed place yet.
    let one = made!(gpu, cuMemAllocAsync(40 * MIB, CUstream::NULL));
    let two = made!(gpu, cuMemAllocAsync(40 * MIB, stream));
    assert!(gpu.usage(0).pools >= 80 * MIB as u64, "each has a place of its own");
    ok!(gpu, cuMemFreeAsync(one, stream));
    ok!(gpu, cuMemFreeAsync(two, stream));
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(gpu.usage(0).pools, 0);
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut CUcontext::default(), 0));
    ok!(gpu, cuCtxSetCurrent(primary));
}

#[test]
fn freed_host_memory_stays_untouched() {
    let (gpu, here) = start(2);
    let mut there = CUcontext::NULL;
    let mut host = std::ptr::null_mut();
    ok!(gpu, cuMemAllocHost_v2(&mut host, MIB));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut there, 1));
    ok!(gpu, cuCtxPushCurrent_v2(there));
    let stream = made!(gpu, cuStreamCreate(CU_STREAM_NON_BLOCKING));
    let pointer = made!(gpu, cuMemAlloc_v2(MIB));
    ok!(gpu, cuMemsetD8_v2(pointer, 1, MIB));
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuMemcpyDtoHAsync_v2(host, pointer, MIB, stream));
    ok!(gpu, cuCtxPushCurrent_v2(here));
    ok!(gpu, cuMemFreeHost(host));
    ok!(gpu, cuStreamQuery(stream));
}

#[test]
fn ordered_managed_free_is_found() {
    let (gpu, _) = start(1);
    let managed = made!(gpu, cuMemAllocManaged(MIB, CU_MEM_ATTACH_GLOBAL));
    let refused = call!(gpu, cuMemFreeAsync(managed, CUstream::NULL));
    assert_eq!(refused, CUresult::ERROR_NOT_SUPPORTED);
    let kinds: Vec<_> = gpu.findings().unwrap().iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::WrongFree]);
    ok!(gpu, cuMemFree_v2(managed));
}
