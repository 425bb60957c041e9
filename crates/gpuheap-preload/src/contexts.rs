//! Finds the current context and its device. When a context ends, records its memory as freed.
#![allow(non_snake_case, reason = "named as in C")]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use gpuheap_driver::{CUcontext, CUdevice, CUresult};

use crate::table::Out;
use crate::threads::Guard;
use crate::{real, recorder};

/// Count of contexts that ended. A change invalidates [`LAST`], because a new context of another
/// device may get the handle of an ended context.
static ENDS: AtomicU64 = AtomicU64::new(1);

/// Primary context of each device, if known.
static PRIMARY: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

thread_local! {
    /// Context that this thread last used, its device, and the value of [`ENDS`] at that time.
    static LAST: Cell<(CUcontext, CUdevice, u64)> = const { Cell::new((CUcontext::NULL, 0, 0)) };
}

/// Returns the calling thread's context and its device. Without a context, returns the null context
/// and device 0.
pub(crate) fn current() -> (CUcontext, CUdevice) {
    let mut context = CUcontext::NULL;
    if !real::cuCtxGetCurrent(&mut context).is_success() || context.is_null() {
        return (CUcontext::NULL, 0);
    }
    let ends = ENDS.load(Ordering::Relaxed);
    let (known, device, at) = LAST.get();
    if known == context && at == ends {
        return (context, device);
    }
    let mut device = 0;
    if real::cuCtxGetDevice(&mut device).is_success() {
        LAST.set((context, device, ends));
    }
    (context, device)
}

pub(crate) fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice) -> CUresult {
    let code = real::cuDevicePrimaryCtxRetain(context, device);
    if let Some(primary) = usize::try_from(device).ok().and_then(|device| PRIMARY.get(device))
        && code.is_success()
        && let Ok(context) = context.get()
    {
        primary.store(context.0, Ordering::Relaxed);
    }
    code
}

pub(crate) fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    let Some(_guard) = Guard::enter() else { return real::cuCtxDestroy_v2(context) };
    let code = real::cuCtxDestroy_v2(context);
    if code.is_success() {
        ended(context);
    }
    code
}

/// Passes on a call after which the primary context of a device may have ended.
pub(crate) fn ends_primary(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(_guard) = Guard::enter() else { return call() };
    let code = call();
    let (mut flags, mut active) = (0, 0 as c_int);
    if let Some(primary) = usize::try_from(device).ok().and_then(|device| PRIMARY.get(device))
        && code.is_success()
        && real::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active).is_success()
        && active == 0
    {
        let context = CUcontext(primary.swap(0, Ordering::Relaxed));
        if !context.is_null() {
            ended(context);
        }
    }
    code
}

fn ended(context: CUcontext) {
    ENDS.fetch_add(1, Ordering::Relaxed);
    if let Some(recorder) = recorder::existing() {
        for block in recorder.context_ended(context) {
            block.charge.give_back();
        }
    }
}
