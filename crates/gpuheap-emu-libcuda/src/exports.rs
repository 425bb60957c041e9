//! Exports the C symbols, generated from the table of driver functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::abi::Arg;
use gpuheap_driver::*;
use gpuheap_emu::{Emulator, with_per_thread_default_stream};

use crate::{entry_point, process, report};

macro_rules! exports {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $twin_since:literal $twin:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        $(
            export! {
                $(#[$doc])*
                fn $symbol($($arg: $type),*) -> CUresult {
                    exports!(@call $symbol ($($arg),*))
                }
            }

            exports!(@twin [$($twin)?] $symbol ($($arg: $type),*));
        )*

        /// Returns the address of an exported function; `None` for other names. Functions for the
        /// per-thread default stream (`_ptds`, `_ptsz`) are exported too.
        pub(crate) fn address(symbol: &str) -> Option<*mut c_void> {
            match symbol {
                $(
                    stringify!($symbol) => Some($symbol as *mut c_void),
                    $(stringify!($twin) => Some($twin as *mut c_void),)?
                )*
                _ => None,
            }
        }
    };
    (@twin [] $symbol:ident $arguments:tt) => {};
    (@twin [$twin:ident] $symbol:ident ($($arg:ident: $type:ty),*)) => {
        export! {
            fn $twin($($arg: $type),*) -> CUresult {
                // SAFETY: the program's arguments satisfy the contract of `cuda.h`.
                let call = |device: &Emulator| unsafe { device.$symbol($($arg),*) };
                process::call(|device| with_per_thread_default_stream(|| call(device)))
            }
        }
    };
    // The functions of the first rows need more than the emulated device. All other functions are
    // methods of the device.
    (@call cuInit ($flags:ident)) => { process::initialise($flags) };
    (@call cuGetProcAddress ($($arg:ident),*)) => {
        // SAFETY: the program's arguments satisfy the contract of `cuGetProcAddress`.
        entry_point::find(address, $(unsafe { Arg::typed($arg) }),*)
    };
    (@call cuGetProcAddress_v2 ($($arg:ident),*)) => {
        // SAFETY: the program's arguments satisfy the contract of `cuGetProcAddress_v2`.
        entry_point::find_with_status(address, $(unsafe { Arg::typed($arg) }),*)
    };
    (@call cuGetExportTable ($($arg:ident),*)) => {
        process::call(|device| {
            report::note_export_table();
            // SAFETY: the program's arguments satisfy the contract of `cuda.h`.
            unsafe { device.cuGetExportTable($($arg),*) }
        })
    };
    (@call $symbol:ident ($($arg:ident),*)) => {
        // SAFETY: the program's arguments satisfy the contract of `cuda.h`. The method has the same
        // contract.
        process::call(|device| unsafe { device.$symbol($($arg),*) })
    };
}

cuda_functions!(exports);

// The functions declare no arguments, although callers pass some. In every C ABI of Unix, the
// caller removes its arguments after the call.
macro_rules! refusals {
    ($($name:ident),*) => {
        export! {$(
            /// Returns `CUDA_ERROR_NOT_SUPPORTED`. `cuGetProcAddress` does not find the function.
            fn $name() -> CUresult {
                report::refused(stringify!($name));
                process::log(|| concat!(stringify!($name), " is not modelled").to_owned());
                CUresult::ERROR_NOT_SUPPORTED
            }
        )*}
    };
}

refused_functions!(refusals);
