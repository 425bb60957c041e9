//! The kernels in Rust: the same operations in the same order, where the order matters.

mod element;
mod elementwise;
mod group;
mod reduce;
mod strided;

pub(crate) use strided::for_each_row;

use crate::Kernel;
use crate::access::{element_axes, vector};
use crate::kernel::{Kind, Path};

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
const CHUNK: usize = 4096;

impl Kernel {
    /// Does what a launch of the kernel with these words does, to the last bit, whatever its grid.
    ///
    /// # Errors
    ///
    /// The memory's first; what was done before stays.
    pub fn run<M: Memory>(&self, words: &[u64], memory: &mut M) -> Result<(), M::Error> {
        match self.0 {
            Kind::Elementwise { path: Path::Flat, does, of, left, right } => {
                elementwise::flat(words, does, of, [left, right], memory)
            }
            Kind::Elementwise { path, does, of, left, right } => {
                let axes = element_axes(words, vector(path, of, does.output(of)));
                elementwise::strided(words, &axes, does, of, [left, right], memory)
            }
            Kind::Cast { from, to } => elementwise::cast(words, from, to, memory),
            Kind::Copy { unit } => strided::copy(words, unit, memory),
            Kind::Rows { op, of } => reduce::rows(words, op, of, memory),
            Kind::Columns { op, of } => reduce::columns(words, op, of, memory),
            Kind::Groups { of, key, .. } => group::group(words, of, key, memory),
        }
    }
}

/// An argument; 0 for one that was left out.
fn word(words: &[u64], index: usize) -> u64 {
    words.get(index).copied().unwrap_or(0)
}
