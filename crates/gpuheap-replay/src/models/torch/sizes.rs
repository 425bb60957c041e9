//! Sizes that every release of PyTorch has, and numbers that no block or segment has.

/// Bytes of the smallest block; sizes are multiples of it.
pub(super) const MIN_BLOCK: u64 = 512;
/// The largest request that is served from the pool of small blocks.
pub(super) const SMALL: u64 = 1 << 20;
/// Bytes of a segment of small blocks.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests above 1 EiB are refused at once.
pub(super) const LARGEST_REQUEST: u64 = 1 << 60;

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// The segment of a block that does not grow.
pub(super) const FIXED: u32 = u32::MAX;
