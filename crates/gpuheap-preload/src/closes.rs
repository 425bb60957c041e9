//! Count of the libraries that the program has closed.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_catch::loader;

static CLOSES: AtomicU64 = AtomicU64::new(0);

/// Returns the count: twice the number of calls. While it is unchanged, no file has taken the
/// addresses of another one.
pub(crate) fn count() -> u64 {
    CLOSES.load(Ordering::Acquire)
}

/// `dlclose`: counts the calls.
// SAFETY: the function has the type of `dlclose`, and its effect.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
    type Close = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
    let Some(found) = loader::next(c"dlclose") else { return -1 };
    // SAFETY: the loader found its `dlclose` at the address.
    let close = unsafe { std::mem::transmute::<*mut c_void, Close>(found) };
    // A thread that reads the count before the addresses are free sees another one afterwards. A
    // thread may also load a file at the free addresses before the call ends.
    CLOSES.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the program keeps the contract of `dlclose`.
    let code = unsafe { close(handle) };
    CLOSES.fetch_add(1, Ordering::Release);
    code
}
