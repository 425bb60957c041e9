//! Writer of captures into any stream of bytes.

use std::io::{self, Write};

use super::{Deltas, Record, header};

/// Writer of a capture. Each record reaches the underlying writer in one piece.
///
/// ```
/// use gpuheap_trace::capture::{Address, CaptureWriter, Record, Time};
/// use gpuheap_trace::{MemoryKind, ReadOptions, read_bytes};
///
/// let mut file = Vec::new();
/// let mut writer = CaptureWriter::new(&mut file)?;
/// writer.write(&Record::ThreadStart { time: Time(0), id: 7, name: "main" })?;
/// writer.write(&Record::Allocate {
///     time: Time(10),
///     thread: 1,
///     kind: MemoryKind::Device,
///     device: 0,
///     stream: 0,
///     address: Address(0x7f00_0000_0000),
///     bytes: 4096,
///     stack: 0,
/// })?;
/// let traces = read_bytes("run.gph", &file, &ReadOptions::default())?;
/// assert_eq!(traces[0].summary().peak_live_bytes, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
