//! Amounts of work that one thread or block does. Both plans and PTX depend on these amounts.

use crate::Type;

/// Number of threads in a block, for every kernel.
pub const BLOCK: u32 = 256;
/// Maximum number of blocks of a kernel whose threads loop over elements. This number fills every
/// device many times over, so little time is lost while only the last blocks run.
const MOST_BLOCKS: u64 = 1 << 15;

/// Number of elements that a thread of a strided kernel handles at a time. The elements are
/// [`BLOCK`] apart. The thread issues all loads before it waits for the first.
pub(crate) const STRIDED_EACH: u64 = 4;
/// Number of bytes that a thread of a reduction loads with one instruction.
pub(crate) const VECTOR: usize = 16;
/// Numbers of bytes that a copy can move at a time. A copy uses the largest number that alignment
/// and length allow.
pub(crate) const UNITS: [usize; 5] = [1, 2, 4, 8, 16];
/// Maximum size, in bytes, of the aggregates that a block keeps in shared memory before it adds
/// them to the result.
pub(crate) const SHARED_BYTES: usize = 32 << 10;

/// Returns the number of elements that a thread of a flat kernel handles at a time. The elements
/// take at least 16 bytes in the wider type, and at least 4 bytes in the narrower type.
pub(crate) fn flat_each(input: Type, output: Type) -> u64 {
    let (small, large) = (input.size().min(output.size()), input.size().max(output.size()));
    (16 / large).max(4 / small) as u64
}

/// Returns the number of blocks that run `threads` threads, limited to [`MOST_BLOCKS`], and the
/// number of threads in a block.
pub(crate) fn grid(threads: u64) -> (u32, u32) {
    (threads.div_ceil(u64::from(BLOCK)).clamp(1, MOST_BLOCKS) as u32, BLOCK)
}
