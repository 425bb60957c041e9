//! An export that is not part of the driver API. With it, a program that traces the emulated device
//! finds the places at which results are read.

use std::sync::Mutex;

use gpuheap_emu::{CopyToHost, take_copy_to_host};

/// Function that is called after each driver call that copied to the host. It may replace the
/// copied bytes, because they lack the results of kernels that are not run.
type OnCopyToHost = extern "C" fn(copy: &CopyToHost);

/// The program's function; `None` if the program has set no function.
static ON_COPY_TO_HOST: Mutex<Option<OnCopyToHost>> = Mutex::new(None);

/// Sets the function that is called after each driver call that copied to the host. The function is
/// called on the thread of the copy, and no lock is held. Null ends the calls.
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_on_copy_to_host(callback: Option<OnCopyToHost>) {
    if let Ok(mut set) = ON_COPY_TO_HOST.lock() {
        *set = callback;
    }
}

/// Calls the program's callback if this thread's last driver call copied to the host.
pub(crate) fn call_back() {
    let Some(copy) = take_copy_to_host() else { return };
    let callback = ON_COPY_TO_HOST.lock().ok().and_then(|set| *set);
    if let Some(callback) = callback {
        callback(&copy);
    }
}
