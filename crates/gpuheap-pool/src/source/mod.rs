//! Sources of a heap's memory, and of the fences that order its streams.
//!
//! A [`Policy`](crate::Policy) manages blocks. All driver calls go through the two traits here, so
//! a policy can be tested without a driver.

mod pages;

use std::fmt;

pub use pages::{Chunk, Pages};

use crate::stream::StreamRef;

/// Memory taken from the driver, as one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Size in bytes, as requested from the driver.
    pub bytes: u64,
}

/// A fence: a recorded point of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub u32);

/// Result of a call of a [`MemorySource`].
pub type SourceResult<T = ()> = Result<T, SourceError>;

/// Failure of a memory source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The device is out of memory.
    OutOfMemory,
    /// A total limit of several heaps was reached between the check of the limits and the request.
    Limited,
    /// The stream takes no work now, so it cannot wait and no stream can wait for it. It is
    /// capturing a graph, or was retired. Or it is a transient stream (one that may end
    /// unannounced) and no fence could be recorded while its handle was valid.
    StreamUnusable,
    /// The stream is capturing a graph, and the call is not allowed in a capture.
    Capturing,
    /// The context is no longer usable.
    Gone(Gone),
    /// The host is accessing unified memory. The device refuses the call until the access ends.
    HostBorrowed,
    /// Any other failure of the driver.
    Driver(DriverFailure),
}

/// A driver call that failed with an error that has no other variant in [`SourceError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverFailure {
    /// Symbol name of the driver function.
    pub function: &'static str,
    /// The driver's error code.
    pub code: i32,
}

/// Reason for which a context is no longer usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The context was opened before this process was forked off.
    Forked,
    /// `Device::reset` ended the context.
    Reset,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gone::Forked => {
                "this process was forked off after the device was opened, and CUDA does not survive \
                 a fork: the driver's state and its threads stay in the parent; fork before opening \
                 a device, or start the child by exec (as std::process::Command does)"
            }
            Gone::Reset => {
                "the device was reset since this was made, and all that was in its context went with \
                 it; make it again on the device that Device::reset returned"
            }
        })
    }
}

/// Limits of one heap on the bytes taken from the driver. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Soft limit. Cached memory above this limit is given back at the heap's next call that finds
    /// the memory out of use.
    pub soft: Option<u64>,
    /// Hard limit, never exceeded: an allocation that would exceed it is refused with an error. The
    /// pool takes at least 2 MiB at a time, or 32 MiB with `driver`. If less than that is left
    /// below the limit, the pool takes nothing more.
    pub hard: Option<u64>,
}

/// A function that waits. It is made under the heap's lock, and called without the lock.
pub type Waiter = Box<dyn FnOnce() -> SourceResult + Send>;

/// The driver, or a model of it: hands out memory, and makes streams wait for each other.
///
/// Fences (recorded points of streams) are made by [`record`](MemorySource::record) and freed by
/// [`forget`](MemorySource::forget).
pub trait MemorySource: Send {
    /// Takes `bytes` (never zero) for use on `stream`, ordered after the work enqueued there.
    fn take(&mut self, bytes: u64, stream: StreamRef) -> SourceResult<Segment>;

    /// Gives back a segment whose last use is completed.
    fn give_back(&mut self, segment: Segment) -> SourceResult;

    /// Gives back a segment in the order of `stream`. Only for sources that are
    /// [stream-ordered](MemorySource::is_stream_ordered).
    fn give_back_on(&mut self, segment: Segment, _stream: StreamRef) -> SourceResult {
        self.give_back(segment)
    }

    /// Returns `true` if taking and giving back are enqueued on a stream.
    fn is_stream_ordered(&self) -> bool {
        false
    }

    /// Returns the bytes that the driver counts for all segments taken, including the driver's
    /// rounding.
    fn reserved(&mut self) -> SourceResult<u64>;

    /// Returns the high-water mark of [`reserved`](MemorySource::reserved).
    fn reserved_peak(&mut self) -> SourceResult<u64>;

    /// Returns the maximum increase of [`reserved`](MemorySource::reserved) if `bytes` are taken.
    fn growth(&self, bytes: u64) -> u64;

    /// Returns the bytes by which [`reserved`](MemorySource::reserved) would fall if these segments
    /// were given back and the driver kept none of them.
    fn regained(&mut self, segments: &[Segment]) -> SourceResult<u64>;

    /// Returns how many of the [`regained`](MemorySource::regained) bytes the driver may keep all
    /// the same. Other memory may share a granule of the device with the segments that are given
    /// back.
    fn may_stay(&mut self, _segments: &[Segment]) -> SourceResult<u64> {
        Ok(0)
    }

    /// Gives back memory that the driver itself caches and that is out of use. Returns the bytes
    /// that the device regained.
    fn trim(&mut self) -> SourceResult<u64> {
        Ok(0)
    }

    /// Sets limits, if the driver itself enforces them. Returns `false`, with nothing changed, if a
    /// hard limit can no longer be raised.
    fn limit(&mut self, _limits: Limits) -> SourceResult<bool> {
        Ok(true)
    }

    /// Returns `true` if the hard limit could be set to `hard` bytes.
    fn allows(&self, _hard: u64) -> bool {
        true
    }

    /// Fills a block with zeros in the order of `stream`. If `stream` is `None`, fills the block
    /// immediately and waits for the fill.
    fn zero(&mut self, address: u64, bytes: u64, stream: Option<StreamRef>) -> SourceResult;

    /// Returns the number of bytes that could be taken from the source if nothing else used memory.
    fn capacity(&self) -> u64;

    /// Returns the free and the total bytes of the device, counting all processes. For pinned
    /// memory, returns the host's bytes.
    fn device_memory(&mut self) -> SourceResult<(u64, u64)>;

    /// Returns `true` if `stream` is capturing a graph. A capturing stream is neither fenced nor
    /// made to wait.
    fn is_capturing(&mut self, _stream: StreamRef) -> SourceResult<bool> {
        Ok(false)
    }

    /// Records a fence at the current point of `stream`.
    fn record(&mut self, stream: StreamRef) -> SourceResult<Fence>;

    /// Records an existing fence of `stream` again, at the current point. A stream that already
    /// waits for the fence keeps waiting for the old point. A wait of the host may end at the old
    /// or at the new point. If the call fails, the fence marks one of the two points.
    fn record_again(&mut self, fence: Fence, stream: StreamRef) -> SourceResult;

    /// Returns `true` if the stream has passed the fence.
    fn is_fence_reached(&mut self, fence: Fence) -> SourceResult<bool>;

    /// Makes `stream` wait for the fence. Does not block the host.
    fn order_after(&mut self, stream: StreamRef, fence: Fence) -> SourceResult;

    /// Blocks the host until the fence is reached.
    fn wait(&mut self, fence: Fence) -> SourceResult {
        self.waiter(fence)()
    }

    /// Returns a function that blocks the host until the fence is reached. The caller calls it
    /// without the heap's lock. If the fence is forgotten and its event is reused before the call,
    /// the wait may take longer, never shorter.
    fn waiter(&mut self, fence: Fence) -> Waiter;

    /// Frees the fence.
    fn forget(&mut self, fence: Fence);

    /// Begins a group of driver calls. The heap's context is made current only once for the group.
    /// [`end_calls`](MemorySource::end_calls) ends the group, on the same thread and before control
    /// returns to the program.
    fn begin_calls(&mut self) {}

    /// Ends the group that [`begin_calls`](MemorySource::begin_calls) began.
    fn end_calls(&mut self) {}

    /// Makes the later drop of the source leave the remaining memory allocated, because that memory
    /// may still be in use. It is freed when the context or the process ends.
    fn leave(&mut self) {}

    /// Frees all of the source's memory that a reset of the context left allocated. This includes
    /// live memory, because it is no longer usable. Does nothing if a reset leaves no such memory.
    fn after_reset(&mut self) {}

    /// Returns the interface to physical memory and addresses; `None` if this source has none.
    fn pages(&mut self) -> Option<&mut dyn Pages> {
        None
    }

    /// Gives the device with the ordinal `reader` access to all memory mapped so far. The caller
    /// has enabled peer access. Does nothing in a source without mappings.
    fn open_to(&mut self, _reader: i32) -> SourceResult {
        Ok(())
    }

    /// Returns `true` if the source allocated a segment at `address` from the driver, and has not
    /// given it back.
    fn holds(&self, _address: u64) -> bool {
        false
    }

    /// Returns the number of driver calls made so far.
    fn calls(&self) -> u64;
}

/// Granule in which the driver hands out device memory.
///
/// Measured on one H200, driver 580: allocations of up to 2 MiB share granules of 2 MiB, and larger
/// allocations are rounded up to whole granules. `cuMemGetInfo` moves in steps of 2 MiB.
pub const GRANULE: u64 = 2 << 20;

/// Rounds `bytes` up to a multiple of `to`, a power of two. Saturates at the largest multiple that
/// `u64` can hold.
#[inline]
pub fn round_up(bytes: u64, to: u64) -> u64 {
    bytes.saturating_add(to - 1) & !(to - 1)
}
