//! C symbols, made from the table of driver functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEMCPY2D, CUcheckpointLockArgs, CUcontext, CUdevice,
    CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUgraphMem_attribute, CUgraphNode, CUgreenCtx, CUhostFn, CUkernel, CUlaunchConfig,
    CUlibrary, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmodule, CUoccupancyB2DSize,
    CUpointer_attribute, CUprocessState, CUstream, CUstreamCallback, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUuserObject, CUuuid,
};
use gpuheap_driver::{CUresult, Driver, cuda_functions};
use gpuheap_emu::with_per_thread_default_stream;

use crate::{entry_point, process};

macro_rules! exports {
    ([] $($(#[$doc:meta])* $base:ident [$since:literal $symbol:ident $(, $twin_since:literal $twin:ident)?] ($($arg:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            // SAFETY: the name is libcuda's, and this library replaces libcuda.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
                exports!(@call $symbol ($($arg),*))
            }

            exports!(@twin [$($twin)?] $symbol ($($arg: $type),*));
        )*

        /// Returns the address of an exported symbol, twins included.
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
        // SAFETY: the name is libcuda's, and this library replaces libcuda.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $twin($($arg: $type),*) -> CUresult {
            process::call(|device| {
                // SAFETY: the caller keeps the C function's contract, which is the method's.
                with_per_thread_default_stream(|| unsafe { device.$symbol($($arg),*) })
            })
        }
    };
    // These functions concern the process as a whole. The device answers all others.
    (@call cuInit ($flags:ident)) => { process::initialise($flags) };
    (@call cuGetProcAddress ($($arg:ident),*)) => {
        // SAFETY: the caller keeps the C function's contract.
        process::guarded(|| unsafe { entry_point::find(address, $($arg),*) })
    };
    (@call cuGetProcAddress_v2 ($($arg:ident),*)) => {
        // SAFETY: the caller keeps the C function's contract.
        process::guarded(|| unsafe { entry_point::find_with_status(address, $($arg),*) })
    };
    (@call $symbol:ident ($($arg:ident),*)) => {
        // SAFETY: the caller keeps the C function's contract, which is the method's.
        process::call(|device| unsafe { device.$symbol($($arg),*) })
    };
}

cuda_functions!(exports);
