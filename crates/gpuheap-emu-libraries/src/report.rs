//! Writes a report when the process exits: refused calls, and notes on how libraries are modelled.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// Environment variable with the folder for the report.
const FOLDER: &str = "GPUHEAP_EMULATED_REPORT";
/// Maximum number of refused functions that the report names for a library.
const NAMED: usize = 3;

/// Number of refused calls, keyed by library and function.
static REFUSED: Mutex<BTreeMap<&str, BTreeMap<&str, u64>>> = Mutex::new(BTreeMap::new());

/// Notes for the report. Each is a pair: a library, and a text on how the library is modelled.
static NOTES: Mutex<BTreeSet<(&str, &str)>> = Mutex::new(BTreeSet::new());

/// Largest workspace, in bytes, of the plans that PyTorch's benchmark mode only times. The
/// heuristic's choice and the fastest plan do not count, because programs also run these plans.
static TIMED: AtomicU64 = AtomicU64::new(0);

/// Records the workspace, in bytes, of a plan that PyTorch's benchmark mode only times.
pub(crate) fn timed_workspace(bytes: u64) {
    write_at_exit();
    TIMED.fetch_max(bytes, Ordering::Relaxed);
}

/// Counts a refused call.
pub(crate) fn refused(library: &'static str, function: &'static str) {
    write_at_exit();
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    *refused.entry(library).or_default().entry(function).or_default() += 1;
}

/// Adds a note on how a library is modelled to the report.
pub(crate) fn add_line(library: &'static str, line: &'static str) {
    write_at_exit();
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).insert((library, line));
}

fn write_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function does not unwind, and this library is never unmapped.
        unsafe { libc::atexit(write) };
    });
}

extern "C" fn write() {
    let Some(folder) = env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else { return };
    let file = PathBuf::from(folder).join(format!("libraries.{}.json", std::process::id()));
    let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    // Ignores failures: the process is exiting.
    let _ = std::fs::write(file, text(&refused, &notes, TIMED.load(Ordering::Relaxed)));
}

fn text(
    refused: &BTreeMap<&str, BTreeMap<&str, u64>>,
    notes: &BTreeSet<(&str, &str)>,
    timed: u64,
) -> String {
    let object =
        |library: &str, note: &str| format!("{{\"name\": \"{library}\", \"notes\": [\"{note}\"]}}");
    let mut libraries: Vec<String> =
        notes.iter().map(|(library, note)| object(library, note)).collect();
    for (library, functions) in refused {
        let calls: u64 = functions.values().sum();
        let were = if calls == 1 { "call was" } else { "calls were" };
        let mut note = format!("is not modelled: {calls} {were} refused, of ");
        let names: Vec<&str> = functions.keys().take(NAMED).copied().collect();
        note += &names.join(", ");
        if functions.len() > NAMED {
            // Ignores the result: writing to a string never fails.
            let _ = write!(note, " and {} more", functions.len() - NAMED);
        }
        libraries.push(object(library, &note));
    }
    let timed = if timed == 0 { String::new() } else { format!(", \"timed_workspace\": {timed}") };
    format!("{{\"libraries\": [{}]{timed}}}\n", libraries.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_the_first_functions() {
        let functions = BTreeMap::from([("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
        assert_eq!(
            text(&BTreeMap::from([("cuFFT", functions)]), &BTreeSet::new(), 0),
            "{\"libraries\": [{\"name\": \"cuFFT\", \"notes\": [\"is not modelled: 10 calls were \
             refused, of a, b, c and 1 more\"]}]}\n"
        );
        assert_eq!(
            text(&BTreeMap::from([("cuFFT", BTreeMap::from([("a", 1)]))]), &BTreeSet::new(), 0),
            "{\"libraries\": [{\"name\": \"cuFFT\", \"notes\": [\"is not modelled: 1 call was refused, \
             of a\"]}]}\n"
        );
    }
}
