//! Elements that a thread takes at a time.

use crate::Type;

/// Returns the elements that a thread of a flat kernel takes at a time: 16 bytes of the wider side,
/// and at least 4 bytes of the narrower one.
pub(crate) fn flat_each(input: Type, output: Type) -> u64 {
    let (small, large) = (input.size().min(output.size()), input.size().max(output.size()));
    (16 / large).max(4 / small) as u64
}

/// Elements that a thread of a strided kernel takes at a time, a block apart. All their loads are
/// issued before the first is waited for.
pub(crate) const STRIDED_EACH: u64 = 4;

/// Bytes that a lane of a reduction takes at a time, which a thread can load at once.
pub(crate) const VECTOR: usize = 16;
