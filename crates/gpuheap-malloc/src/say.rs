//! Messages on stderr.

use std::io::Write as _;

/// Writes a message to stderr, in one piece.
pub(crate) fn say(text: &str) {
    // Nothing is left to tell of a stderr that is closed.
    let _ = std::io::stderr().write_all(format!("gpuheap: {text}\n").as_bytes());
}
