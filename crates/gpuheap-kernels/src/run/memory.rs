//! Memory that a kernel's Rust code reads and writes, one chunk of elements at a time.

/// Memory that a kernel works on.
pub trait Memory {
    /// Error of a read or write.
    type Error;

    /// Reads bytes into `into`, starting at `address`.
    ///
    /// # Errors
    ///
    /// Some of the bytes cannot be read.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes `from` to memory, starting at `address`.
    ///
    /// # Errors
    ///
    /// Some of the bytes cannot be written.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Self::Error>;
}

/// Memory of any type. It avoids compiling each kernel again for each type of memory.
pub(super) type AnyMemory<'m> = dyn Memory<Error = Refused> + 'm;

/// A read or write that failed. [`KeepsError`] contains the error.
pub(super) struct Refused;

pub(super) struct KeepsError<'m, M: Memory> {
    pub(super) memory: &'m mut M,
    pub(super) error: Option<M::Error>,
}

impl<M: Memory> KeepsError<'_, M> {
    fn store_error(&mut self, done: Result<(), M::Error>) -> Result<(), Refused> {
        done.map_err(|error| {
            self.error.get_or_insert(error);
            Refused
        })
    }
}

impl<M: Memory> Memory for KeepsError<'_, M> {
    type Error = Refused;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Refused> {
        let done = self.memory.read(address, into);
        self.store_error(done)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused> {
        let done = self.memory.write(address, from);
        self.store_error(done)
    }
}

/// Number of elements that are processed at a time.
pub(super) const CHUNK: usize = 4096;

/// Returns an argument; 0 for a missing argument.
pub(super) fn word(words: &[u64], index: usize) -> u64 {
    words.get(index).copied().unwrap_or(0)
}

/// Splits a count into chunks. Each item is the index of the chunk's first element and the chunk's
/// number of elements.
pub(super) fn chunks(count: u64) -> impl Iterator<Item = (u64, usize)> {
    let chunk = CHUNK as u64;
    (0..count.div_ceil(chunk)).map(move |i| (i * chunk, chunk.min(count - i * chunk) as usize))
}
