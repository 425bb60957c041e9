//! Work of a thread and of a block, by which launches are planned and PTX is written.

use crate::Type;

/// Threads of a block of every kernel.
pub const BLOCK: u32 = 256;
/// Bounds the blocks of kernels whose threads loop over elements. So many blocks fill every device
/// many times over, and the last blocks to end do not matter.
const MOST_BLOCKS: u64 = 1 << 15;

/// Elements that a thread of a strided kernel takes at a time, a block apart. All their loads are
/// issued before the first is waited for.
pub(crate) const STRIDED_EACH: u64 = 4;
/// Bytes that a lane of a reduction takes at a time. A thread loads them by one instruction.
pub(crate) const VECTOR: usize = 16;
/// Bytes that a copy moves at a time: as many as alignment and length allow.
pub(crate) const UNITS: [usize; 5] = [1, 2, 4, 8, 16];
/// Bounds the sums that a block keeps in its own memory before it adds them to the result, bytes.
pub(crate) const SHARED_BYTES: usize = 32 << 10;

/// Returns the elements that a thread of a flat kernel takes at a time: 16 bytes of the wider side,
/// and at least 4 bytes of the narrower one.
pub(crate) fn flat_each(input: Type, output: Type) -> u64 {
    let (small, large) = (input.size().min(output.size()), input.size().max(output.size()));
    (16 / large).max(4 / small) as u64
}

/// Returns the blocks for the work of `threads` threads, and the threads of a block.
pub(crate) fn grid(threads: u64) -> (u32, u32) {
    (threads.div_ceil(u64::from(BLOCK)).clamp(1, MOST_BLOCKS) as u32, BLOCK)
}
