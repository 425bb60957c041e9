//! Functions of the driver that PyTorch looks up by name and calls without a test whether they were
//! found: those of green contexts. Each names itself and refuses the call.

use std::ffi::c_void;

use gpuheap_driver::CUresult;

use crate::not_modelled::refuse;

macro_rules! refusals {
    ($($name:ident)*) => {
        /// Returns the address of the function of this name that refuses; `None` for other names.
        pub(crate) fn refusing(name: &[u8]) -> Option<*mut c_void> {
            $(
                // The function reads none of the caller's arguments, which the caller's side
                // removes in every C ABI of Unix.
                #[allow(non_snake_case)]
                extern "C" fn $name() -> CUresult {
                    refuse(stringify!($name))
                }
                if name == stringify!($name).as_bytes() {
                    return Some($name as *mut c_void);
                }
            )*
            None
        }
    };
}

refusals!(
    cuCtxFromGreenCtx cuDevResourceGenerateDesc cuDevSmResourceSplitByCount cuDeviceGetDevResource
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate
);
