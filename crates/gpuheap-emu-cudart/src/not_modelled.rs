//! Functions of the runtime that are not modelled. Each writes its name to stderr once, and returns
//! an error.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use gpuheap_driver::{CUresult, export};

use crate::call::guarded;

/// Environment variable that names the folder of the report.
const REPORT: &str = "GPUHEAP_EMULATED_REPORT";

/// Number of calls, keyed by the name of a function that is not modelled.
static CALLS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

// The functions declare no arguments, although callers pass some. In every C ABI of Unix, the
// caller removes its arguments after the call.
macro_rules! refusals {
    ($($name:ident),* $(,)?) => {
        export! {$(
            /// Returns `cudaErrorNotSupported`.
            fn $name() -> CUresult {
                refuse(stringify!($name))
            }
        )*}
    };
}

functions_not_modelled!(refusals);

macro_rules! refusals_of_driver {
    ($($name:ident)*) => {
        /// Returns a function that replaces the driver's function `name` and always fails. Returns
        /// `None` if no function replaces it.
        ///
        /// PyTorch calls the driver's functions for green contexts even if their lookup failed, and
        /// would then call a null pointer.
        pub(crate) fn refusing(name: &str) -> Option<*mut c_void> {
            $(
                #[allow(non_snake_case, reason = "named as in C")]
                extern "C" fn $name() -> CUresult {
                    refuse(stringify!($name))
                }
                if name == stringify!($name) {
                    return Some($name as *mut c_void);
                }
            )*
            None
        }
    };
}

refusals_of_driver!(
    cuCtxFromGreenCtx cuDevResourceGenerateDesc cuDevSmResourceSplitByCount cuDeviceGetDevResource
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate
);

/// Counts a call, and returns a failure. Reports the first call of each function on stderr.
fn refuse(function: &'static str) -> CUresult {
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

/// Writes `cudart.PID.json`, with the number of calls of each function, to the folder that
/// [`REPORT`] names.
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

/// Writes a line to stderr. Ignores errors, which could not be reported anyway.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "gpuheap: cudart: {line}");
}
