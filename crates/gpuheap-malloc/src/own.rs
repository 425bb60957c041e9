//! Addresses of this library's functions, by their C names.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{
    CUdevice, CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};

use crate::foreign::IpcHandle;

macro_rules! addresses {
    ($($library:ident $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        // SAFETY: `exports.rs` defines them, with these types.
        unsafe extern "C" {
            $(fn $symbol($($arg: $type),*) -> CUresult;)*
        }

        /// Returns the function of this library that takes the place of `symbol`.
        pub(crate) fn address(symbol: &str) -> Option<*mut c_void> {
            match symbol {
                $(stringify!($symbol) => Some($symbol as *mut c_void),)*
                _ => None,
            }
        }
    };
}

interposed_functions!(addresses);
