//! Versions, and the way to the driver.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{CUevent, CUgraph, CUresult, CUstream, Driver};

use super::{entered, write};
use crate::abi;
use crate::call::driver;
use crate::error::{Outcome, check};
use crate::green;

/// Versions of the runtime that this library is for programs of CUDA 12 and 13, as
/// 1000 × major + 10 × minor.
const VERSIONS: [c_int; 2] = [12_090, 13_000];

pub(crate) unsafe fn cudaRuntimeGetVersion(version: *mut c_int) -> Outcome {
    // SAFETY: the caller promises the pointer.
    unsafe { write(version, runtime_version()) }
}

/// Status of a lookup that found the function.
const FOUND: c_int = 0;

pub(crate) unsafe fn cudaDriverGetVersion(version: *mut c_int) -> Outcome {
    // SAFETY: the caller promises the pointer.
    unsafe { write(version, driver().map_or(0, |driver| driver.version())) }
}

pub(crate) unsafe fn cudaGetDriverEntryPoint(
    symbol: *const c_char,
    function: *mut *mut c_void,
    flags: u64,
    status: *mut c_int,
) -> Outcome {
    let version = runtime_version().min(driver()?.version());
    // SAFETY: the caller promises the pointers.
    unsafe {
        cudaGetDriverEntryPointByVersion(symbol, function, version.cast_unsigned(), flags, status)
    }
}

pub(crate) unsafe fn cudaGetDriverEntryPointByVersion(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_uint,
    flags: u64,
    status: *mut c_int,
) -> Outcome {
    let version = version.cast_signed();
    // SAFETY: the caller promises the pointers.
    let found =
        check(unsafe { driver()?.cuGetProcAddress_v2(symbol, function, version, flags, status) });
    if symbol.is_null() || function.is_null() {
        return found;
    }
    // SAFETY: both are not null, so a C string and valid for access: the caller promises it.
    let refusing = unsafe {
        match (*function).is_null() {
            true => green::refusing(std::ffi::CStr::from_ptr(symbol).to_bytes()),
            false => None,
        }
    };
    let Some(refusing) = refusing else { return found };
    // SAFETY: not null, so valid for a write. A null `status` is not written.
    unsafe {
        function.write(refusing);
        if let Some(status) = status.as_mut() {
            *status = FOUND;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cudaStreamCreate(stream: *mut CUstream) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { entered()?.cuStreamCreate(stream, 0) })
}

pub(crate) unsafe fn cudaEventCreate(event: *mut CUevent) -> Outcome {
    // SAFETY: the caller promises the pointer.
    check(unsafe { entered()?.cuEventCreate(event, 0) })
}

pub(crate) unsafe fn cudaGraphDebugDotPrint(
    _graph: CUgraph,
    path: *const c_char,
    _flags: c_uint,
) -> Outcome {
    if path.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so a C string: the caller promises it.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_string_lossy();
    std::fs::write(&*path, "digraph dot {\n}\n").map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

fn runtime_version() -> c_int {
    VERSIONS[usize::from(abi::major() == 13)]
}
