//! Buffered input of a pickle's bytes.

use std::io::Read;

use crate::Error;
use crate::source::read_error;

/// Bytes that are read from the source at a time.
const CHUNK: usize = 256 << 10;

/// Bytes from a source. If a read fails, the input ends there, and [`finish`](Self::finish) returns
/// the error.
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    /// Number of bytes taken from the buffer; `filled` is the number of bytes in it.
    taken: usize,
    filled: usize,
    /// Position of the buffer's first byte in the input.
    before: u64,
    is_ended: bool,
    failure: Option<Error>,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; CHUNK],
            taken: 0,
            filled: 0,
            before: 0,
            is_ended: false,
            failure: None,
        }
    }

    /// Returns the number of bytes taken.
    pub(super) fn position(&self) -> u64 {
        self.before + self.taken as u64
    }

    /// Takes the next `N` bytes. If the input is shorter, returns the number of bytes left.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], u64> {
        let held = &self.buffer[self.taken..self.filled];
        if let Some(&array) = held.first_chunk() {
            self.taken += N;
            return Ok(array);
        }
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// Takes the next `length` bytes. If the input is shorter, returns the number of bytes left.
    pub(super) fn take(&mut self, length: u64) -> Result<&[u8], u64> {
        let length = self.buffer(length)?;
        let start = self.taken;
        self.taken += length;
        Ok(&self.buffer[start..self.taken])
    }

    /// Skips the next `length` bytes. If the input is shorter, returns the number of bytes left.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), u64> {
        let mut left = length;
        loop {
            let held = (self.filled - self.taken) as u64;
            let step = left.min(held);
            self.taken += step as usize;
            left -= step;
            if left == 0 {
                return Ok(());
            }
            if self.is_ended {
                return Err(length - left);
            }
            self.fill();
        }
    }

    /// Checks that at least `length` bytes follow. If `length` exceeds the buffer, checks only as
    /// many bytes as the buffer holds. If the input ends before, returns the number of bytes left.
    pub(super) fn look_ahead(&mut self, length: u64) -> Result<(), u64> {
        let held = |input: &Self| (input.filled - input.taken) as u64;
        while held(self) < length.min(CHUNK as u64) && !self.is_ended {
            self.fill();
        }
        if self.is_ended && held(self) < length { Err(held(self)) } else { Ok(()) }
    }

    /// Returns the next `most` bytes without taking them, or fewer bytes at the end.
    pub(super) fn peek(&mut self, most: usize) -> &[u8] {
        let held = self.buffer(most as u64).unwrap_or(self.filled - self.taken);
        &self.buffer[self.taken..][..held]
    }

    /// Returns the source, with the error of a failed read. If `to_its_end` is set, reads the rest
    /// first, so that the source can check all its bytes.
    pub(super) fn finish(mut self, to_its_end: bool) -> (R, Option<Error>) {
        while to_its_end && !self.is_ended {
            self.taken = self.filled;
            self.fill();
        }
        (self.source, self.failure)
    }

    /// Reads until the buffer holds the next `length` bytes. If the source ends earlier, returns
    /// the number of buffered bytes as the error, and allocates no more.
    fn buffer(&mut self, length: u64) -> Result<usize, u64> {
        loop {
            let held = self.filled - self.taken;
            match usize::try_from(length) {
                Ok(length) if length <= held => return Ok(length),
                _ if self.is_ended => return Err(held as u64),
                _ => self.fill(),
            }
        }
    }

    /// Reads more bytes, and appends them to the bytes that are not yet taken.
    #[cold]
    fn fill(&mut self) {
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.before += self.taken as u64;
        self.filled -= self.taken;
        self.taken = 0;
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        loop {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.is_ended = true,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.failure = Some(read_error(error));
                    self.is_ended = true;
                }
            }
            return;
        }
    }
}
