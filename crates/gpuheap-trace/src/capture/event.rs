//! Events of a capture.

use crate::model::MemoryKind;

/// Validated event of a capture.
#[derive(Clone, Copy)]
pub(super) enum Action {
    Allocate {
        kind: MemoryKind,
        device: u32,
        address: u64,
        bytes: u64,
        stack: u32,
    },
    Free {
        space: u32,
        address: u64,
        /// Device and bytes of the freed block.
        freed: Option<(u32, u64)>,
    },
    Fail {
        kind: MemoryKind,
        device: u32,
        bytes: u64,
        stack: u32,
    },
    Map {
        address: u64,
        bytes: u64,
        handle: u64,
    },
    Unmap {
        address: u64,
        bytes: u64,
    },
    /// Pairs of an allocation and its free that the recorder only counted.
    Folded {
        kind: MemoryKind,
        device: u32,
        stack: u32,
        count: u64,
        bytes: u64,
        largest: u64,
    },
    /// A failed free. The trace has no event for it.
    Nothing,
}

/// Event with its time, thread, stream and place in the file.
pub(super) struct Timed {
    pub(super) time_ns: u64,
    pub(super) thread: u32,
    pub(super) stream: u64,
    pub(super) offset: u64,
    pub(super) action: Action,
}
