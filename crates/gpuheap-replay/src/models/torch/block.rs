//! Defines blocks of segments, and requests for blocks.

/// Size of the smallest block, in bytes. All block sizes are multiples of this size.
pub(super) const MIN_BLOCK: u64 = 512;
/// Largest request that the pool of small blocks serves, in bytes.
pub(super) const SMALL: u64 = 1 << 20;
/// Size of a segment for small blocks, in bytes.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// Largest request that is tried, bytes: 1 EiB.
pub(super) const LARGEST_REQUEST: u64 = 1 << 60;

/// Number that stands for no block.
pub(super) const NONE: u32 = u32::MAX;
/// Value of `Block::growing` if the block's segment does not grow.
pub(super) const FIXED: u32 = u32::MAX;

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) stream: u64,
    /// Index of the block before this block in the segment; `NONE` for the first block.
    pub(super) previous: u32,
    /// Index of the block after this block in the segment; `NONE` for the last block.
    pub(super) next: u32,
    pub(super) pool: u32,
    /// The growing segment that the block belongs to.
    pub(super) growing: u32,
    pub(super) generation: u32,
    /// Index in the list of pending blocks.
    pub(super) pending: u32,
    /// Number of searches of the pool before the block became free.
    pub(super) searches_before: u64,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Allocated,
    /// Freed by the program, but still used by other streams.
    Pending,
    Free,
    /// Part of a growing segment's address range that has no mapped memory.
    Unmapped,
    /// Unused entry of the list of blocks.
    Spare,
}

impl Block {
    pub(super) fn is_split(&self) -> bool {
        self.previous != NONE || self.next != NONE
    }
}

/// Address range of a segment that grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growing {
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Bytes that are mapped at a time.
    pub(super) piece: u64,
}

/// Memory that a request needs.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) bytes: u64,
    /// Bytes to take from the driver if no free block is large enough.
    pub(super) segment_bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u64,
}
