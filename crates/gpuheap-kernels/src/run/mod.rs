//! Runs kernels in Rust, with the operations of the PTX. If the order of operations affects the
//! result, the order is the same as in the PTX.

mod element;
mod elementwise;
mod group;
mod memory;
mod reduce;
mod strided;

use crate::Kernel;
use crate::kernel::Kind;

use element::{Elements, with_type};
use memory::{AnyMemory, KeepsError, Refused};

pub use memory::Memory;

impl Kernel {
    /// Runs a launch of the kernel with the arguments `words`. For every grid, the result has the
    /// same bits as the result of the PTX, except for NaN and for sums of floats by key.
    ///
    /// # Errors
    ///
    /// The first error that the memory returned. Earlier writes stay.
    pub fn run<M: Memory>(&self, words: &[u64], memory: &mut M) -> Result<(), M::Error> {
        let mut memory = KeepsError { memory, error: None };
        let ran = self.run_on(words, &mut memory);
        match memory.error {
            Some(error) if ran.is_err() => Err(error),
            _ => Ok(()),
        }
    }

    fn run_on(&self, words: &[u64], memory: &mut AnyMemory<'_>) -> Result<(), Refused> {
        match self.0 {
            Kind::Elementwise { path, does, of, left, right } => {
                elementwise::elementwise(words, path, does, of, [left, right], memory)
            }
            Kind::Cast { from, to } => elementwise::cast(words, from, to, memory),
            Kind::Copy { unit } => strided::copy(words, unit, memory),
            Kind::Rows { op, of } => {
                with_type!(op.output(of), A => {
                    reduce::rows::<A>(words, op, Elements::convert_from(of), memory)
                })
            }
            Kind::Columns { op, of } => {
                with_type!(op.output(of), A => {
                    reduce::columns::<A>(words, op, Elements::convert_from(of), memory)
                })
            }
            Kind::Take { unit } => strided::take(words, unit, memory),
            Kind::Groups { fold, of, key, .. } => group::group(words, fold, of, key, memory),
        }
    }
}
