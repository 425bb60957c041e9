//! Contains the entry points. They find the format of a file or of bytes, and call its reader.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::RECORDING;
use crate::source::Source;
use crate::{Error, ReadOptions, Trace, capture, rmm, snapshot};

/// First opcode of all pickles of protocol 2 or later.
const PICKLE_PROTO: u8 = 0x80;

/// Reads a trace file: a capture of gpuheap, an RMM log or a PyTorch snapshot, plain or gzipped.
/// The content decides the format.
///
/// Returns one trace for a log. For a snapshot or a capture, returns one trace for each device with
/// events.
///
/// # Errors
/// Returns an error if the file cannot be read, has an unknown format, or contains no complete
/// event. A log that breaks off after some complete rows is not an error; see [`Trace::warnings`].
pub fn read(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Vec<Trace>, Error> {
    let path = path.as_ref();
    read_from(&path.display().to_string(), open(path)?, options)
}

/// Opens a trace file for [`read_from`].
///
/// # Errors
/// Returns an error if the file cannot be opened, or if it is a folder.
pub fn open(path: impl AsRef<Path>) -> Result<File, Error> {
    let path = path.as_ref();
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.is_dir(), file)));
    let opened = match opened {
        Ok((true, _)) => Err(Error::new("is a directory", "name a trace file inside it")),
        Ok((false, file)) => Ok(file),
        Err(error) => {
            Err(Error::io("cannot be opened", error, "check the path and its permissions"))
        }
    };
    opened.map_err(|error| error.in_file(&path.display().to_string()))
}

/// Reads a trace from bytes in memory, like [`read`]. Error messages contain `name`.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn read_bytes(name: &str, bytes: &[u8], options: &ReadOptions) -> Result<Vec<Trace>, Error> {
    read_from(name, bytes, options)
}

/// Reads a trace from any reader, like [`read`]. Error messages contain `name`. The reader may be
/// unbuffered.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn read_from(
    name: &str,
    reader: impl Read,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    let read = || {
        let mut source = Source::open(reader, options.unpacked_limit)?;
        match source.peek()? {
            [] => Err(source.emptiness()),
            [PICKLE_PROTO, ..] => snapshot::read(name, source, options),
            start if capture::MAGIC.starts_with(start) => capture::read(name, source, options),
            start if is_text(start) => Ok(vec![rmm::read(name, source)?]),
            start => Err(Error::new(
                format!(
                    "begins with the bytes {start:02x?}: neither a capture of gpuheap, nor a PyTorch snapshot, nor \
                     an RMM log"
                ),
                RECORDING,
            )),
        }
    };
    read().map_err(|error: Error| error.in_file(name))
}

/// Returns `true` if a file with this start can be a CSV log. A log begins with a byte order mark
/// or with printable text.
fn is_text(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    text.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}
