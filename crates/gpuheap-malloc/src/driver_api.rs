//! The driver's functions, as the program calls them. Each has the contract of the C function of
//! its name. A call that comes from the runtime on behalf of `runtime_api` goes to the driver.
#![allow(non_snake_case, reason = "named as in C")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gpuheap_driver::{
    CUdevice, CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};

use crate::foreign::{Foreign, IpcHandle, counted};
use crate::serve::{self, Order};
use crate::{absent, counts, devices, lookup, pools, real, runtime_api};

pub(crate) unsafe fn cuInit(flags: c_uint) -> CUresult {
    counts::uses_cuda();
    // SAFETY: the caller keeps the contract.
    let code = unsafe { real::cuInit(flags) };
    if !code.is_success() {
        absent::does_not_start(code);
    }
    code
}

pub(crate) unsafe fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        served(|| serve::allocate(pointer, bytes, Order::Plain)).unwrap_or_else(|| {
            counted(Foreign::Unserved, bytes, real::cuMemAlloc_v2(pointer, bytes))
        })
    }
}

pub(crate) unsafe fn cuMemFree_v2(pointer: CUdeviceptr) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        served(|| serve::free(pointer, Order::Plain))
            .unwrap_or_else(|| passed_on(pointer, real::cuMemFree_v2(pointer)))
    }
}

pub(crate) unsafe fn cuMemAllocAsync(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        served(|| serve::allocate(pointer, bytes, Order::Stream(stream))).unwrap_or_else(|| {
            let code = real::cuMemAllocAsync(pointer, bytes, stream);
            counted(Foreign::Unserved, bytes, code)
        })
    }
}

pub(crate) unsafe fn cuMemAllocAsync_ptsz(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe { cuMemAllocAsync(pointer, bytes, per_thread(stream)) }
}

pub(crate) unsafe fn cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        served(|| serve::free(pointer, Order::Stream(stream)))
            .unwrap_or_else(|| passed_on(pointer, real::cuMemFreeAsync(pointer, stream)))
    }
}

pub(crate) unsafe fn cuMemFreeAsync_ptsz(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe { cuMemFreeAsync(pointer, per_thread(stream)) }
}

pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        served(|| serve::memory(free, total)).unwrap_or_else(|| real::cuMemGetInfo_v2(free, total))
    }
}

pub(crate) unsafe fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    // SAFETY: the caller passes a pool that is alive.
    let code = unsafe { real::cuMemPoolTrimTo(pool, keep) };
    if code.is_success() && !runtime_api::is_passing_on() { pools::trim(pool, keep) } else { code }
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the caller passes a pool that is alive, and a value of the attribute's type, which
    // the driver read if the call succeeded.
    unsafe {
        let code = real::cuMemPoolSetAttribute(pool, attribute, value);
        if code.is_success() && !runtime_api::is_passing_on() {
            pools::set(pool, attribute, value);
        }
        code
    }
}

pub(crate) unsafe fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the caller passes a pool that is alive, and room for a value of the attribute's type,
    // which the driver wrote if the call succeeded.
    unsafe {
        let code = real::cuMemPoolGetAttribute(pool, attribute, value);
        if code.is_success() && !runtime_api::is_passing_on() {
            pools::add(pool, attribute, value);
        }
        code
    }
}

/// Defines functions that are passed on as they are, and counted as memory that no heap serves.
macro_rules! foreign {
    ($($symbol:ident ($($arg:ident: $type:ty),*) $kind:ident $bytes:expr;)*) => {
        $(
            pub(crate) unsafe fn $symbol($($arg: $type),*) -> CUresult {
                // SAFETY: the caller keeps the contract.
                counted(Foreign::$kind, $bytes, unsafe { real::$symbol($($arg),*) })
            }
        )*
    };
}

foreign! {
    cuMemAllocManaged(pointer: *mut CUdeviceptr, bytes: usize, flags: c_uint) Managed bytes;
    cuMemAllocPitch_v2(pointer: *mut CUdeviceptr, pitch: *mut usize, width_bytes: usize, height: usize, element_bytes: c_uint)
        Pitched width_bytes.saturating_mul(height);
    cuMemAllocFromPoolAsync(pointer: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream) Pool bytes;
    cuMemAllocFromPoolAsync_ptsz(pointer: *mut CUdeviceptr, bytes: usize, pool: *mut c_void, stream: CUstream)
        Pool bytes;
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_void, flags: u64) Virtual bytes;
    cuArrayCreate_v2(array: *mut *mut c_void, description: *const c_void) Array 0;
    cuArray3DCreate_v2(array: *mut *mut c_void, description: *const c_void) Array 0;
    cuMipmappedArrayCreate(array: *mut *mut c_void, description: *const c_void, levels: c_uint) Array 0;
    cuIpcOpenMemHandle_v2(pointer: *mut CUdeviceptr, handle: IpcHandle, flags: c_uint) Imported 0;
}

pub(crate) unsafe fn cuIpcGetMemHandle(handle: *mut c_void, pointer: CUdeviceptr) -> CUresult {
    // The handle would be that of the driver's allocation around the block.
    if serve::has(pointer) {
        counts::refused_handle();
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuIpcGetMemHandle(handle, pointer) }
}

pub(crate) unsafe fn cuStreamDestroy(stream: CUstream) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe { ended(stream, || real::cuStreamDestroy(stream)) }
}

pub(crate) unsafe fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe { ended(stream, || real::cuStreamDestroy_v2(stream)) }
}

pub(crate) unsafe fn cuStreamBeginCapture(stream: CUstream, mode: c_int) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuStreamBeginCapture(stream, mode) }
}

pub(crate) unsafe fn cuStreamBeginCapture_ptsz(stream: CUstream, mode: c_int) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuStreamBeginCapture_ptsz(stream, mode) }
}

pub(crate) unsafe fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuStreamBeginCapture_v2(stream, mode) }
}

pub(crate) unsafe fn cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: c_int) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuStreamBeginCapture_v2_ptsz(stream, mode) }
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: *mut c_void,
    nodes: *const c_void,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode) }
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph_ptsz(
    stream: CUstream,
    graph: *mut c_void,
    nodes: *const c_void,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(device: CUdevice) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        reset(device);
        real::cuDevicePrimaryCtxReset(device)
    }
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        reset(device);
        real::cuDevicePrimaryCtxReset_v2(device)
    }
}

pub(crate) unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the caller keeps the contract. A call that succeeded had valid pointers.
    unsafe {
        let code = real::cuGetProcAddress(symbol, function, version, flags);
        if code.is_success() {
            lookup::replace(CStr::from_ptr(symbol), &mut *function, version, flags);
        }
        code
    }
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CUresult {
    // SAFETY: the caller keeps the contract. A call that succeeded had valid pointers.
    unsafe {
        let code = real::cuGetProcAddress_v2(symbol, function, version, flags, status);
        if code.is_success() {
            lookup::replace(CStr::from_ptr(symbol), &mut *function, version, flags);
        }
        code
    }
}

/// Calls `serve`, unless the runtime calls on behalf of `runtime_api`.
fn served(serve: impl FnOnce() -> Option<CUresult>) -> Option<CUresult> {
    if runtime_api::is_passing_on() { None } else { serve() }
}

/// Counts a free that was passed on.
fn passed_on(pointer: CUdeviceptr, code: CUresult) -> CUresult {
    if !runtime_api::is_passing_on() {
        counts::passed_on(pointer, code);
    }
    code
}

/// Destroys a stream, unless a heap still needs it.
///
/// # Safety
///
/// `destroy` may be called.
unsafe fn ended(stream: CUstream, destroy: impl FnOnce() -> CUresult) -> CUresult {
    if runtime_api::is_passing_on() || serve::ends(stream) { destroy() } else { CUresult::SUCCESS }
}

/// Ends the use of a device's heap.
///
/// # Safety
///
/// The contract of `cuDevicePrimaryCtxReset`.
unsafe fn reset(device: CUdevice) {
    if !runtime_api::is_passing_on() {
        // SAFETY: the caller keeps the contract.
        unsafe { devices::reset(device) };
    }
}

/// Returns the stream that a handle means in a program with a default stream for each thread.
fn per_thread(stream: CUstream) -> CUstream {
    if stream == CUstream::NULL { CUstream::PER_THREAD } else { stream }
}
