//! C symbols, made from the table of the runtime's functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUgraphMem_attribute, CUgraphNode, CUhostFn,
    CUkernel, CUlibrary, CUmemAccessDesc, CUmemLocation, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUresult, CUstream, CUstreamCallback, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUuuid, Driver,
};

use crate::call::{guarded, in_context};
use crate::error::check;
use crate::functions;
use crate::types::{Dim3, FunctionAttributes, LaunchConfig, PointerAttributes};

macro_rules! exports {
    ($($(#[$doc:meta])* $name:ident [$($driver:ident)?, $($twin:ident)?] ($($arg:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        // SAFETY: the name is the runtime's, and this library replaces it.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
            exports!(@call [$($driver)?] $name ($($arg),*))
        }

        exports!(@twin [$($twin)?] $name ($($arg: $type),*));
    )*};
    (@call [] $name:ident ($($arg:ident),*)) => {
        // SAFETY: the caller keeps the C function's contract.
        guarded(|| unsafe { functions::$name($($arg),*) })
    };
    (@call [$driver:ident] $name:ident ($($arg:ident),*)) => {
        // SAFETY: the caller keeps the C function's contract, which is the driver's.
        in_context(|driver| check(unsafe { driver.$driver($($arg),*) }))
    };
    (@twin [] $name:ident $arguments:tt) => {};
    (@twin [$twin:ident] $name:ident ($($arg:ident: $type:ty),*)) => {
        // SAFETY: the name is the runtime's, and this library replaces it.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $twin($($arg: $type),*) -> CUresult {
            // SAFETY: the caller keeps the C function's contract.
            unsafe { $name($(PerThread::per_thread($arg)),*) }
        }
    };
}

runtime_functions!(exports);

/// An argument of a twin, for which the null stream is the calling thread's own default stream.
trait PerThread {
    fn per_thread(self) -> Self;
}

impl PerThread for CUstream {
    fn per_thread(self) -> CUstream {
        if self.is_null() { CUstream::PER_THREAD } else { self }
    }
}

impl<T> PerThread for *const T {
    fn per_thread(self) -> Self {
        self
    }
}

impl<T> PerThread for *mut T {
    fn per_thread(self) -> Self {
        self
    }
}

macro_rules! unchanged {
    ($($type:ty),*) => {$(
        impl PerThread for $type {
            fn per_thread(self) -> Self {
                self
            }
        }
    )*};
}

unchanged!(
    i32,
    u32,
    u64,
    usize,
    CUevent,
    CUgraph,
    CUgraphExec,
    CUhostFn,
    CUkernel,
    CUmemLocation,
    CUmemoryPool,
    CUstreamCallback,
    CUstreamCaptureMode,
    Dim3
);
