//! cuBLAS: handles and their modes. Everything else succeeds and computes nothing.

use std::ffi::{c_int, c_void};

use gpuheap_driver::CUstream;

use crate::code::{self, Code};
use crate::kernel;

const SUCCESS: c_int = 0;
const NOT_INITIALIZED: c_int = 1;
const ALLOC_FAILED: c_int = 3;
const INVALID_VALUE: c_int = 7;

/// State of a handle.
struct Handle {
    pointer_mode: c_int,
    math_mode: c_int,
    stream: CUstream,
}

/// Makes a handle. The first one of a context takes the memory of kernels' code.
///
/// # Safety
///
/// `handle` is null or valid for a write.
// SAFETY: the name is cuBLAS's, and this library replaces cuBLAS.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut c_void) -> c_int {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    if !code::load(Code::Cublas) {
        return ALLOC_FAILED;
    }
    let made = Box::new(Handle { pointer_mode: 0, math_mode: 0, stream: CUstream::NULL });
    // SAFETY: not null, so valid for a write.
    unsafe { handle.write(Box::into_raw(made).cast()) };
    SUCCESS
}

/// Ends a handle.
///
/// # Safety
///
/// `handle` is null or came from [`cublasCreate_v2`], and is not used afterwards.
// SAFETY: the name is cuBLAS's, and this library replaces cuBLAS.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> c_int {
    if handle.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: the caller promises a handle that was made by `cublasCreate_v2`.
    drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
    SUCCESS
}

macro_rules! property {
    ($field:ident: $type:ty, $get:ident, $set:ident) => {
        /// Writes the property of a handle.
        ///
        /// # Safety
        ///
        /// `handle` is null or live, and not used by another thread. `value` is null or valid for a
        /// write.
        // SAFETY: the name is cuBLAS's, and this library replaces cuBLAS.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(handle: *mut c_void, value: *mut $type) -> c_int {
            // SAFETY: the caller promises a handle that is null or live.
            let Some(handle) = (unsafe { handle.cast::<Handle>().as_ref() }) else {
                return NOT_INITIALIZED;
            };
            if value.is_null() {
                return INVALID_VALUE;
            }
            // SAFETY: not null, so valid for a write.
            unsafe { value.write(handle.$field) };
            SUCCESS
        }

        /// Sets the property of a handle.
        ///
        /// # Safety
        ///
        /// `handle` is null or live, and not used by another thread.
        // SAFETY: the name is cuBLAS's, and this library replaces cuBLAS.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set(handle: *mut c_void, value: $type) -> c_int {
            // SAFETY: the caller promises a handle that is null or live, and no other user of it.
            let Some(handle) = (unsafe { handle.cast::<Handle>().as_mut() }) else {
                return NOT_INITIALIZED;
            };
            handle.$field = value;
            SUCCESS
        }
    };
}

property!(pointer_mode: c_int, cublasGetPointerMode_v2, cublasSetPointerMode_v2);
property!(math_mode: c_int, cublasGetMathMode, cublasSetMathMode);
property!(stream: CUstream, cublasGetStream_v2, cublasSetStream_v2);

macro_rules! computes_nothing {
    ($library:literal, $code:literal, [$($name:ident)*]) => {$(
        /// Takes its place in the handle's stream, and computes nothing.
        ///
        /// # Safety
        ///
        /// `handle` is null or live.
        // SAFETY: the name is cuBLAS's, and this library replaces cuBLAS. Arguments after the first
        // are not read, and the caller's side removes them in every C ABI of Unix.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: *mut c_void) -> c_int {
            // SAFETY: the caller promises a handle that is null or live.
            let Some(handle) = (unsafe { handle.cast::<Handle>().as_ref() }) else {
                return NOT_INITIALIZED;
            };
            kernel::launch(handle.stream);
            SUCCESS
        }
    )*};
}

macro_rules! does_nothing {
    ($library:literal, $code:literal, [$($name:ident)*]) => {$(
        /// Succeeds, and does nothing.
        // SAFETY: the name is cuBLAS's, and this library replaces cuBLAS. The function reads none
        // of the caller's arguments, which the caller's side removes in every C ABI of Unix.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

macro_rules! factorizes_nothing {
    ($($name:ident)*) => {$(
        /// Computes nothing, and writes to the host that the arguments were right, which callers
        /// test.
        ///
        /// # Safety
        ///
        /// `handle` is null or live, and `info` is null or valid for a write.
        // SAFETY: the name is cuBLAS's, and this library replaces cuBLAS.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            handle: *mut c_void,
            _rows: c_int,
            _columns: c_int,
            _matrices: *const c_void,
            _leading: c_int,
            _factors: *const c_void,
            info: *mut c_int,
            _count: c_int,
        ) -> c_int {
            // SAFETY: the caller promises a handle that is null or live.
            let Some(handle) = (unsafe { handle.cast::<Handle>().as_ref() }) else {
                return NOT_INITIALIZED;
            };
            if info.is_null() {
                return INVALID_VALUE;
            }
            // SAFETY: not null, so valid for a write.
            unsafe { info.write(0) };
            kernel::launch(handle.stream);
            SUCCESS
        }
    )*};
}

factorizes_nothing!(
    cublasCgeqrfBatched cublasDgeqrfBatched cublasSgeqrfBatched cublasZgeqrfBatched
);

cublas_functions!(computes_nothing, does_nothing);
