//! Memory that a store handed out, as plain data.

use gpuheap_pool::StreamRef;

use crate::track::TrackId;

/// Memory that was handed out, as plain data. Its holder gives it back exactly once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The stream on which it was allocated.
    pub(crate) stream: StreamRef,
    /// The driver's id of that stream.
    pub(crate) stream_id: u64,
    /// The policy's name for it; `None` for zero bytes.
    pub(crate) key: Option<u32>,
    /// Where the device sees it; zero for zero bytes.
    pub(crate) address: u64,
    /// Its size as requested.
    pub(crate) bytes: u64,
    /// Its size with the policy's rounding.
    pub(crate) block_bytes: u64,
    /// Its record, where allocations are tracked.
    pub(crate) track: Option<TrackId>,
}
