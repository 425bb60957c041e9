//! The memory that a kernel works on, and the chunks in which it goes through it.

/// The memory that a kernel works on.
pub trait Memory {
    /// Why bytes cannot be had.
    type Error;

    /// Reads the bytes from an address on.
    ///
    /// # Errors
    ///
    /// Where some of them cannot be read.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes the bytes from an address on.
    ///
    /// # Errors
    ///
    /// Where some of them cannot be written.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Self::Error>;
}

/// How many elements are worked on at a time.
pub(super) const CHUNK: usize = 4096;

/// An argument; 0 for one that was left out.
pub(super) fn word(words: &[u64], index: usize) -> u64 {
    words.get(index).copied().unwrap_or(0)
}

/// A count in chunks, as the first element's place and how many.
pub(super) fn chunks(count: u64) -> impl Iterator<Item = (u64, usize)> {
    let chunk = CHUNK as u64;
    (0..count.div_ceil(chunk)).map(move |i| (i * chunk, chunk.min(count - i * chunk) as usize))
}
