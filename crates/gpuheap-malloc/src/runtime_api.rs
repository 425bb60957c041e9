//! Replaces the runtime's functions.
//!
//! The runtime records each thread's last error. A replacement that fails therefore also makes a
//! runtime call that fails with the same code.
#![allow(non_snake_case, reason = "named as in C")]

use std::cell::Cell;

use gpuheap_driver::abi::Arg;
use gpuheap_driver::{CUdeviceptr, CUresult, CUstream};

use crate::serve::{self, Order};
use crate::table::Out;
use crate::{counts, devices, missing_driver, real};

/// Address at which nothing is allocated, so that a free fails.
const NO_ALLOCATION: CUdeviceptr = 1;

thread_local! {
    /// `true` while this thread runs a real function of the runtime. The variable has no
    /// destructor, so it is still valid while the thread ends.
    static PASSING_ON: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` while this thread runs a real function of the runtime. Driver calls that the
/// runtime makes in that function are passed on to the driver.
pub(crate) fn is_passing_on() -> bool {
    PASSING_ON.get()
}

fn pass_on(call: impl FnOnce() -> CUresult) -> CUresult {
    let before = PASSING_ON.replace(true);
    let code = call();
    PASSING_ON.set(before);
    code
}

/// Runs a real function, then calls `then` if the function succeeded. If the runtime itself made
/// this call, does not call `then`.
pub(crate) fn pass_on_first(
    call: impl FnOnce() -> CUresult,
    then: impl FnOnce() -> CUresult,
) -> CUresult {
    let code = pass_on(call);
    if code.is_success() && !is_passing_on() { then() } else { code }
}

pub(crate) fn cudaMalloc(pointer: Out<CUdeviceptr>, bytes: usize) -> CUresult {
    match in_context(|| serve::allocate(pointer, bytes, Order::Plain)) {
        Some(CUresult::ERROR_OUT_OF_MEMORY) => fail_for_memory(),
        Some(code) => code,
        None => pass_on(|| real::cudaMalloc(pointer, bytes)),
    }
}

pub(crate) fn cudaFree(pointer: CUdeviceptr) -> CUresult {
    match serve::free(pointer, Order::Plain) {
        Some(CUresult::ERROR_INVALID_VALUE) => fail_for_address(),
        Some(code) => code,
        None => {
            let code = pass_on(|| real::cudaFree(pointer));
            if !code.is_success() && devices::current_context().is_none() {
                missing_driver::report_no_context(code);
            }
            counts::count_pass_on(pointer, code);
            code
        }
    }
}

pub(crate) fn cudaMallocAsync(
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    match in_context(|| serve::allocate(pointer, bytes, Order::Stream(stream))) {
        Some(CUresult::ERROR_OUT_OF_MEMORY) => fail_for_memory(),
        Some(code) => code,
        None => pass_on(|| real::cudaMallocAsync(pointer, bytes, stream)),
    }
}

pub(crate) fn cudaFreeAsync(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    match serve::free(pointer, Order::Stream(stream)) {
        Some(CUresult::ERROR_INVALID_VALUE) => fail_for_address(),
        Some(code) => code,
        None => {
            let code = pass_on(|| real::cudaFreeAsync(pointer, stream));
            counts::count_pass_on(pointer, code);
            code
        }
    }
}

pub(crate) fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) -> CUresult {
    in_context(|| serve::write_memory_info(free, total))
        .unwrap_or_else(|| pass_on(|| real::cudaMemGetInfo(free, total)))
}

pub(crate) fn cudaStreamDestroy(stream: CUstream) -> CUresult {
    if !serve::announce_end(stream) {
        return CUresult::SUCCESS;
    }
    pass_on(|| real::cudaStreamDestroy(stream))
}

pub(crate) fn cudaDeviceReset() -> CUresult {
    let mut device = 0;
    if real::cudaGetDevice(&mut device).is_success() {
        devices::reset(device);
    }
    pass_on(real::cudaDeviceReset)
}

/// Calls `serve`. If the thread has no current context, lets the runtime create one and calls
/// `serve` again.
fn in_context(serve: impl Fn() -> Option<CUresult>) -> Option<CUresult> {
    serve().or_else(|| {
        if devices::current_context().is_some() {
            return None;
        }
        // A free of the null pointer makes the runtime create the context, and frees nothing.
        let code = pass_on(|| real::cudaFree(0));
        if devices::current_context().is_none() {
            missing_driver::report_no_context(code);
            return None;
        }
        serve()
    })
}

/// Makes the runtime run out of memory. Requests more than any device has.
fn fail_for_memory() -> CUresult {
    let mut address: CUdeviceptr = 0;
    // SAFETY: the pointer is valid until the call returns.
    let place = unsafe { (&raw mut address).typed() };
    let _ = pass_on(|| real::cudaMalloc(place, usize::MAX / 2));
    CUresult::ERROR_OUT_OF_MEMORY
}

/// Makes the runtime return the error for a free of memory that is not allocated.
fn fail_for_address() -> CUresult {
    let _ = pass_on(|| real::cudaFree(NO_ALLOCATION));
    CUresult::ERROR_INVALID_VALUE
}
