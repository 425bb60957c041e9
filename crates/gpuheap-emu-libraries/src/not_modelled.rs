//! Functions of the libraries that gpuheap does not model. Most functions return an error. A few
//! functions return a version or a text.

use std::ffi::{CStr, c_char, c_int};

use gpuheap_driver::abi::{Code, Out};
use gpuheap_driver::export;

use crate::nccl::NcclCode;
use crate::report;

/// Version of NCCL to return: 2.28.9.
const NCCL: c_int = 22_809;
/// Version of CUPTI's interface to return.
const CUPTI: u32 = 28;

/// Text for every code of the libraries that are not modelled.
const NOT_MODELLED: &CStr = c"not modelled by gpuheap's dry run";

/// Result code of a CUPTI function.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct CuptiCode(c_int);

impl Code for CuptiCode {
    const SUCCESS: Self = Self(0);
    const NULL: Self = Self(1);
    const PANICKED: Self = Self(999);
}

/// Error code with which the emulator refuses calls to a library that it does not model.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Refusal(c_int);

impl Code for Refusal {
    const SUCCESS: Self = Self(0);
    const NULL: Self = Self(1);
    const PANICKED: Self = Self(1);
}

export! {
    /// Returns the same text for every code.
    fn cusparseGetErrorName | cusparseGetErrorString | ncclGetErrorString | ncclGetLastError()
        -> *const c_char
    {
        NOT_MODELLED.as_ptr()
    }

    fn ncclGetVersion(version: Out<c_int, NcclCode>) -> Result<(), NcclCode> {
        version.write(NCCL)
    }

    fn cuptiGetVersion(version: Out<u32, CuptiCode>) -> Result<(), CuptiCode> {
        version.write(CUPTI)
    }

    /// Writes the same text for every code.
    fn cuptiGetResultString(
        _code: c_int, text: Out<*const c_char, CuptiCode>,
    ) -> Result<(), CuptiCode> {
        text.write(NOT_MODELLED.as_ptr())
    }
}

// The functions declare no arguments, although callers pass some. The difference is harmless: in
// every C ABI of Unix, the caller cleans up the arguments after the call.
macro_rules! refusals {
    ($library:literal, $code:literal, [$($name:ident)*]) => {
        export! {$(
            /// Returns the library's code for "not supported".
            fn $name() -> Result<(), Refusal> {
                report::refused($library, stringify!($name));
                Err(Refusal($code))
            }
        )*}
    };
}

refused_functions!(refusals);
