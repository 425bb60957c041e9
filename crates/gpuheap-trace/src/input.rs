//! From a path or bytes to traces: recognises the format and hands over to its reader.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::RECORDING;
use crate::source::Source;
use crate::{Error, ReadOptions, Trace, rmm, snapshot};

/// The opcode with which every pickle of protocol 2 or later begins.
const PICKLE_PROTO: u8 = 0x80;

/// Reads a trace file: an RMM log or a PyTorch snapshot, plain or gzipped, recognised by content.
///
/// Gives at least one trace: one for a log; for a snapshot one for every device that has events.
///
/// # Errors
/// When the file cannot be read, is of no known format, or has no whole event. A log that breaks
/// off after some whole rows is no error; see [`Trace::warnings`].
pub fn read(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Vec<Trace>, Error> {
    let path = path.as_ref();
    read_from(&path.display().to_string(), open(path)?, options)
}

/// Opens the file of a trace, to be given to [`read_from`]. Does not read it.
///
/// # Errors
/// A file that cannot be opened; a folder.
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

/// Reads a trace from bytes in memory; `name` is for messages. See [`read`].
///
/// # Errors
/// As [`read`].
pub fn read_bytes(name: &str, bytes: &[u8], options: &ReadOptions) -> Result<Vec<Trace>, Error> {
    read_from(name, bytes, options)
}

/// Reads a trace from any reader; `name` is for messages. See [`read`]. The reader needs no
/// buffering of its own.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    name: &str,
    reader: impl Read,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    recognise_and_read(name, reader, options).map_err(|error| error.in_file(name))
}

fn recognise_and_read(
    name: &str,
    reader: impl Read,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    let mut source = Source::open(reader, options.unpacked_limit)?;
    match source.peek()? {
        [] => Err(source.emptiness()),
        [PICKLE_PROTO, ..] => snapshot::read(name, source, options),
        start if is_text(start) => Ok(vec![rmm::read(name, source)?]),
        start => Err(Error::new(
            format!(
                "begins with the bytes {start:02x?}: neither a PyTorch snapshot nor an RMM log"
            ),
            RECORDING,
        )),
    }
}

/// Returns `true` if a file that begins like this can be a CSV log: a byte order mark or printable
/// text.
fn is_text(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    text.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}
