//! Lookups by the program with `cuGetProcAddress`. For names in the table, it returns this
//! library's functions.

use std::ffi::{c_int, c_void};

use gpuheap_driver::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, Lookup, lookup};

use crate::real;
use crate::table::{Out, Text};

/// Replaces the function that `cuGetProcAddress` found with this library's function of that name.
pub(crate) fn replace(
    base: Text,
    function: Out<*mut c_void>,
    version: c_int,
    flags: u64,
) -> Result<(), CUresult> {
    let found = function.get()?;
    if found.is_null() {
        return Ok(());
    }
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    let base = &*base.text()?;
    let (twin, second) = (format!("{base}_ptsz"), format!("{base}_v2"));
    let symbol = match lookup(base, version, per_thread) {
        Lookup::Found(symbol) => symbol,
        // The driver crate's table lacks a few functions, most of which have only one variant.
        _ if per_thread && real::own_address(&twin).is_some() => &twin,
        // Functions for arrays and for handles of other processes have had a second variant since
        // CUDA 11 or earlier.
        Lookup::NotFound if version >= 11_000 && real::own_address(&second).is_some() => &second,
        _ => base,
    };
    match real::own_address(symbol) {
        Some(ours) => {
            real::note(symbol, found);
            function.write(ours)
        }
        None => Ok(()),
    }
}
