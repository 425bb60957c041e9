//! `cuGetProcAddress`: a function by base name and version.
//!
//! The reference does not say what a failed search does to the results, so each outcome does what
//! libcuda 13.0 did on an H200. The first form fails with `CUDA_ERROR_NOT_FOUND` and leaves its
//! result unchanged. The second form succeeds with null and gives the reason in its status.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use gpuheap_driver::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, Lookup, lookup};

use crate::process;

/// Outcomes of the search, numbered as in `CUdriverProcAddressQueryResult`.
const FOUND: c_int = 0;
const SYMBOL_NOT_FOUND: c_int = 1;
const VERSION_NOT_SUFFICIENT: c_int = 2;

/// All bits that the flags may have. Without the bit for per-thread default streams, the search is
/// for the legacy default stream. A program's choice for 0 is made when it is compiled.
const KNOWN_FLAGS: u64 = 3;

/// Address of an exported symbol, twins included; `None` for a symbol that is not exported.
type AddressOf = fn(&str) -> Option<*mut c_void>;

/// Looks up an entry point as `cuGetProcAddress`.
///
/// # Safety
///
/// `symbol` is null or a C string; `function` is null or valid for a write.
pub(crate) unsafe fn find(
    address_of: AddressOf,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    let (mut found, mut status) = (ptr::null_mut(), FOUND);
    if function.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller promises the symbol, and the results are local variables.
    let code =
        unsafe { find_with_status(address_of, symbol, &mut found, version, flags, &mut status) };
    if code.is_success() && status != FOUND {
        return CUresult::ERROR_NOT_FOUND;
    }
    if code.is_success() {
        // SAFETY: not null, so valid for a write.
        unsafe { function.write(found) };
    }
    code
}

/// Looks up an entry point as `cuGetProcAddress_v2`.
///
/// # Safety
///
/// `symbol` is null or a C string; `function` and `status` are each null or valid for a write.
pub(crate) unsafe fn find_with_status(
    address_of: AddressOf,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CUresult {
    if symbol.is_null() || function.is_null() || flags & !KNOWN_FLAGS != 0 {
        return CUresult::ERROR_INVALID_VALUE;
    }
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    // SAFETY: not null, so a C string.
    let base = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    let asked = || format!("{base} of CUDA {}.{}", version / 1000, version % 1000 / 10);
    if version > process::driver_version() {
        process::log(|| format!("no {}: the driver is older", asked()));
        return CUresult::ERROR_INVALID_VALUE;
    }
    let (address, outcome) = match lookup(&base, version, per_thread) {
        Lookup::Found(symbol) => (address_of(symbol), FOUND),
        Lookup::NotFound => (None, SYMBOL_NOT_FOUND),
        Lookup::VersionTooOld => (None, VERSION_NOT_SUFFICIENT),
    };
    if address.is_none() {
        process::log(|| format!("no {} or before", asked()));
    }
    // SAFETY: `function` is not null, so valid for a write. `status` is valid for a write if it is
    // not null.
    unsafe {
        function.write(address.unwrap_or(ptr::null_mut()));
        if !status.is_null() {
            status.write(outcome);
        }
    }
    CUresult::SUCCESS
}
