//! C symbols of the functions in `table.rs`.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::abi::PerThread;
use gpuheap_driver::*;

use crate::table::{In, Out, Text};
use crate::unserved::{Foreign, IpcHandle, counted};
use crate::{driver_api, pools, real, runtime_api, serve};

macro_rules! exports {
    ($($library:ident [$($how:tt)*] $symbol:ident ($($arg:ident: $type:ty),*);)*) => {
        export! {$(
            fn $symbol($($arg: $type),*) -> CUresult {
                exports!(@call [$($how)*] $library $symbol ($($arg),*))
            }
        )*}
    };
    (@call [] $library:ident $symbol:ident $arguments:tt) => { $library::$symbol $arguments };
    (@call [begins_capture] $library:ident $symbol:ident $arguments:tt) => {{
        serve::note_capture();
        real::$symbol $arguments
    }};
    (@call [of_pool $then:ident] $library:ident $symbol:ident $arguments:tt) => {
        runtime_api::pass_on_first(|| real::$symbol $arguments, || pools::$then $arguments)
    };
    (@call [makes_handle] $library:ident $symbol:ident ($handle:ident, $pointer:ident)) => {
        serve::refuse_handle($pointer).unwrap_or_else(|| real::$symbol($handle, $pointer))
    };
    (@call [counts $kind:ident $bytes:expr] $library:ident $symbol:ident $arguments:tt) => {
        counted(Foreign::$kind, $bytes, real::$symbol $arguments)
    };
    (@call [per_thread $base:ident] $library:ident $symbol:ident ($($arg:ident),*)) => {
        $library::$base($(PerThread::per_thread($arg)),*)
    };
}

interposed_functions!(exports);
