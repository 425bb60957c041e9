//! Writer of captures into any stream of bytes.

use std::io::{self, Write};

use crate::{Deltas, Record, header};

/// Writer of a capture. It passes each record to the underlying writer in one call.
#[derive(Debug)]
pub struct CaptureWriter<W> {
    inner: W,
    deltas: Deltas,
    bytes: Vec<u8>,
}

impl<W: Write> CaptureWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Returns the errors of the underlying writer.
    pub fn new(mut inner: W) -> io::Result<Self> {
        inner.write_all(&header())?;
        Ok(Self { inner, deltas: Deltas::default(), bytes: Vec::new() })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// Returns the errors of the underlying writer.
    pub fn write(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.bytes.clear();
        record.encode(&mut self.deltas, &mut self.bytes);
        self.inner.write_all(&self.bytes)
    }

    /// Flushes the underlying writer.
    ///
    /// # Errors
    /// Returns the errors of the underlying writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
