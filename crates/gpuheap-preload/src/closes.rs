//! Counts the calls by which the program closes libraries.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_catch::loader;

static CLOSES: AtomicU64 = AtomicU64::new(0);

/// Returns a count that grows at the start and at the end of each `dlclose`. While the count is
/// unchanged, no newly loaded file has the addresses of a closed file.
pub(crate) fn count() -> u64 {
    CLOSES.load(Ordering::Acquire)
}

/// `dlclose`: counts the calls.
// SAFETY: the function has the signature and the effect of `dlclose`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
    type Close = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
    let Some(found) = loader::next(c"dlclose") else { return -1 };
    // SAFETY: the loader found its `dlclose` at the address.
    let close = unsafe { std::mem::transmute::<*mut c_void, Close>(found) };
    // Increases the count before and after the file is unloaded. The first increase outdates all
    // results of `count` so far. The second outdates results that another thread read in between.
    CLOSES.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the program keeps the contract of `dlclose`.
    let code = unsafe { close(handle) };
    CLOSES.fetch_add(1, Ordering::Release);
    code
}
