//! An export outside the driver API. A program that traces the emulated device uses it to find
//! where results are read.

use std::sync::Mutex;

use gpuheap_emu::{CopyToHost, take_copy_to_host};

/// Function called after each driver call that copied to the host. It may replace the copied bytes:
/// they lack the results of kernels that are not run.
type OnCopyToHost = extern "C" fn(copy: &CopyToHost);

/// Program's function; `None` if none is set.
static ON_COPY_TO_HOST: Mutex<Option<OnCopyToHost>> = Mutex::new(None);

/// Sets the function that is called after each driver call that copied to the host; null removes
/// it. The function runs on the thread of the copy, and no lock is held.
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_on_copy_to_host(callback: Option<OnCopyToHost>) {
    if let Ok(mut set) = ON_COPY_TO_HOST.lock() {
        *set = callback;
    }
}

/// Calls the program's function if this thread's last driver call copied to the host.
pub(crate) fn call_back() {
    let Some(copy) = take_copy_to_host() else { return };
    let callback = ON_COPY_TO_HOST.lock().ok().and_then(|set| *set);
    if let Some(callback) = callback {
        callback(&copy);
    }
}
