//! Memory that a store handed out, as plain data.

use gpuheap_pool::{BlockRef, StreamRef};

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

impl Lease {
    /// Returns `bytes` of a block; of no block for zero bytes.
    #[inline]
    pub(crate) fn new(
        bytes: u64,
        stream: StreamRef,
        stream_id: u64,
        block: Option<BlockRef>,
    ) -> Lease {
        let (address, block_bytes) = block.map_or((0, 0), |block| (block.address, block.bytes));
        let key = block.map(|block| block.key);
        Lease { stream, stream_id, key, address, bytes, block_bytes, track: None }
    }
}
