//! Errors of a dry run.

use std::fmt;
use std::path::Path;

/// Reason why a program was not run. The text is one line that includes the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The request is wrong: the program does not exist, or a value is invalid.
    WrongUse(String),
    /// A file or folder that the run needs is missing or cannot be written.
    Environment(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::WrongUse(line) | Error::Environment(line) => f.write_str(line),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the error for a temporary folder that cannot be made.
pub(crate) fn no_folder(error: &std::io::Error) -> Error {
    Error::Environment(format!(
        "{}: a folder for the run cannot be written: {error}; set TMPDIR to a folder with room",
        std::env::temp_dir().display()
    ))
}

/// Returns the error for a file that cannot be written.
pub(crate) fn not_written(file: &Path, error: &std::io::Error) -> Error {
    Error::WrongUse(format!(
        "{}: it cannot be written: {error}; name a file in a folder that you can write to",
        file.display()
    ))
}
