//! Exports a function outside the driver API. Programs that trace the emulated device use it to
//! find where the host reads results.

use std::sync::Mutex;

use gpuheap_emu::{CopyToHost, take_copy_to_host};

/// Function called after each driver call that copied to the host. It may replace the copied bytes,
/// because they lack the results of kernels that the emulator does not run.
type OnCopyToHost = extern "C" fn(copy: &CopyToHost);

/// Function that the program set; `None` if none is set.
static ON_COPY_TO_HOST: Mutex<Option<OnCopyToHost>> = Mutex::new(None);

/// Sets the function that is called after each driver call that copied to the host. If `callback`
/// is null, removes the function. No lock is held when the copying thread calls the function.
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_on_copy_to_host(callback: Option<OnCopyToHost>) {
    if let Ok(mut set) = ON_COPY_TO_HOST.lock() {
        *set = callback;
    }
}

/// Calls the program's function, if this thread's last driver call copied to the host.
pub(crate) fn call_back() {
    let Some(copy) = take_copy_to_host() else { return };
    let callback = ON_COPY_TO_HOST.lock().ok().and_then(|set| *set);
    if let Some(callback) = callback {
        callback(&copy);
    }
}
