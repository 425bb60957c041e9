//! Report of the process, written to a folder when the process ends.
//!
//! Its reader is `gpuheap dry-run`. A process that ends by a signal or by `_exit` writes none.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpuheap_driver::CUresult;
use gpuheap_emu::Emulator;

/// Functions of the table that launch kernels.
const LAUNCHES: [&str; 1] = ["cuLaunchKernel"];
const COPIES_TO_HOST: [&str; 2] = ["cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"];

/// Number of calls that failed because memory was not enough.
static OUT_OF_MEMORY: AtomicU64 = AtomicU64::new(0);

/// Functions that the library exports and refuses, with their calls.
static REFUSED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// Function of the program that is called for each copy to the host.
static ON_COPY_TO_HOST: Mutex<Option<OnCopyToHost>> = Mutex::new(None);

/// Takes the bytes of a copy.
type OnCopyToHost = unsafe extern "C" fn(bytes: c_ulonglong);

/// Counts a call that ended with this code.
pub(crate) fn ended(code: CUresult) {
    if code == CUresult::ERROR_OUT_OF_MEMORY {
        OUT_OF_MEMORY.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a call of a function that is refused.
pub(crate) fn refused(function: &'static str) {
    *REFUSED.lock().unwrap_or_else(PoisonError::into_inner).entry(function).or_default() += 1;
}

/// Tells the program of a copy to the host. No lock is held meanwhile.
pub(crate) fn copied_to_host(bytes: usize) {
    let callback = *ON_COPY_TO_HOST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(callback) = callback {
        // SAFETY: the program gave the function, and promised that it may be called until another
        // one takes its place.
        unsafe { callback(bytes as c_ulonglong) };
    }
}

/// Calls `callback` for each copy to the host from now on, on the thread that copies, with the
/// bytes. Null ends that.
///
/// # Safety
///
/// `callback` may be called from any thread until the next call of this function.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_emulated_on_copy_to_host(callback: Option<OnCopyToHost>) {
    *ON_COPY_TO_HOST.lock().unwrap_or_else(PoisonError::into_inner) = callback;
}

/// Writes `driver.PID.json` into the folder. A failure has no reader: the process is ending.
pub(crate) fn write(folder: &Path, device: &Emulator) {
    let file = folder.join(format!("driver.{}.json", std::process::id()));
    let _ = fs::write(file, text(device));
}

fn text(device: &Emulator) -> String {
    let options = device.options();
    let devices = (0..).zip(options.shown()).map(|(shown, number)| {
        let (profile, usage) = (&options.devices[number], device.usage(shown));
        let in_use = usage.context + usage.plain + usage.pools + usage.vmm + usage.late;
        format!(
            "{{\"name\": \"{}\", \"total\": {}, \"peak_in_use\": {}, \"in_use_at_end\": {in_use}}}",
            escaped(&profile.name),
            profile.memory_bytes,
            usage.high_water
        )
    });
    let calls =
        |symbols: &[&str]| -> u64 { symbols.iter().map(|symbol| device.calls_of(symbol)).sum() };
    let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let refused = refused
        .iter()
        .map(|(function, times)| format!("{{\"function\": \"{function}\", \"times\": {times}}}"));
    let mut text = String::new();
    // A write to a string never fails.
    let _ = writeln!(
        text,
        "{{\"devices\": [{}], \"asked_for_free_memory\": {}, \"copies_to_host\": {}, \
         \"launches_dropped\": {}, \"out_of_memory\": {}, \"refused\": [{}], \
         \"export_table_asked\": {}}}",
        devices.collect::<Vec<_>>().join(", "),
        calls(&["cuMemGetInfo_v2"]),
        calls(&COPIES_TO_HOST),
        calls(&LAUNCHES),
        OUT_OF_MEMORY.load(Ordering::Relaxed),
        refused.collect::<Vec<_>>().join(", "),
        calls(&["cuGetExportTable"]) > 0,
    );
    text
}

/// Returns a text for the inside of a JSON string.
fn escaped(text: &str) -> String {
    let special = |c: char| c.is_control() || c == '"' || c == '\\';
    text.chars().map(|c| if special(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_quotes() {
        assert_eq!(escaped("a \"b\" \\ c\n"), "a  b    c ");
    }
}
