//! Replaces functions of the CUDA driver. The CUDA runtime calls them too. While the real runtime
//! runs a function that `runtime_api` passed on to it, its calls go on to the real driver.
#![allow(non_snake_case, reason = "named as in C")]

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::{CUdevice, CUdeviceptr, CUresult, CUstream};

use crate::serve::{self, Order};
use crate::table::{Out, Text};
use crate::unserved::{Foreign, counted};
use crate::{counts, devices, missing_driver, real, runtime_api};

pub(crate) fn cuInit(flags: c_uint) -> CUresult {
    counts::note_cuda();
    let code = real::cuInit(flags);
    if !code.is_success() {
        missing_driver::report_failed_start(code);
    }
    code
}

pub(crate) fn cuMemAlloc_v2(pointer: Out<CUdeviceptr>, bytes: usize) -> CUresult {
    let unserved = || counted(Foreign::Unserved, bytes, real::cuMemAlloc_v2(pointer, bytes));
    served(|| serve::allocate(pointer, bytes, Order::Plain)).unwrap_or_else(unserved)
}

pub(crate) fn cuMemFree_v2(pointer: CUdeviceptr) -> CUresult {
    served(|| serve::free(pointer, Order::Plain))
        .unwrap_or_else(|| passed_on(pointer, real::cuMemFree_v2(pointer)))
}

pub(crate) fn cuMemAllocAsync(
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let unserved =
        || counted(Foreign::Unserved, bytes, real::cuMemAllocAsync(pointer, bytes, stream));
    served(|| serve::allocate(pointer, bytes, Order::Stream(stream))).unwrap_or_else(unserved)
}

pub(crate) fn cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    served(|| serve::free(pointer, Order::Stream(stream)))
        .unwrap_or_else(|| passed_on(pointer, real::cuMemFreeAsync(pointer, stream)))
}

pub(crate) fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CUresult {
    served(|| serve::write_memory_info(free, total))
        .unwrap_or_else(|| real::cuMemGetInfo_v2(free, total))
}

pub(crate) fn cuStreamDestroy(stream: CUstream) -> CUresult {
    ended(stream, real::cuStreamDestroy)
}

pub(crate) fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    ended(stream, real::cuStreamDestroy_v2)
}

pub(crate) fn cuDevicePrimaryCtxReset(device: CUdevice) -> CUresult {
    reset(device);
    real::cuDevicePrimaryCtxReset(device)
}

pub(crate) fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    reset(device);
    real::cuDevicePrimaryCtxReset_v2(device)
}

pub(crate) fn cuGetProcAddress(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_int,
    flags: u64,
) -> CUresult {
    let code = real::cuGetProcAddress(symbol, function, version, flags);
    if code.is_success() {
        let _ = real::CATCHER.replace(symbol, function, version, flags);
    }
    code
}

pub(crate) fn cuGetProcAddress_v2(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
) -> CUresult {
    let code = real::cuGetProcAddress_v2(symbol, function, version, flags, status);
    if code.is_success() {
        let _ = real::CATCHER.replace(symbol, function, version, flags);
    }
    code
}

/// Calls `serve`, unless the real runtime makes this call in a function that `runtime_api` passed
/// on to it. Returns `None` then, so that the call goes to the driver.
fn served(serve: impl FnOnce() -> Option<CUresult>) -> Option<CUresult> {
    if runtime_api::is_passing_on() { None } else { serve() }
}

/// Counts a free that CUDA's function served with the result `code`, and returns `code`.
fn passed_on(pointer: CUdeviceptr, code: CUresult) -> CUresult {
    if !runtime_api::is_passing_on() {
        counts::count_pass_on(pointer, code);
    }
    code
}

/// Destroys a stream, unless a heap still needs it.
fn ended(stream: CUstream, destroy: fn(CUstream) -> CUresult) -> CUresult {
    let may_end = runtime_api::is_passing_on() || serve::announce_end(stream);
    if may_end { destroy(stream) } else { CUresult::SUCCESS }
}

fn reset(device: CUdevice) {
    if !runtime_api::is_passing_on() {
        devices::reset(device);
    }
}
