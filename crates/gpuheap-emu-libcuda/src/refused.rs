//! Exports for programs that link functions which the emulator does not model.
//!
//! A program that is linked with the driver needs them to start. `cuGetProcAddress` does not find
//! them, so that a program that asks learns that they are missing.

use gpuheap_driver::CUresult;

use crate::{process, report};

macro_rules! refusals {
    ($($name:ident),*) => {$(
        /// Returns `CUDA_ERROR_NOT_SUPPORTED`.
        // SAFETY: the name is libcuda's, and this library replaces libcuda. The function reads none
        // of the caller's arguments, which the caller's side removes in every C ABI of Unix.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> CUresult {
            process::guarded(|| {
                report::refused(stringify!($name));
                process::log(|| concat!(stringify!($name), " is not modelled").to_owned());
                CUresult::ERROR_NOT_SUPPORTED
            })
        }
    )*};
}

refused_functions!(refusals);
