//! The device of each thread, and the devices' primary contexts.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_driver::CUcontext;

use crate::error::{Outcome, call};

/// Primary contexts that this library retains, keyed by device ordinal.
static PRIMARY: Mutex<Option<HashMap<c_int, CUcontext>>> = Mutex::new(None);

thread_local! {
    /// Ordinal of the device that the thread selected. It is used while the thread has no current
    /// context.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// If the thread has no current context, makes the primary context of the thread's device current.
pub(crate) fn enter() -> Outcome {
    if current()?.is_null() { make_current(DEVICE.get()) } else { Ok(()) }
}

/// Returns the device of the current context. Without a current context, returns the device that
/// the thread selected.
pub(crate) fn device() -> Outcome<c_int> {
    let mut device = DEVICE.get();
    if !current()?.is_null() {
        call!(cuCtxGetDevice(&mut device))?;
    }
    Ok(device)
}

/// Sets the thread's device, and makes the device's primary context current.
pub(crate) fn set_device(device: c_int) -> Outcome {
    make_current(device)?;
    DEVICE.set(device);
    Ok(())
}

/// Returns the primary context of a device. The first call for a device retains the context, and
/// creates it if necessary.
pub(crate) fn primary(device: c_int) -> Outcome<CUcontext> {
    let mut held = lock();
    let held = held.get_or_insert_default();
    if let Some(context) = held.get(&device) {
        return Ok(*context);
    }
    let mut context = CUcontext::NULL;
    call!(cuDevicePrimaryCtxRetain(&mut context, device))?;
    held.insert(device, context);
    Ok(context)
}

/// Destroys all objects in the primary context of the thread's device. Returns the device's
/// ordinal.
pub(crate) fn reset() -> Outcome<c_int> {
    let device = device()?;
    let held = lock().get_or_insert_default().remove(&device);
    call!(cuDevicePrimaryCtxReset_v2(device))?;
    if held.is_some() {
        call!(cuDevicePrimaryCtxRelease_v2(device))?;
    }
    call!(cuCtxSetCurrent(CUcontext::NULL))?;
    DEVICE.set(device);
    Ok(device)
}

fn make_current(device: c_int) -> Outcome {
    call!(cuCtxSetCurrent(primary(device)?))
}

fn current() -> Outcome<CUcontext> {
    let mut context = CUcontext::NULL;
    call!(cuCtxGetCurrent(&mut context))?;
    Ok(context)
}

fn lock() -> MutexGuard<'static, Option<HashMap<c_int, CUcontext>>> {
    // Each change is one insertion or removal, so a panic leaves the map valid.
    PRIMARY.lock().unwrap_or_else(PoisonError::into_inner)
}
