//! Reports of requests to `gpuheap dry-run`. It runs a program on an emulated driver.
//!
//! A heap refuses a request that no device holds without a driver call. After a request that the
//! driver refused, it may serve its program from other memory. So the driver cannot see whether the
//! request failed.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::entry::{Failure, gpuheap_status};

type Report = unsafe extern "C" fn(bytes: u64, place: u64, is_granted: c_int);

/// Flags of `dlopen`: only a library that is loaded, with functions bound at their first call.
const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;

// SAFETY: the C library has these functions, with these types.
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `true` once a request was refused: later requests are reported too.
static ANY: AtomicBool = AtomicBool::new(false);

/// Reports the result of a request, and returns it.
#[inline]
pub fn reported(
    bytes: u64,
    place: *mut *mut c_void,
    result: Result<u64, Failure>,
) -> Result<u64, Failure> {
    let is_refused =
        result.as_ref().is_err_and(|failure| failure.status() == gpuheap_status::OutOfMemory);
    if is_refused || (result.is_ok() && ANY.load(Ordering::Relaxed)) {
        report(bytes, place, !is_refused);
    }
    result
}

#[cold]
fn report(bytes: u64, place: *mut *mut c_void, is_granted: bool) {
    // SAFETY: the name is a C string. A library that is not loaded is not found.
    let library = unsafe { dlopen(c"libcuda.so.1".as_ptr(), RTLD_LAZY | RTLD_NOLOAD) };
    if library.is_null() {
        return;
    }
    // SAFETY: the library is loaded, and the name is a C string.
    let found = unsafe { dlsym(library, c"gpuheap_emulated_request".as_ptr()) };
    if found.is_null() {
        return;
    }
    ANY.store(true, Ordering::Relaxed);
    // SAFETY: gpuheap's emulated driver alone has this symbol, with this type. This `dlopen` keeps
    // it loaded.
    unsafe {
        std::mem::transmute::<*mut c_void, Report>(found)(
            bytes,
            place.addr() as u64,
            is_granted.into(),
        );
    }
}
