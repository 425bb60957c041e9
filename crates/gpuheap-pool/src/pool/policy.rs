//! The trait of all policies, and the types of its calls.

use super::environment::{Environment, Headroom, Shortage};
use crate::order::Order;
use crate::source::{Segment, SourceResult};
use crate::stats::RunningStats;
use crate::stream::Stuck;
use crate::stream::{StreamRef, Ticket};

/// Block that a policy handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// Key of the block within its policy.
    pub key: u32,
    /// Device address.
    pub address: u64,
    /// Size in bytes, rounding included.
    pub bytes: u64,
}

/// Request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Size in bytes, not zero.
    pub bytes: u64,
    /// Stream on which the block will be used.
    pub stream: StreamRef,
}

/// Block that serves a request, or the reason why the request fails.
pub type Granted = Result<BlockRef, Shortage>;

/// Block that serves a request. `None` if no cached block serves it and the policy may not take
/// memory.
pub type Served = Result<Option<BlockRef>, Shortage>;

/// Unused memory that a policy holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Free bytes, including pending bytes.
    pub bytes: u64,
    /// Pending bytes. They are freed, but the freeing stream is not known to have reached the free.
    pub pending: u64,
    /// Largest free block at contiguous addresses, in bytes.
    pub largest: u64,
    /// Free bytes that could be mapped together for one request. Zero for policies that map
    /// nothing.
    pub stitchable: u64,
    /// Free bytes that the requesting stream may use only after a wait, because another stream
    /// freed them.
    pub on_other_streams: u64,
}

impl Cached {
    /// Returns the size of the largest request that the cached memory could serve.
    pub fn largest_request(&self) -> u64 {
        self.largest.max(self.stitchable)
    }

    /// Counts one free block.
    pub(super) fn add(
        &mut self,
        bytes: u64,
        ticket: Ticket,
        stream: Option<StreamRef>,
        order: &Order,
    ) {
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
        if !order.is_fence_reached(ticket) {
            self.pending += bytes;
            if stream.is_some_and(|stream| !order.is_usable_on(ticket, stream)) {
                self.on_other_streams += bytes;
            }
        }
    }
}

/// Memory that live blocks hold: the pieces (segments or chunks) with at least one live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of the pieces with a live block. No such piece can be given back.
    pub bytes: u64,
    /// Free bytes in pieces (segments or chunks) with a live block. Pending bytes are included.
    pub free: u64,
    /// Number of pieces with a live block.
    pub pieces: u64,
}

impl Held {
    /// Counts a piece of `bytes`, of which `free` are free.
    pub(super) fn add(&mut self, bytes: u64, free: u64) {
        self.bytes += bytes;
        self.free += free;
        self.pieces += 1;
    }

    /// Counts the segments of a pool that never splits a segment: each segment is one live block.
    pub(super) fn whole<'a>(live: impl Iterator<Item = &'a Segment>) -> Held {
        let mut held = Held::default();
        live.for_each(|segment| held.add(segment.bytes, 0));
        held
    }
}

/// Basis of a forecast.
#[derive(Clone, Copy)]
pub struct Outlook<'a> {
    /// Statistics of the heap.
    pub stats: &'a RunningStats,
    /// Memory that the heap could still reserve.
    pub headroom: Headroom,
    /// Stuck frees: no wait can complete them now.
    pub stuck: &'a Stuck,
}

/// Forecast of a policy for one request, as if all but [stuck](Stuck) frees were completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Amounts that the policy would try to take from the driver, one after the other until the
    /// driver grants one. They depend on the memory that is cached now. If the driver refuses all,
    /// the policy gives back cached memory for the request.
    pub takings: Vec<Taking>,
    /// `true` if cached memory can serve the request as one block.
    pub is_cached: bool,
    /// Least bytes that the policy would take from the driver if cached memory does not suffice.
    pub take: u64,
    /// Bytes that the policy would take if the request used no cached piece. Missing memory is
    /// computed from this figure, because a reclaim gives back cached pieces too.
    pub take_whole: u64,
    /// Segments without a live block. They could be given back to the driver.
    pub spare: Vec<Segment>,
    /// Bytes of the largest free piece that is left if all segments in `spare` are given back.
    pub largest_left: u64,
    /// Bytes that are free but [stuck](Stuck). The other figures count them as in use.
    pub stuck: u64,
    /// `true` if a pool of the driver has received frees that are stuck: no wait can complete them
    /// now. The driver does not report the bytes of these frees.
    pub driver_is_stuck: bool,
}

/// One amount of memory that a policy would try to take from the driver for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    /// Bytes to take from the driver; zero if cached memory serves the request.
    pub bytes: u64,
    /// Least bytes that the policy gives back to the driver before it takes `bytes`.
    pub after: u64,
}

impl Taking {
    /// Returns a `Taking` of `bytes` for which the policy need not give anything back first.
    pub fn new(bytes: u64) -> Taking {
        Taking { bytes, after: 0 }
    }
}

/// A policy decides how free blocks are kept and found. Calls for one policy never overlap.
pub trait Policy: Send {
    /// Allocates a block of at least the requested bytes for use on the request's stream, ordered
    /// after the work enqueued there. The block comes from the cache, else from the driver.
    ///
    /// If the call fails, memory that it took from the driver stays cached and counted.
    fn allocate(&mut self, request: Request, env: &mut Environment<'_>) -> Granted;

    /// Allocates a block only from the cache; `None` if no cached block fits. Called only for
    /// policies with blocks that [thread caches](crate::pool::CacheRules) may keep.
    fn reuse(&mut self, _request: Request, _env: &mut Environment<'_>) -> Served {
        Ok(None)
    }

    /// Frees a block whose last use is on `stream`.
    fn free(&mut self, key: u32, stream: StreamRef, env: &mut Environment<'_>) -> SourceResult;

    /// Gives cached memory that is known to be out of use back to the driver. Stops once `target`
    /// bytes are given back or no such memory is left. Gives back large segments before small ones,
    /// and no more than necessary. Returns the bytes given back.
    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64>;

    /// Gives back at least `target` bytes of the memory freed since the last call, if the policy
    /// noted enough of these frees. Returns the bytes given back. A heap with a soft limit calls
    /// this after every free.
    fn release_freed(&mut self, target: u64, env: &mut Environment<'_>) -> SourceResult<u64> {
        self.release(target, env)
    }

    /// Returns `true` if [`release_freed`](Policy::release_freed) may find memory to give back.
    fn has_freed(&self) -> bool {
        true
    }

    /// Gives the segment that contains `address` back to the driver, if no block of the segment is
    /// in use. Returns the bytes given back.
    fn release_at(&mut self, address: u64, env: &mut Environment<'_>) -> SourceResult<u64>;

    /// Forecasts a request of `bytes` (never zero), as if all but [stuck](Stuck) frees were
    /// completed.
    fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast;

    /// Returns the cached memory. [`Cached::on_other_streams`] counts the bytes for which `stream`
    /// would have to wait.
    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached;

    /// Returns the memory that live blocks hold.
    fn held(&self) -> Held;

    /// Returns every live block, for tests of overlap.
    #[cfg(any(test, feature = "testing"))]
    fn live(&self) -> Vec<Segment>;
}
