//! Memory that kernels' code and cuBLAS take from the device, which no call asks for.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use gpuheap_driver::{CUcontext, CUresult, Driver};

use crate::driver::driver;

/// Bytes that PyTorch's kernels and cuBLAS had taken from an H200 beside the context and PyTorch's
/// own memory (driver 580, PyTorch 2.11, 2026-11-22): the same in each of 9 programs. Other cards
/// load the code of other kernels, so that this is an estimate for them.
const BYTES: usize = 224 << 20;

/// Contexts that have the code.
static CONTEXTS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Takes the memory in the current context, once. Returns `false` if the device has not enough.
pub(crate) fn load() -> bool {
    let Some(driver) = driver() else { return true };
    let mut context = CUcontext::NULL;
    // SAFETY: the result is a local variable.
    let code = unsafe { driver.cuCtxGetCurrent(&mut context) };
    if !code.is_success() || context.is_null() {
        return true;
    }
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if !contexts.insert(context.0) {
        return true;
    }
    let mut address = 0;
    // SAFETY: the result is a local variable.
    let code = unsafe { driver.cuMemAlloc_v2(&mut address, BYTES) };
    if code == CUresult::ERROR_OUT_OF_MEMORY {
        contexts.remove(&(context.0));
        return false;
    }
    true
}
