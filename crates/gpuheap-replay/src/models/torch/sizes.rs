//! Sizes that are equal in all releases of PyTorch, and numbers that no block or segment has.

/// Smallest block, bytes. Sizes are multiples of it.
pub(super) const MIN_BLOCK: u64 = 512;
/// Largest request that the pool of small blocks serves, bytes.
pub(super) const SMALL: u64 = 1 << 20;
/// Segment of small blocks, bytes.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// Largest request that is tried, bytes: 1 EiB.
pub(super) const LARGEST_REQUEST: u64 = 1 << 60;

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// Segment of a block that does not grow.
pub(super) const FIXED: u32 = u32::MAX;
