//! Launches: a kernel with its arguments.

use crate::Kernel;
use crate::axes::{AXIS_WORDS, FIRST_AXIS, MOST_AXES};

/// Number of argument words of a strided kernel with [`MOST_AXES`] axes. No kernel has more.
pub(crate) const MOST_WORDS: usize = FIRST_AXIS + AXIS_WORDS * MOST_AXES;

/// One launch of a kernel, with a grid of one dimension and no dynamic shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Kernel that is launched.
    pub kernel: Kernel,
    /// Words of the kernel's only parameter.
    pub words: Words,
    /// Number of blocks, at least one.
    pub grid: u32,
    /// Number of threads in a block.
    pub block: u32,
}

/// Argument of a kernel. The kernel takes all words as one structure, passed by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Words {
    words: [u64; MOST_WORDS],
    length: usize,
}

impl Words {
    pub(crate) fn new(words: &[u64]) -> Words {
        let length = words.len().min(MOST_WORDS);
        let mut all = [0; MOST_WORDS];
        all[..length].copy_from_slice(&words[..length]);
        Words { words: all, length }
    }

    /// Returns the words in order. `cuLaunchKernel` takes the address of the first word as the
    /// kernel's only parameter.
    pub fn as_slice(&self) -> &[u64] {
        &self.words[..self.length]
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}
