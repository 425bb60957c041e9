//! Memory that kernels' code and the libraries take from the device, which no call asks for.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use gpuheap_driver::{CUcontext, CUresult, Driver};

use crate::driver::driver;

/// Code that takes memory when a program first uses it.
///
/// Bytes that an H200 had in use beside the context and PyTorch's own memory (driver 580, PyTorch
/// 2.11, 2026-11-22): 224 MiB in each of 9 programs that used cuBLAS, 20 MiB more with cuDNN, and
/// 112 MiB with cuDNN alone. Other cards load the code of other kernels, so that this is an
/// estimate for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    /// Kernels of the framework, which comes with the first library.
    Kernels,
    Cublas,
    Cudnn,
}

impl Code {
    fn bytes(self) -> usize {
        match self {
            Self::Kernels => 92 << 20,
            Self::Cublas => 132 << 20,
            Self::Cudnn => 20 << 20,
        }
    }
}

/// Contexts that have the code.
static LOADED: Mutex<BTreeSet<(usize, Code)>> = Mutex::new(BTreeSet::new());

/// Takes the memory in the current context, once. Returns `false` if the device has not enough.
pub(crate) fn load(library: Code) -> bool {
    let Some(driver) = driver() else { return true };
    let mut context = CUcontext::NULL;
    // SAFETY: the result is a local variable.
    let code = unsafe { driver.cuCtxGetCurrent(&mut context) };
    if !code.is_success() || context.is_null() {
        return true;
    }
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    [Code::Kernels, library].into_iter().all(|code| {
        if !loaded.insert((context.0, code)) {
            return true;
        }
        let mut address = 0;
        // SAFETY: the result is a local variable.
        let answer = unsafe { driver.cuMemAlloc_v2(&mut address, code.bytes()) };
        let fits = answer != CUresult::ERROR_OUT_OF_MEMORY;
        if !fits {
            loaded.remove(&(context.0, code));
        }
        fits
    })
}
