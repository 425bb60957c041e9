//! A block of a segment.

use super::sizes::NONE;

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) stream: u64,
    /// Neighbours in the segment.
    pub(super) previous: u32,
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
    /// Freed by the program, and still in use by other streams.
    Pending,
    Free,
    /// Addresses of a growing segment without memory.
    Unmapped,
    /// Unused number.
    Spare,
}

impl Block {
    pub(super) fn is_split(&self) -> bool {
        self.previous != NONE || self.next != NONE
    }
}
