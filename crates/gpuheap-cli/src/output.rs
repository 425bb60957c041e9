//! Output of all commands: only this module writes to stdout and stderr.
//!
//! No output is coloured, so `NO_COLOR` has no effect.

use std::io::{ErrorKind, Write, stderr, stdout};

use gpuheap_text::printable;

use crate::exit::Failure;

/// Writes a command's whole output. A reader that ends early (`| head`) is not a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Writes a command's whole output as bytes, like [`print`].
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::environment_error(
            format!("the output cannot be written: {error}; free some space, or write elsewhere"),
        )),
        _ => Ok(()),
    }
}

/// Writes a note to stderr. A note needs no action.
pub(crate) fn note(text: &str) {
    line("note", text);
}

/// Writes a command's report to stderr: stdout belongs to the program that the command ran.
pub(crate) fn report(text: &str) {
    // A closed stderr cannot be reported.
    let _ = stderr().lock().write_all(text.as_bytes());
}

/// Writes a failure's lines to stderr.
pub(crate) fn print_errors(failure: &Failure) {
    for text in failure.lines() {
        line("error", text);
    }
}

fn line(kind: &str, text: &str) {
    // A closed stderr cannot be reported.
    let _ = writeln!(stderr().lock(), "{kind}: {}", printable(text));
}
