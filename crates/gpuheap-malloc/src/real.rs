//! Makes a function `real::NAME` for each CUDA function that this library calls. `real::NAME` calls
//! CUDA's own function. `CATCHER` maps names to the functions that replace CUDA's functions.

use std::ffi::{CStr, c_int, c_uint, c_void};

use gpuheap_catch::{Catcher, real_functions};
use gpuheap_driver::*;

use crate::table::{In, Out, Text};
use crate::unserved::IpcHandle;

/// Returns `true` if the runtime's library is loaded.
pub(crate) fn has_runtime() -> bool {
    reals::cudaMalloc.address().is_some()
}

/// The functions of this library that replace CUDA's functions.
pub(crate) static CATCHER: Catcher = Catcher::new(own::find);

/// Functions that only this library calls.
macro_rules! called_functions {
    ($callback:path) => {
        $callback! {
        driver_api [] cuCtxGetCurrent (context: &mut CUcontext);
        driver_api [] cuCtxGetDevice (device: &mut CUdevice);
        driver_api [] cuDeviceGetMemPool (pool: &mut CUmemoryPool, device: CUdevice);
        driver_api [] cuDevicePrimaryCtxRetain (context: &mut CUcontext, device: CUdevice);
        driver_api [] cuDevicePrimaryCtxRelease_v2 (device: CUdevice);
        driver_api [] cuStreamGetCtx (stream: CUstream, context: &mut CUcontext);
        driver_api [] cuStreamQuery (stream: CUstream);
        driver_api [] cuStreamIsCapturing (stream: CUstream, status: &mut CUstreamCaptureStatus);
        runtime_api [] cudaGetDevice (device: &mut c_int);
        }
    };
}

interposed_functions!(real_functions);
called_functions!(real_functions);

mod reals {
    use gpuheap_catch::real_cells;

    /// File names of each library, newest first.
    mod libraries {
        use super::super::CStr;

        #[allow(non_upper_case_globals, reason = "named as in the table")]
        pub(super) const driver_api: &[&CStr] = &[c"libcuda.so.1"];
        #[allow(non_upper_case_globals, reason = "named as in the table")]
        pub(super) const runtime_api: &[&CStr] =
            &[c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"];
    }

    interposed_functions!(real_cells);
    called_functions!(real_cells);
}

/// Symbols of this library, from `exports.rs`.
mod own {
    use gpuheap_catch::own_symbols;

    use super::*;

    interposed_functions!(own_symbols);
}
