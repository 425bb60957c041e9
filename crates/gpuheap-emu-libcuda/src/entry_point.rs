//! `cuGetProcAddress`: looks up a function by base name and version.
//!
//! CUDA's reference does not define the results of a failed lookup. The results here match libcuda
//! 13.0 on an H200. `cuGetProcAddress` returns `CUDA_ERROR_NOT_FOUND` and does not write the
//! address. `cuGetProcAddress_v2` succeeds, writes a null address, and writes the reason as the
//! status.

use std::ffi::{c_int, c_void};
use std::ptr;

use gpuheap_driver::abi::{Arg, Out, Text};
use gpuheap_driver::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, Lookup, lookup};

use crate::process;

/// Outcomes of a lookup, numbered as in `CUdriverProcAddressQueryResult`.
const FOUND: c_int = 0;
const SYMBOL_NOT_FOUND: c_int = 1;
const VERSION_NOT_SUFFICIENT: c_int = 2;

/// Mask of all valid flags. Without the per-thread bit, a lookup returns functions for the legacy
/// default stream. `cuda.h` sets the bit in programs that are compiled for per-thread default
/// streams.
const KNOWN_FLAGS: u64 = 3;

/// Function that returns the address of an exported symbol, such as `cuMemAlloc_v2` or
/// `cuMemcpy_ptds`; `None` for other names.
type AddressOf = fn(&str) -> Option<*mut c_void>;

/// Looks up an entry point like `cuGetProcAddress`.
pub(crate) fn find(
    address_of: AddressOf,
    symbol: Text<CUresult>,
    function: Out<*mut c_void, CUresult>,
    version: c_int,
    flags: u64,
) -> CUresult {
    let (mut found, mut status) = (ptr::null_mut::<c_void>(), FOUND);
    // SAFETY: the pointers are valid until the call returns.
    let (place, place_of_status) = unsafe { ((&raw mut found).typed(), (&raw mut status).typed()) };
    let code = find_with_status(address_of, symbol, place, version, flags, place_of_status);
    match (code, function.require()) {
        (_, Err(code)) => code,
        (CUresult::SUCCESS, _) if status != FOUND => CUresult::ERROR_NOT_FOUND,
        (CUresult::SUCCESS, _) => function.write(found).err().unwrap_or(code),
        (code, _) => code,
    }
}

/// Looks up an entry point like `cuGetProcAddress_v2`.
pub(crate) fn find_with_status(
    address_of: AddressOf,
    symbol: Text<CUresult>,
    function: Out<*mut c_void, CUresult>,
    version: c_int,
    flags: u64,
    status: Out<c_int, CUresult>,
) -> CUresult {
    let find = || {
        function.require()?;
        let base = symbol.text()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let wanted = || format!("{base} of CUDA {}.{}", version / 1000, version % 1000 / 10);
        if version > process::driver_version() {
            process::log(|| format!("no {}: the driver is older", wanted()));
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
        let (address, outcome) = match lookup(&base, version, per_thread) {
            Lookup::Found(symbol) => (address_of(symbol), FOUND),
            Lookup::NotFound => (None, SYMBOL_NOT_FOUND),
            Lookup::VersionTooOld => (None, VERSION_NOT_SUFFICIENT),
        };
        if address.is_none() {
            process::log(|| format!("no {} or before", wanted()));
        }
        function.write(address.unwrap_or(ptr::null_mut()))?;
        status.write_if_wanted(outcome)
    };
    find().err().unwrap_or(CUresult::SUCCESS)
}
