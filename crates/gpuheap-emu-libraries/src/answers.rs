//! Functions of libraries that are not modelled, and that only tell something.

use std::ffi::{CStr, c_char, c_int};

/// Version of NCCL that is told: 2.28.9.
const NCCL: c_int = 22_809;
/// Version of CUPTI's interface that is told.
const CUPTI: u32 = 28;

/// Text of every code of libraries that are not modelled.
const NOT_MODELLED: &CStr = c"not modelled by gpuheap's dry run";

macro_rules! texts {
    ($($name:ident)*) => {$(
        /// Returns a text for any code.
        // SAFETY: the name is the library's, and this library replaces it.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *const c_char {
            NOT_MODELLED.as_ptr()
        }
    )*};
}

texts!(
    cusparseGetErrorName cusparseGetErrorString ncclGetErrorString
    ncclGetLastError
);

/// Writes NCCL's version.
///
/// # Safety
///
/// `version` is null or valid for a write.
// SAFETY: the name is NCCL's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    const INVALID_ARGUMENT: c_int = 4;
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, so valid for a write.
    unsafe { version.write(NCCL) };
    0
}

/// Writes CUPTI's version.
///
/// # Safety
///
/// `version` is null or valid for a write.
// SAFETY: the name is CUPTI's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetVersion(version: *mut u32) -> c_int {
    const INVALID_PARAMETER: c_int = 1;
    if version.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: not null, so valid for a write.
    unsafe { version.write(CUPTI) };
    0
}

/// Writes a text for any code of CUPTI.
///
/// # Safety
///
/// `text` is null or valid for a write.
// SAFETY: the name is CUPTI's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetResultString(_code: c_int, text: *mut *const c_char) -> c_int {
    const INVALID_PARAMETER: c_int = 1;
    if text.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: not null, so valid for a write.
    unsafe { text.write(NOT_MODELLED.as_ptr()) };
    0
}
