//! The driver API, grouped by area. Each function of the driver's table is a method of
//! [`Call`](crate::emulator::Call).
#![allow(non_snake_case)]

mod capture;
mod changes;
mod context;
mod copy;
mod device;
mod event;
mod fill;
mod function;
mod general;
mod launch;
mod managed;
mod memory;
mod module;
mod pinned;
mod pointer;
mod pool;
mod pool_places;
mod stream;
mod vmm;
mod work;

use prelude::*;

/// Names that most files of this folder use.
mod prelude {
    pub(super) use std::ffi::{c_char, c_int, c_uint, c_void};

    pub(super) use gpuheap_driver::*;

    pub(super) use crate::dispatch::args;
    pub(super) use crate::emulator::Call;
    pub(super) use crate::{INVALID_VALUE, In, Out, Outcome, fail_if};
}

/// Defines functions that equal another function.
macro_rules! aliases {
    ($($alias:ident = $function:ident;)*) => {
        impl Call<'_> {$(
            pub(crate) fn $alias(&mut self, arguments: args::$alias) -> Outcome {
                self.$function(arguments)
            }
        )*}
    };
}

aliases! {
    cuDeviceGetUuid_v2 = cuDeviceGetUuid;
    cuEventElapsedTime_v2 = cuEventElapsedTime;
    cuMemDiscardAndPrefetchBatchAsync = cuMemPrefetchBatchAsync;
    cuMemcpy2DUnaligned_v2 = cuMemcpy2D_v2;
    cuModuleLoadFatBinary = cuModuleLoadData;
}

/// Defines functions that refuse every call.
macro_rules! refusals {
    ($($symbol:ident)*) => {
        impl Call<'_> {$(
            pub(crate) fn $symbol(&mut self, _: args::$symbol) -> Outcome {
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }
        )*}
    };
}

// These calls are refused: an emulated device lives in the host memory of its process.
refusals! {
    cuCheckpointProcessLock cuCheckpointProcessCheckpoint cuCheckpointProcessRestore
    cuCheckpointProcessUnlock
}
