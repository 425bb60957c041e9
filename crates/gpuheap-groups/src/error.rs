//! Errors.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A failure of this crate.
#[derive(Debug)]
pub enum Error {
    /// The input contradicts itself. The text says how.
    Invalid(String),
    /// The host has no memory for this number of bytes.
    HostMemory(usize),
    /// A temporary file of partial results could not be written or read.
    Spill {
        /// Folder of the file.
        folder: PathBuf,
        /// If a write failed, the bytes written before. If a read failed, the bytes of all
        /// temporary files.
        bytes: u64,
        /// Error of the system.
        error: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(text) => f.write_str(text),
            Error::HostMemory(bytes) => write!(
                f,
                "the host has no memory for {bytes} bytes of keys and partial results; use smaller \
                 batches, or a smaller limit of host memory, above which they go to files"
            ),
            Error::Spill { folder, bytes, error } => write!(
                f,
                "partial results could not be kept in a file of {}, after {bytes} bytes: {error}; name a \
                 folder with more room, or allow more host memory",
                folder.display()
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Spill { error, .. } => Some(error),
            Error::Invalid(_) | Error::HostMemory(_) => None,
        }
    }
}

/// Makes an empty vector with room for `count` elements.
pub(crate) fn room<T>(count: usize) -> Result<Vec<T>, Error> {
    let mut made = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    made.try_reserve_exact(count).map_err(|_| Error::HostMemory(bytes))?;
    Ok(made)
}
