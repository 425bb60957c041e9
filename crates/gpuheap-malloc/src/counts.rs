//! Counts requests and frees that were refused, and frees that CUDA's functions served.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpuheap_capi::Failure;
use gpuheap_catch::messages;
use gpuheap_driver::{CUdeviceptr, CUresult};

use crate::{devices, settings};

/// Number of frees that the driver served, because no heap had allocated the memory.
pub(crate) static PASSED_ON: AtomicU64 = AtomicU64::new(0);

/// Number of frees of addresses at which nothing is allocated.
pub(crate) static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Number of requests that failed for lack of memory.
pub(crate) static OUT_OF_MEMORY: AtomicU64 = AtomicU64::new(0);

/// `true` once the program has used CUDA. A program without CUDA may inherit the drop-in (this
/// library). For such a program, no report is written at exit.
pub(crate) static USED_CUDA: AtomicBool = AtomicBool::new(false);

/// Notes that the program uses CUDA.
pub(crate) fn note_cuda() {
    USED_CUDA.store(true, Ordering::Relaxed);
    // Reads the settings now, because the program may change its environment before the exit.
    let _ = settings::get();
}

/// Counts a request that failed for lack of memory. Writes the first request's reason to stderr.
#[cold]
pub(crate) fn count_refused_request(failure: &Failure) {
    if OUT_OF_MEMORY.fetch_add(1, Ordering::Relaxed) == 0 {
        // The program calls no function of gpuheap, so the only remedy is the environment variable.
        let text = failure.text();
        messages::write(&text.replace("gpuheap_options.hard_limit, gpuheap_set_limits or ", ""));
    }
}

/// Counts a free of an address at which nothing is allocated.
pub(crate) fn count_refused_free() {
    REFUSED.fetch_add(1, Ordering::Relaxed);
}

/// Counts a free that was passed on to CUDA and returned `code`.
pub(crate) fn count_pass_on(address: CUdeviceptr, code: CUresult) {
    if address == 0 || devices::all().next().is_none() {
        return;
    }
    let count = if code.is_success() { &PASSED_ON } else { &REFUSED };
    count.fetch_add(1, Ordering::Relaxed);
}
