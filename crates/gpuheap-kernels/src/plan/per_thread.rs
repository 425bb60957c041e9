//! Elements that a thread takes at a time.

use crate::Type;

/// Elements that a thread of a flat kernel takes at a time: the wider side has 16 bytes of them,
/// and the narrower one at least 4.
pub(crate) fn flat_each(input: Type, output: Type) -> u64 {
    let (small, large) = (input.size().min(output.size()), input.size().max(output.size()));
    (16 / large).max(4 / small) as u64
}

/// Elements that a thread of a strided kernel takes at a time, a block apart, so that their loads are all on the way
/// before the first is waited for.
pub(crate) const STRIDED_EACH: u64 = 4;

/// Bytes that a lane of a reduction takes at a time, so that a thread can load them at once.
pub(crate) const VECTOR: usize = 16;
