//! Unpacks the bytes of a file while they are read.

use std::io::{self, BufReader, Cursor, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use crate::Error;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// Number of bytes at the start that decide the format: a byte order mark and the first letter.
const PEEKED: usize = 4;
/// Bytes that are read from the file at a time.
const CHUNK: usize = 64 << 10;

/// Unpacked bytes of a file. Damaged or cut gzip data ends the stream without an error, because the
/// data before that place is good. [`damage`](Self::damage) then returns the reason.
pub(crate) struct Source<'a> {
    reader: Box<dyn Read + 'a>,
    peeked: Vec<u8>,
    gzipped: bool,
    left: u64,
    limit: u64,
    damage: Option<String>,
}

impl<'a> Source<'a> {
    pub(crate) fn open(mut reader: impl Read + 'a, limit: u64) -> Result<Self, Error> {
        let start = read_up_to(&mut reader, GZIP_MAGIC.len()).map_err(read_error)?;
        let gzipped = start == GZIP_MAGIC;
        let whole = Cursor::new(start).chain(reader);
        let reader: Box<dyn Read + 'a> = if gzipped {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self { reader, peeked: Vec::new(), gzipped, left: limit, limit, damage: None })
    }

    /// Returns the first few bytes without taking them, or no bytes at the end of the data.
    pub(crate) fn peek(&mut self) -> Result<&[u8], Error> {
        let start = read_up_to(self, PEEKED).map_err(read_error)?;
        self.left = self.left.saturating_add(start.len() as u64);
        self.peeked = start;
        Ok(&self.peeked)
    }

    /// Returns the reason if the data ended early; `None` at the proper end.
    pub(crate) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Returns the error for a file without content.
    pub(crate) fn emptiness(&self) -> Error {
        let again = "record again, and let the program end or flush its log";
        match &self.damage {
            Some(reason) => Error::new(
                format!("the gzip data breaks off before one whole row ({reason})"),
                "copy the file again, or record again",
            ),
            None if self.gzipped => Error::new("is empty once unpacked", again),
            None => Error::new("is empty", again),
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.peeked.is_empty() {
            let given = self.peeked.len().min(buffer.len());
            buffer[..given].copy_from_slice(&self.peeked[..given]);
            self.peeked.drain(..given);
            return Ok(given);
        }
        if self.damage.is_some() {
            return Ok(0);
        }
        match self.reader.read(buffer) {
            Err(error) if self.gzipped && is_damage(&error) => {
                self.damage = Some(error.to_string());
                Ok(0)
            }
            result => result,
        }
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let given = self.fill(buffer)?;
        self.left = self.left.checked_sub(given as u64).ok_or_else(|| {
            io::Error::new(
                ErrorKind::FileTooLarge,
                format!("more than {} bytes once unpacked", self.limit),
            )
        })?;
        Ok(given)
    }
}

/// Returns the error for a failed read.
pub(crate) fn read_error(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::FileTooLarge => Error::io(
            "is too large",
            error,
            "raise ReadOptions::unpacked_limit if the file is meant to be this large",
        ),
        _ => Error::io("cannot be read", error, "check the disk or copy the file again"),
    }
}

fn read_up_to(reader: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(count);
    reader.take(count as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// Returns `true` for errors of the decoder. Other errors are errors of the underlying file.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::InvalidData
    )
}
