//! Memory that a kernel works on, and the chunks in which the kernel goes through it.

/// Memory that a kernel works on.
pub trait Memory {
    /// Error of a read or write.
    type Error;

    /// Reads the bytes from `address` on into `into`.
    ///
    /// # Errors
    ///
    /// If some of the bytes cannot be read.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes `from` to the bytes from `address` on.
    ///
    /// # Errors
    ///
    /// If some of the bytes cannot be written.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Self::Error>;
}

/// Elements worked on at a time.
pub(super) const CHUNK: usize = 4096;

/// Returns an argument; 0 for a missing one.
pub(super) fn word(words: &[u64], index: usize) -> u64 {
    words.get(index).copied().unwrap_or(0)
}

/// Splits a count into chunks, as the first element's index and the number of elements.
pub(super) fn chunks(count: u64) -> impl Iterator<Item = (u64, usize)> {
    let chunk = CHUNK as u64;
    (0..count.div_ceil(chunk)).map(move |i| (i * chunk, chunk.min(count - i * chunk) as usize))
}
