//! A block of a segment.

use super::sizes::NONE;

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) stream: u64,
    /// The neighbours in the segment.
    pub(super) previous: u32,
    pub(super) next: u32,
    pub(super) pool: u32,
    /// The segment that it belongs to, if that grows in place.
    pub(super) growing: u32,
    pub(super) generation: u32,
    /// Index in the list of pending blocks.
    pub(super) pending: u32,
    /// Searches of the pool until the block became free.
    pub(super) searches_before: u64,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Allocated,
    /// Freed by the program, but other streams still use it.
    Pending,
    Free,
    /// Addresses of a growing segment that have no memory.
    Unmapped,
    /// A number that no block has.
    Spare,
}

impl Block {
    pub(super) fn is_split(&self) -> bool {
        self.previous != NONE || self.next != NONE
    }
}
