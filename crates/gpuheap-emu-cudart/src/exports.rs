//! Exports the C symbols, generated from the table of the runtime's functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::abi::PerThread;
use gpuheap_driver::*;

use crate::call::{guarded, in_context};
use crate::error::{In, Out, Text, call, driver};
use crate::functions::*;
use crate::types::{Dim3, FunctionAttributes, LaunchConfig, PointerAttributes};
use crate::{context, functions, kernels, version};

macro_rules! exports {
    ($($(#[$doc:meta])* $name:ident $(| $twin:ident)? [$($how:tt)*] ($($arg:ident: $type:ty),*);)*) => {
        $(
            export! {
                $(#[$doc])*
                fn $name($($arg: $type),*) -> CUresult {
                    exports!(@run [$($how)*] $name ($($arg),*))
                }
            }

            exports!(@twin [$($twin)?] $name ($($arg: $type),*));
        )*
    };
    (@run [no_context $($how:tt)*] $name:ident $arguments:tt) => {
        guarded(|| exports!(@call [$($how)*] $name $arguments))
    };
    (@run $how:tt $name:ident $arguments:tt) => {
        in_context(|| exports!(@call $how $name $arguments))
    };
    (@call [] $name:ident $arguments:tt) => { functions::$name($arguments) };
    (@call [= $outcome:expr] $name:ident $arguments:tt) => { $outcome };
    (@call [$driver:ident] $name:ident $arguments:tt) => { call!($driver $arguments) };
    (@call [$driver:ident $arguments:tt] $name:ident $own:tt) => { call!($driver $arguments) };
    (@twin [] $name:ident $arguments:tt) => {};
    (@twin [$twin:ident] $name:ident ($($arg:ident: $type:ty),*)) => {
        export! {
            fn $twin($($arg: $type),*) -> CUresult {
                $name($(PerThread::per_thread($arg)),*)
            }
        }
    };
}

runtime_functions!(exports);
