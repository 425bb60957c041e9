//! Rows of a CSV file. The reader reads one row ahead, so that it recognises the last row.

use std::io::{self, Read};
use std::mem;

use csv::ByteRecord;

use crate::source::{Source, read_error};
use crate::{Error, Place};

/// Largest number of bytes in one row. Without this bound, a quote that is never closed would make
/// the whole file one row.
const ROW_LIMIT: u64 = 1 << 20;

/// Reader of rows. It holds the current row and the next row.
pub(super) struct Rows<'a> {
    csv: csv::Reader<Metered<'a>>,
    current: ByteRecord,
    next: ByteRecord,
    has_next: bool,
    /// Line number at which the CSV reader ended the current row; `next_end` is the next row's.
    current_end: u64,
    next_end: u64,
}

impl<'a> Rows<'a> {
    pub(super) fn new(source: Source<'a>) -> Result<Self, Error> {
        let csv = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            // With the terminator CRLF, the reader would end a row at \r, and count the line break
            // with the next row.
            .terminator(csv::Terminator::Any(b'\n'))
            .buffer_capacity(64 << 10)
            .from_reader(Metered { source, row_left: 0, last_byte: b'\n' });
        let mut rows = Self {
            csv,
            current: ByteRecord::new(),
            next: ByteRecord::new(),
            has_next: false,
            current_end: 1,
            next_end: 1,
        };
        rows.has_next = rows.read_next()?;
        Ok(rows)
    }

    /// Makes the next row the [`current`](Self::current) row. Returns `false` after the last row.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        if !self.has_next {
            return Ok(false);
        }
        mem::swap(&mut self.current, &mut self.next);
        self.current_end = self.next_end;
        self.has_next = self.read_next()?;
        Ok(true)
    }

    pub(super) fn current(&self) -> &ByteRecord {
        &self.current
    }

    /// Returns the line on which the current row begins, counted from one. Counts back from the
    /// row's end, because the CSV reader returns the first of the blank lines before the row.
    pub(super) fn line(&self) -> u64 {
        let within = self.current.as_slice().iter().filter(|&&byte| byte == b'\n').count() as u64;
        let after = u64::from(self.has_next || self.csv.get_ref().last_byte == b'\n');
        self.current_end.saturating_sub(within + after)
    }

    /// Returns `true` if the current row is the last row, and has no newline.
    pub(super) fn is_unterminated(&self) -> bool {
        !self.has_next && !matches!(self.csv.get_ref().last_byte, b'\n' | b'\r')
    }

    pub(super) fn source(&self) -> &Source<'a> {
        &self.csv.get_ref().source
    }

    /// Reads the next row that is not blank.
    fn read_next(&mut self) -> Result<bool, Error> {
        loop {
            self.csv.get_mut().row_left = ROW_LIMIT;
            let line = self.csv.position().line();
            let found = self.csv.read_byte_record(&mut self.next);
            let found = found.map_err(|error| row_error(error).at(Place::Line(line)))?;
            self.next_end = self.csv.position().line();
            let blank = self.next.len() == 1 && self.next[0].trim_ascii().is_empty();
            if !found || !blank {
                return Ok(found);
            }
        }
    }
}

fn row_error(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::InvalidData => Error::new(
            format!("a row of more than {ROW_LIMIT} bytes"),
            "look for a quote that is never closed; this may not be an RMM log",
        ),
        csv::ErrorKind::Io(error) => read_error(error),
        // Rows may contain any bytes and any number of fields, so no other error is expected.
        kind => Error::new(format!("not CSV: {kind:?}"), "this may not be an RMM log"),
    }
}

/// Source of a log. It limits the bytes of a row to [`ROW_LIMIT`], and keeps the last byte, because
/// [`Rows`] checks if that is a newline.
struct Metered<'a> {
    source: Source<'a>,
    row_left: u64,
    last_byte: u8,
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.row_left == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let given = self.source.read(buffer)?;
        self.row_left = self.row_left.saturating_sub(given as u64);
        if let Some(&last) = buffer[..given].last() {
            self.last_byte = last;
        }
        Ok(given)
    }
}
