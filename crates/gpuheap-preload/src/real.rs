//! Makes functions that call the driver's real functions. Also finds this library's replacements.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gpuheap_catch::{Catcher, real_functions};
use gpuheap_driver::*;

use crate::layouts::{Array3DDescription, ArrayDescription, GraphAllocation, IpcHandle, Volume};
use crate::table::{In, Out, Text};

/// The functions of this library that replace the driver's functions.
pub(crate) static CATCHER: Catcher = Catcher::new(own::find);

#[cfg(target_arch = "x86_64")]
gpuheap_catch::export_dlsym!(CATCHER);

/// Functions that only this library calls.
macro_rules! called_functions {
    ($callback:path) => {
        $callback! {
        driver_api [] cuCtxGetCurrent (context: &mut CUcontext);
        driver_api [] cuCtxGetDevice (device: &mut CUdevice);
        driver_api [] cuDeviceGetName (name: *mut c_char, length: c_int, device: CUdevice);
        driver_api [] cuDeviceGetUuid (uuid: &mut CUuuid, device: CUdevice);
        driver_api [] cuDeviceGetUuid_v2 (uuid: &mut CUuuid, device: CUdevice);
        driver_api [] cuDevicePrimaryCtxGetState (device: CUdevice, flags: &mut c_uint, active: &mut c_int);
        driver_api [] cuPointerGetAttribute (value: *mut c_void, attribute: c_int, pointer: CUdeviceptr);
        driver_api [] cuMemGetAddressRange_v2 (base: &mut CUdeviceptr, bytes: &mut usize, pointer: CUdeviceptr);
        }
    };
}

recorded_functions!(real_functions);
called_functions!(real_functions);

mod reals {
    use gpuheap_catch::real_cells;

    /// File names of each library.
    mod libraries {
        use super::super::CStr;

        #[allow(non_upper_case_globals, reason = "named as in the table")]
        pub(super) const driver_api: &[&CStr] = &[c"libcuda.so.1"];
    }

    recorded_functions!(real_cells);
    called_functions!(real_cells);
}

/// Symbols of this library, from `exports.rs`.
mod own {
    use gpuheap_catch::own_symbols;

    use super::*;

    recorded_functions!(own_symbols);
}
