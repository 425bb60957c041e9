//! The only place that writes to stdout and stderr.
//!
//! Nothing here is coloured, so `NO_COLOR` has nothing to switch off.

use std::io::{ErrorKind, Write, stderr, stdout};

use crate::failure::Failure;

/// Writes a command's whole output. A reader that has seen enough (`| head`) is no failure.
///
/// # Errors
///
/// Where stdout cannot be written for another reason, such as a full disk.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::could_not_look(
            format!("the output cannot be written: {error}; free some space, or write elsewhere"),
        )),
        _ => Ok(()),
    }
}

/// Says on stderr what the reader of the output should know but need not act on.
pub(crate) fn note(text: &str) {
    line("note", text);
}

/// Says on stderr why there is no output.
pub(crate) fn complain(failure: &Failure) {
    for text in failure.lines() {
        line("error", text);
    }
}

fn line(kind: &str, text: &str) {
    // Nobody can be told that stderr is closed.
    let _ = writeln!(stderr().lock(), "{kind}: {text}");
}
