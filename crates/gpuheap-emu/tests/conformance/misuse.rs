//! Wrong arguments, and the codes that calls return for them. The emulator's checks are off,
//! because they would report this misuse.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use gpuheap_driver::*;

use crate::support::*;

const OK: CUresult = CUresult::SUCCESS;
const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
const HANDLE: CUresult = CUresult::ERROR_INVALID_HANDLE;

/// Asserts the code of each call. Each line has one call.
macro_rules! codes {
    ($gpu:expr; $($function:ident($($arg:expr),*) => $code:expr;)*) => {
        $(assert_eq!(
            code!($gpu, $function($($arg),*)), $code,
            "{} on {}", stringify!($function($($arg),*)), $gpu.name
        );)*
    };
}

#[test]
fn plain_memory() {
    on_every_driver_unchecked(|gpu| {
        let (mut p, mut base, mut length) = (0, 0, 0);
        codes! { gpu;
            cuMemAlloc_v2(&mut p, 0) => INVALID;
            cuMemAlloc_v2(null_mut(), 16) => INVALID;
            cuMemFree_v2(0) => OK;
            cuMemFree_v2(0x1234) => INVALID;
            cuMemFreeAsync(0, CUstream::NULL) => OK;
            cuMemAlloc_v2(&mut p, 4096) => OK;
            cuMemFree_v2(p + 256) => INVALID;
            cuMemGetInfo_v2(null_mut(), null_mut()) => OK;
            cuMemGetAddressRange_v2(null_mut(), null_mut(), p) => OK;
            cuMemGetAddressRange_v2(null_mut(), null_mut(), 0x1000) => OK;
            cuMemGetAddressRange_v2(&mut base, &mut length, 0x1000) => CUresult::ERROR_NOT_FOUND;
            cuMemFree_v2(p) => OK;
            cuMemFree_v2(p) => INVALID;
            cuMemFreeAsync(p, CUstream::NULL) => INVALID;
        }
        let mut pitch = 0;
        for (width, height, element) in [(100, 10, 3), (0, 10, 4), (10, 0, 4)] {
            codes! { gpu; cuMemAllocPitch_v2(&mut p, &mut pitch, width, height, element) => INVALID; }
        }
    });
}

#[test]
fn copies() {
    on_every_driver_unchecked(|gpu| {
        let p = gpu.allocate(4096);
        let mut host = vec![1_u8; 8192];
        let h: *mut c_void = host.as_mut_ptr().cast();
        let hd = h.expose_provenance() as u64;
        codes! { gpu;
            cuMemcpyHtoD_v2(p, h, 4096) => OK;
            cuMemcpyHtoD_v2(p, h, 4097) => INVALID;
            cuMemcpyHtoD_v2(p, null(), 0) => OK;
            cuMemcpyHtoD_v2(0, null(), 0) => OK;
            cuMemcpyHtoD_v2(p, null(), 16) => INVALID;
            cuMemcpyHtoD_v2(0x1000, h, 16) => INVALID;
            cuMemcpyHtoD_v2(hd, h.wrapping_byte_add(100), 16) => INVALID;
            cuMemcpyDtoH_v2(h, p, 16) => OK;
            cuMemcpyDtoD_v2(p, p + 8, 16) => OK;
            cuMemcpy(hd, hd + 64, 16) => OK;
            cuMemsetD8_v2(p, 1, 0) => OK;
            cuMemsetD8_v2(0, 1, 0) => OK;
            cuMemsetD8_v2(p, 1, 4097) => INVALID;
            cuMemsetD32_v2(p + 1, 1, 1) => INVALID;
            cuMemsetD16_v2(p + 1, 1, 1) => INVALID;
            cuMemsetD8_v2(0x1000, 1, 1) => INVALID;
            cuMemsetD2D8_v2(p, 64, 1, 65, 2) => INVALID;
            cuMemsetD2D8_v2(p, 64, 1, 64, 2) => OK;
            cuCtxSynchronize() => OK;
        }
        gpu.free(p);
    });
}

#[test]
fn streams_and_events() {
    on_every_driver_unchecked(|gpu| {
        let (mut s, stream) = (CUstream::NULL, gpu.stream());
        let (mut e, one, three) = (CUevent::NULL, gpu.event(), gpu.event());
        let mut two = CUevent::NULL;
        let mut ms = 0.0;
        codes! { gpu;
            cuStreamDestroy_v2(CUstream::NULL) => HANDLE;
            cuStreamDestroy_v2(CUstream::LEGACY) => HANDLE;
            cuStreamCreate(&mut s, 77) => INVALID;
            cuStreamCreate(null_mut(), 0) => INVALID;
            cuEventCreate(&mut e, 0xff) => INVALID;
            cuEventCreate(&mut two, CU_EVENT_DISABLE_TIMING) => OK;
            cuEventElapsedTime(&mut ms, one, three) => HANDLE;
            cuEventRecord(one, stream) => OK;
            cuEventElapsedTime(&mut ms, one, three) => HANDLE;
            cuEventRecord(two, stream) => OK;
            cuEventSynchronize(two) => OK;
            cuEventElapsedTime(&mut ms, one, two) => HANDLE;
            cuStreamWaitEvent(stream, one, 99) => INVALID;
            cuEventQuery(CUevent::NULL) => HANDLE;
            cuEventRecord(CUevent::NULL, stream) => HANDLE;
            cuEventDestroy_v2(CUevent::NULL) => HANDLE;
            cuLaunchHostFunc(stream, None, null_mut()) => INVALID;
            cuStreamAddCallback(stream, None, null_mut(), 0) => INVALID;
            cuEventDestroy_v2(one) => OK;
            cuEventDestroy_v2(two) => OK;
            cuEventDestroy_v2(three) => OK;
            cuStreamDestroy_v2(stream) => OK;
        }
    });
}

#[test]
fn pools() {
    on_every_driver_unchecked(|gpu| {
        let stream = gpu.stream();
        let mut default = CUmemoryPool::NULL;
        let (mut p, mut q) = (0, 0);
        let mut one = 1_u64;
        let high: *mut c_void = (&raw mut one).cast();
        codes! { gpu;
            cuDeviceGetDefaultMemPool(&mut default, gpu.device) => OK;
            cuMemAllocAsync(&mut p, 0, stream) => OK;
            cuMemAllocAsync(&mut p, 1 << 50, stream) => CUresult::ERROR_OUT_OF_MEMORY;
            cuMemAllocAsync(&mut p, 1, stream) => OK;
            cuMemAllocAsync(&mut q, 1, stream) => OK;
            cuMemFreeAsync(q, stream) => OK;
            cuMemFreeAsync(q, stream) => INVALID;
            cuMemFreeAsync(p + 1, stream) => INVALID;
            cuMemFree_v2(p) => OK;
            cuMemPoolDestroy(default) => INVALID;
            cuMemPoolTrimTo(CUmemoryPool::NULL, 0) => INVALID;
            cuStreamSynchronize(stream) => OK;
        }
        codes! { gpu;
            cuMemPoolSetAttribute(default, CUmemPool_attribute::RESERVED_MEM_HIGH, high) => INVALID;
            cuMemPoolSetAttribute(default, CUmemPool_attribute::RESERVED_MEM_CURRENT, high) => INVALID;
            cuStreamDestroy_v2(stream) => OK;
        }
    });
}

#[test]
fn host_memory() {
    on_every_driver_unchecked(|gpu| {
        let mut own = vec![0_u8; 1 << 20];
        let h: *mut c_void = own.as_mut_ptr().cast();
        let mut hp = null_mut();
        codes! { gpu;
            cuMemFreeHost(null_mut()) => OK;
            cuMemFreeHost(std::ptr::without_provenance_mut(0x1000)) => INVALID;
            cuMemAllocHost_v2(&mut hp, 0) => OK;
            cuMemHostAlloc(&mut hp, 100, 0xff) => INVALID;
            cuMemHostRegister_v2(null_mut(), 10, 0) => INVALID;
            cuMemHostRegister_v2(h, 0, 0) => INVALID;
            cuMemHostRegister_v2(h, 1 << 20, 0) => OK;
            cuMemHostRegister_v2(h, 1 << 20, 0) => CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED;
            cuMemHostUnregister(h.wrapping_byte_add(8)) => INVALID;
            cuMemHostUnregister(h) => OK;
            cuMemHostUnregister(h) => CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED;
        }
    });
}

#[test]
fn devices_and_contexts() {
    on_every_driver_unchecked(|gpu| {
        let mut device = 0;
        let mut context = CUcontext::NULL;
        let mut value = 0;
        let (mut pointer, kept) = (0, gpu.allocate(16));
        codes! { gpu;
            cuInit(1) => INVALID;
            cuDeviceGet(&mut device, 99) => CUresult::ERROR_INVALID_DEVICE;
            cuDeviceGet(&mut device, -1) => CUresult::ERROR_INVALID_DEVICE;
            cuDeviceGetAttribute(&mut value, CUdevice_attribute(100_000), gpu.device) => INVALID;
            cuCtxPushCurrent_v2(CUcontext::NULL) => INVALID;
            cuCtxPopCurrent_v2(&mut context) => OK;
            cuCtxPopCurrent_v2(&mut context) => CUresult::ERROR_INVALID_CONTEXT;
            cuMemFree_v2(0x1000) => INVALID;
            cuMemAlloc_v2(&mut pointer, 16) => CUresult::ERROR_INVALID_CONTEXT;
            cuMemFree_v2(kept) => OK;
            cuCtxSetCurrent(gpu.context) => OK;
        }
    });
}
