//! Plans: operations on arrays become launches. Axes are joined, work is split so that 32 bits
//! count a kernel's elements, and the flat way is chosen if it applies.

mod axes;
mod copy;
mod elementwise;
mod group;
mod per_thread;
mod reduce;
mod rows;

pub(crate) use axes::{AXIS_WORDS, Axis, FIRST_AXIS, MOST_AXES};
pub use copy::copy;
pub use elementwise::{Operand, arithmetic, cast, comparison, unary};
pub(crate) use group::SHARED_BYTES;
pub use group::group_sum;
pub(crate) use per_thread::{STRIDED_EACH, VECTOR, flat_each};
pub use reduce::{partials, reduce};
pub(crate) use rows::for_each_row;

/// Threads of a block of every kernel.
pub const BLOCK: u32 = 256;
/// Bounds the blocks of kernels whose threads loop over elements. So many blocks fill every device
/// many times over, so the last blocks to end do not matter.
const MOST_BLOCKS: u64 = 1 << 15;

/// Returns the blocks for the work of `threads` threads, and the threads of a block.
fn grid(threads: u64) -> (u32, u32) {
    (threads.div_ceil(u64::from(BLOCK)).clamp(1, MOST_BLOCKS) as u32, BLOCK)
}
