//! Events.

use crate::state::capture::Captured;
use crate::state::clock::Clock;
use crate::state::stream::OpRef;

pub(crate) struct Event {
    pub(crate) context: u32,
    pub(crate) flags: u32,
    /// The last record, or `None` while there was none.
    pub(crate) recorded: Option<Record>,
    /// The point of a capture that it marks instead.
    pub(crate) captured: Option<Captured>,
}

pub(crate) struct Record {
    pub(crate) op: OpRef,
    /// When the stream got past it, virtual nanoseconds.
    pub(crate) time: Option<u64>,
    /// Clock of all that happened before it, for the checks.
    pub(crate) clock: Option<Box<Clock>>,
}
