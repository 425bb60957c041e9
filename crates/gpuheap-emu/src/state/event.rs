//! Events.

use crate::state::capture::Captured;
use crate::state::clock::Clock;
use crate::state::stream::OpRef;

pub(crate) struct Event {
    pub(crate) context: u32,
    pub(crate) flags: u32,
    /// Last record; `None` before the first one.
    pub(crate) recorded: Option<Record>,
    /// Point of a capture that the event marks instead.
    pub(crate) captured: Option<Captured>,
}

pub(crate) struct Record {
    pub(crate) op: OpRef,
    /// Time at which the stream passed the record, virtual nanoseconds.
    pub(crate) time: Option<u64>,
    /// Clock of all that happened before the record, for the checks.
    pub(crate) clock: Option<Box<Clock>>,
}
