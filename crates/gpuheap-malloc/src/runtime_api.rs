//! The runtime's functions, as the program calls them. Each has the contract of the C function of
//! its name.
//!
//! The runtime remembers the last failure of each thread. A failure that is made here is therefore
//! made again in the runtime, by a call that fails in the same way.
#![allow(non_snake_case, reason = "named as in C")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use gpuheap_driver::{CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream};

use crate::serve::{self, Order};
use crate::{absent, counts, devices, pools, real};

/// Address that no allocation has, for which a free fails.
const NO_ALLOCATION: CUdeviceptr = 1;

thread_local! {
    /// `true` while this thread passes a call on to the runtime. Without a destructor, so that it
    /// exists at the thread's end too.
    static PASSING_ON: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` while this thread's call of the runtime was passed on: what the runtime asks of
/// the driver for it is the driver's.
pub(crate) fn is_passing_on() -> bool {
    PASSING_ON.get()
}

fn pass_on(call: impl FnOnce() -> CUresult) -> CUresult {
    let before = PASSING_ON.replace(true);
    let code = call();
    PASSING_ON.set(before);
    code
}

pub(crate) unsafe fn cudaMalloc(pointer: *mut CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match in_context(|| serve::allocate(pointer, bytes, Order::Plain)) {
            Some(CUresult::ERROR_OUT_OF_MEMORY) => fail_for_memory(),
            Some(code) => code,
            None => pass_on(|| real::cudaMalloc(pointer, bytes)),
        }
    }
}

pub(crate) unsafe fn cudaFree(pointer: CUdeviceptr) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match serve::free(pointer, Order::Plain) {
            Some(CUresult::ERROR_INVALID_VALUE) => fail_for_address(),
            Some(code) => code,
            None => {
                let code = pass_on(|| real::cudaFree(pointer));
                if !code.is_success() && devices::context().is_none() {
                    absent::no_context(code);
                }
                counts::passed_on(pointer, code);
                code
            }
        }
    }
}

pub(crate) unsafe fn cudaMallocAsync(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match in_context(|| serve::allocate(pointer, bytes, Order::Stream(stream))) {
            Some(CUresult::ERROR_OUT_OF_MEMORY) => fail_for_memory(),
            Some(code) => code,
            None => pass_on(|| real::cudaMallocAsync(pointer, bytes, stream)),
        }
    }
}

pub(crate) unsafe fn cudaMallocAsync_ptsz(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe { cudaMallocAsync(pointer, bytes, per_thread(stream)) }
}

pub(crate) unsafe fn cudaFreeAsync(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match serve::free(pointer, Order::Stream(stream)) {
            Some(CUresult::ERROR_INVALID_VALUE) => fail_for_address(),
            Some(code) => code,
            None => {
                let code = pass_on(|| real::cudaFreeAsync(pointer, stream));
                counts::passed_on(pointer, code);
                code
            }
        }
    }
}

pub(crate) unsafe fn cudaFreeAsync_ptsz(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe { cudaFreeAsync(pointer, per_thread(stream)) }
}

pub(crate) unsafe fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the caller keeps the contract.
    unsafe {
        in_context(|| serve::memory(free, total))
            .unwrap_or_else(|| pass_on(|| real::cudaMemGetInfo(free, total)))
    }
}

pub(crate) unsafe fn cudaMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    // SAFETY: the caller passes a pool that is alive.
    let code = pass_on(|| unsafe { real::cudaMemPoolTrimTo(pool, keep) });
    if code.is_success() { pools::trim(pool, keep) } else { code }
}

pub(crate) unsafe fn cudaMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the caller passes a pool that is alive, and a value of the attribute's type, which
    // the driver read if the call succeeded.
    unsafe {
        let code = pass_on(|| real::cudaMemPoolSetAttribute(pool, attribute, value));
        if code.is_success() {
            pools::set(pool, attribute, value);
        }
        code
    }
}

pub(crate) unsafe fn cudaMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the caller passes a pool that is alive, and room for a value of the attribute's type,
    // which the driver wrote if the call succeeded.
    unsafe {
        let code = pass_on(|| real::cudaMemPoolGetAttribute(pool, attribute, value));
        if code.is_success() {
            pools::add(pool, attribute, value);
        }
        code
    }
}

pub(crate) unsafe fn cudaIpcGetMemHandle(handle: *mut c_void, pointer: CUdeviceptr) -> CUresult {
    // The handle would be that of the driver's allocation around the block.
    if serve::has(pointer) {
        counts::refused_handle();
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the caller keeps the contract.
    unsafe { real::cudaIpcGetMemHandle(handle, pointer) }
}

pub(crate) unsafe fn cudaStreamDestroy(stream: CUstream) -> CUresult {
    if !serve::ends(stream) {
        return CUresult::SUCCESS;
    }
    // SAFETY: the caller keeps the contract.
    pass_on(|| unsafe { real::cudaStreamDestroy(stream) })
}

pub(crate) unsafe fn cudaStreamBeginCapture(stream: CUstream, mode: c_int) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cudaStreamBeginCapture(stream, mode) }
}

pub(crate) unsafe fn cudaStreamBeginCapture_ptsz(stream: CUstream, mode: c_int) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cudaStreamBeginCapture_ptsz(stream, mode) }
}

pub(crate) unsafe fn cudaStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: *mut c_void,
    nodes: *const c_void,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cudaStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode) }
}

pub(crate) unsafe fn cudaStreamBeginCaptureToGraph_ptsz(
    stream: CUstream,
    graph: *mut c_void,
    nodes: *const c_void,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> CUresult {
    serve::begins_capture();
    // SAFETY: the caller keeps the contract.
    unsafe { real::cudaStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode) }
}

pub(crate) unsafe fn cudaDeviceReset() -> CUresult {
    let mut device = 0;
    // SAFETY: the pointer is valid for a write, and the caller keeps the contract.
    unsafe {
        if real::cudaGetDevice(&mut device).is_success() {
            devices::reset(device);
        }
        pass_on(|| real::cudaDeviceReset())
    }
}

/// Calls `serve` with a context current, which the runtime makes at a thread's first call.
fn in_context(serve: impl Fn() -> Option<CUresult>) -> Option<CUresult> {
    serve().or_else(|| {
        if devices::context().is_some() {
            return None;
        }
        // SAFETY: a free of no memory.
        let code = pass_on(|| unsafe { real::cudaFree(0) });
        if devices::context().is_none() {
            absent::no_context(code);
            return None;
        }
        serve()
    })
}

/// Fails as an allocation that the device has no memory for.
fn fail_for_memory() -> CUresult {
    let mut pointer = 0;
    // SAFETY: the pointer is valid for a write. No device has so much memory.
    let _ = pass_on(|| unsafe { real::cudaMalloc(&mut pointer, usize::MAX / 2) });
    CUresult::ERROR_OUT_OF_MEMORY
}

/// Fails as a free of memory that is not allocated.
fn fail_for_address() -> CUresult {
    // SAFETY: the address is that of no allocation, and the call fails.
    let _ = pass_on(|| unsafe { real::cudaFree(NO_ALLOCATION) });
    CUresult::ERROR_INVALID_VALUE
}

/// Returns the stream that a handle means in a program with a default stream for each thread.
fn per_thread(stream: CUstream) -> CUstream {
    if stream == CUstream::NULL { CUstream::PER_THREAD } else { stream }
}
