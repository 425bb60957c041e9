//! Describes memory that a store handed out. Dropping the description frees nothing.

use gpuheap_pool::{BlockRef, StreamRef};

use crate::track::TrackId;

/// A lease of memory. Its holder gives the memory back exactly once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The stream on which the memory was allocated.
    pub(crate) stream: StreamRef,
    /// The driver's id of that stream.
    pub(crate) stream_id: u64,
    /// Key of the block in the policy; `None` for zero bytes.
    pub(crate) key: Option<u32>,
    /// Address on the device; zero for zero bytes.
    pub(crate) address: u64,
    /// Size as requested, in bytes.
    pub(crate) bytes: u64,
    /// Size with the policy's rounding, in bytes.
    pub(crate) block_bytes: u64,
    /// Identifier of the allocation's record, if allocations are tracked.
    pub(crate) track: Option<TrackId>,
}

impl Lease {
    /// Makes a lease of `bytes` of a block. A lease of zero bytes has no block.
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
