//! Exports the C symbols, generated from the table of the runtime's functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::abi::PerThread;
use gpuheap_driver::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUgraphMem_attribute, CUgraphNode, CUhostFn,
    CUkernel, CUlibrary, CUmemAccessDesc, CUmemLocation, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUresult, CUstream, CUstreamCallback, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUuuid, export,
};

use crate::call::{guarded, in_context};
use crate::error::{In, Out, Text, call};
use crate::functions;
use crate::types::{Dim3, FunctionAttributes, LaunchConfig, PointerAttributes};

macro_rules! exports {
    ($($(#[$doc:meta])* $name:ident [$($driver:ident)?, $($twin:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        $(
            export! {
                $(#[$doc])*
                fn $name($($arg: $type),*) -> CUresult {
                    exports!(@call [$($driver)?] $name ($($arg),*))
                }
            }

            exports!(@twin [$($twin)?] $name ($($arg: $type),*));
        )*
    };
    (@call [] $name:ident $arguments:tt) => { guarded(|| functions::$name $arguments) };
    (@call [$driver:ident] $name:ident ($($arg:ident),*)) => {
        in_context(|driver| call!(driver, $driver($($arg),*)))
    };
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
