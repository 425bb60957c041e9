//! End of the recording at the end of the process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::recorder;

/// Function that the loader calls at the exit, after the program's exit handlers and the
/// destructors of its libraries.
#[used]
// SAFETY: the section holds functions without arguments. The loader calls them at the exit.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // At exit, no code is left to handle a failure.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(recorder) = recorder::existing() {
            recorder.end("");
        }
    }));
}
