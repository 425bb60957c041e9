//! Functions of the runtime that are not modelled: each names itself and refuses the call.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use gpuheap_driver::CUresult;

use crate::call::guarded;

/// Folder of the report that is written when the process exits.
const REPORT: &str = "GPUHEAP_EMULATED_REPORT";

/// Calls of functions that are not modelled, by name.
static CALLS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

macro_rules! refusals {
    ($($name:ident),* $(,)?) => {$(
        /// Returns `cudaErrorNotSupported`.
        // SAFETY: the name is the runtime's, and this library replaces it. The function reads none
        // of the caller's arguments, which the caller's side removes in every C ABI of Unix.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> CUresult {
            refuse(stringify!($name))
        }
    )*};
}

functions_not_modelled!(refusals);

/// Refuses a call. The first one of a function is written to stderr.
pub(crate) fn refuse(function: &'static str) -> CUresult {
    guarded(|| {
        let Ok(mut calls) = CALLS.lock() else { return Err(CUresult::ERROR_NOT_SUPPORTED) };
        if calls.is_empty() && std::env::var_os(REPORT).is_some() {
            // SAFETY: the function does not unwind, and this library is never unmapped.
            unsafe { libc::atexit(write_report) };
        }
        let count = calls.entry(function).or_default();
        *count += 1;
        if *count == 1 {
            say(&format!(
                "{function} is not modelled, and the call fails with cudaErrorNotSupported; please report it with the name of the program"
            ));
        }
        Err(CUresult::ERROR_NOT_SUPPORTED)
    })
}

/// Writes the calls that were refused into the folder that the environment names, as
/// `cudart.PID.json`.
extern "C" fn write_report() {
    let _ = guarded(|| {
        let (Some(folder), Ok(calls)) = (std::env::var_os(REPORT), CALLS.lock()) else {
            return Ok(());
        };
        let calls = calls
            .iter()
            .map(|(function, times)| format!(r#"{{"function":"{function}","times":{times}}}"#));
        let calls = calls.collect::<Vec<_>>().join(",");
        let file = Path::new(&folder).join(format!("cudart.{}.json", std::process::id()));
        if let Err(error) = std::fs::write(&file, format!("{{\"not_modelled\":[{calls}]}}\n")) {
            say(&format!("no report at {}: {error}", file.display()));
        }
        Ok(())
    });
}

/// Writes a line to stderr. A program without one misses nothing that it could have read.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "gpuheap: cudart: {line}");
}
