//! C symbols, made from the table.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuheap_driver::{
    CUdevice, CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};

use crate::foreign::IpcHandle;
use crate::{driver_api, runtime_api};

macro_rules! exports {
    ($($library:ident $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        $(
            // SAFETY: the name is CUDA's, and this function takes the place of that one.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
                // SAFETY: the caller keeps the C function's contract, which is the function's.
                guarded(|| unsafe { $library::$symbol($($arg),*) })
            }
        )*
    };
}

interposed_functions!(exports);

/// Returns the code of `body`, or `ERROR_UNKNOWN` if it panics: no panic reaches the program.
fn guarded(body: impl FnOnce() -> CUresult) -> CUresult {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(CUresult::ERROR_UNKNOWN)
}
