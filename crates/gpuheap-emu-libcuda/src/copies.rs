//! An export that is not the driver's. A program that traces the emulated device finds by it where
//! results are read.

use std::ffi::c_ulonglong;
use std::sync::Mutex;

use gpuheap_emu::take_copied_to_host;

/// Function that is called after each driver call that copied bytes to the host, with those bytes.
type OnCopyToHost = extern "C" fn(bytes: c_ulonglong);

/// Function that is called, if any.
static ON_COPY_TO_HOST: Mutex<Option<OnCopyToHost>> = Mutex::new(None);

/// Sets the function that is called after each driver call that copied bytes to the host. The call
/// is on the thread of the copy, with no lock held. Null ends the calls.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_on_copy_to_host(callback: Option<OnCopyToHost>) {
    if let Ok(mut set) = ON_COPY_TO_HOST.lock() {
        *set = callback;
    }
}

/// Calls the program's function if the calling thread's last driver call copied to the host.
pub(crate) fn call_back() {
    let bytes = take_copied_to_host();
    if bytes == 0 {
        return;
    }
    let callback = ON_COPY_TO_HOST.lock().ok().and_then(|set| *set);
    if let Some(callback) = callback {
        callback(bytes);
    }
}
