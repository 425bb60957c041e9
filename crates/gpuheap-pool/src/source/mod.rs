//! Where a heap's memory comes from, and how streams are put in order.
//!
//! A [`Policy`](crate::Policy) decides over blocks; everything that reaches the driver goes through
//! the two traits here, so that a policy can be tested with no driver at all.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod model;
mod pages;

use std::fmt;

pub use pages::{Chunk, Pages};

use crate::limits::Limits;
use crate::stream::StreamRef;

/// Memory taken from the driver: one allocation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where the device sees it.
    pub address: u64,
    /// Its size as asked of the driver.
    pub bytes: u64,
}

/// A point of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub u32);

/// Why a source could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The device is out of memory.
    OutOfMemory,
    /// A stream that can be given no work, so that it can neither be waited for nor be made to wait: a
    /// thread's own default stream, or one that may have ended unannounced, whose fence could not be
    /// recorded when it could be named; one that is capturing a graph; or one that was retired.
    StreamUnusable,
    /// The stream is capturing a graph, which does not allow this.
    Capturing,
    /// The context cannot be used any more.
    Gone(Gone),
    /// The host is in unified memory, which the device cannot stand.
    HostBorrowed,
    /// Any other failure of the driver.
    Driver(DriverFailure),
}

/// Call of the driver that failed in a way that a policy knows nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverFailure {
    /// The function, by its symbol.
    pub function: &'static str,
    /// The driver's code for the failure.
    pub code: i32,
}

/// Why a context can be used no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It was opened before this process was forked off.
    Forked,
    /// `Device::reset` ended it.
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

/// A wait that can be carried out later.
pub type Waiter = Box<dyn FnOnce() -> Result<(), SourceError> + Send>;

/// What gives memory, takes it back, and orders streams.
///
/// Fences are made by [`record`](MemorySource::record) and given back by
/// [`forget`](MemorySource::forget).
pub trait MemorySource: Send {
    /// Takes `bytes`, which is not zero, for use on `stream` from this point on.
    fn take(&mut self, bytes: u64, stream: StreamRef) -> Result<Segment, SourceError>;

    /// Gives a segment back whose last use is over.
    fn give_back(&mut self, segment: Segment) -> Result<(), SourceError>;

    /// Gives a segment back at this point of `stream`. Only where taking and giving back
    /// [are work of a stream](MemorySource::is_stream_ordered).
    fn give_back_on(&mut self, segment: Segment, stream: StreamRef) -> Result<(), SourceError>;

    /// Returns `true` if taking and giving back are work of a stream.
    fn is_stream_ordered(&self) -> bool;

    /// Bytes that the driver counts for what is taken, its own rounding included.
    fn reserved(&mut self) -> Result<u64, SourceError>;

    /// Their high-water mark.
    fn reserved_peak(&mut self) -> Result<u64, SourceError>;

    /// The most that taking `bytes` can add to [`reserved`](MemorySource::reserved).
    fn growth(&self, bytes: u64) -> u64;

    /// By how much [`reserved`](MemorySource::reserved) would fall if these segments of it were
    /// given back and nothing were kept.
    fn regained(&mut self, segments: &[Segment]) -> Result<u64, SourceError>;

    /// Of the bytes that [`regained`](MemorySource::regained) gives for the same segments, those that
    /// the driver may keep, because other memory may lie in the same piece of the device.
    fn may_stay(&mut self, _segments: &[Segment]) -> Result<u64, SourceError> {
        Ok(0)
    }

    /// Gives back what the driver itself keeps and is out of use; the bytes that it regained.
    fn trim(&mut self) -> Result<u64, SourceError>;

    /// Takes other limits, where the driver itself holds to them. False, and nothing changed, where a
    /// hard limit cannot be raised any more.
    fn limit(&mut self, limits: Limits) -> Result<bool, SourceError>;

    /// Returns `true` if the hard limit could be set to `hard` bytes.
    fn allows(&self, _hard: u64) -> bool {
        true
    }

    /// Fills a block with zeros at this point of `stream`; with none, at once, and waits for it.
    fn zero(
        &mut self,
        address: u64,
        bytes: u64,
        stream: Option<StreamRef>,
    ) -> Result<(), SourceError>;

    /// The most that could ever be taken, bytes.
    fn capacity(&self) -> u64;

    /// Free and total bytes of the device, all processes counted; of the host for pinned memory.
    fn device_memory(&mut self) -> Result<(u64, u64), SourceError>;

    /// Returns `true` if `stream` is capturing a graph: then it is neither fenced nor made to wait.
    fn is_capturing(&mut self, _stream: StreamRef) -> Result<bool, SourceError> {
        Ok(false)
    }

    /// Marks this point of `stream`.
    fn record(&mut self, stream: StreamRef) -> Result<Fence, SourceError>;

    /// Marks this point of `stream` with a fence that marked an earlier one. Whoever was made to wait
    /// for it waits for the earlier one, the host for either. Where this fails, the fence marks the
    /// earlier point or this one.
    fn record_again(&mut self, fence: Fence, stream: StreamRef) -> Result<(), SourceError>;

    /// Returns `true` if the stream has got past the fence.
    fn is_fence_reached(&mut self, fence: Fence) -> Result<bool, SourceError>;

    /// Makes `stream` wait for the fence; the host does not.
    fn order_after(&mut self, stream: StreamRef, fence: Fence) -> Result<(), SourceError>;

    /// Blocks the host until the fence is reached.
    fn wait(&mut self, fence: Fence) -> Result<(), SourceError> {
        self.waiter(fence)()
    }

    /// What blocks the host until the fence is reached, to be called without the heap's lock. A
    /// fence that is forgotten and used again in between makes it wait longer, never shorter.
    fn waiter(&mut self, fence: Fence) -> Waiter;

    /// The fence is not needed any more.
    fn forget(&mut self, fence: Fence);

    /// Has the calls up to [`let_go`](MemorySource::let_go) share the way into the driver and out of it.
    /// Both are to be called on one thread, and the program not in between.
    fn hold(&mut self) {}

    /// Ends what [`hold`](MemorySource::hold) began.
    fn let_go(&mut self) {}

    /// Nobody could find out whether what is still taken is out of use: it stays as it is when this
    /// goes, and is the context's or the process's.
    fn leave(&mut self) {}

    /// The context was reset. What did not go with it goes back, live or not: nobody can use it.
    fn after_reset(&mut self) {}

    /// Memory and addresses apart, where this source has them.
    fn pages(&mut self) -> Option<&mut dyn Pages> {
        None
    }

    /// Lets another device, by its ordinal, reach what is mapped so far; peer access is enabled.
    fn open_to(&mut self, _reader: i32) -> Result<(), SourceError> {
        Ok(())
    }

    /// Driver calls made so far.
    fn calls(&self) -> u64;
}

/// The granule in which the driver hands out device memory.
///
/// Measured on one H200, driver 580: allocations of up to 2 MiB share granules of 2 MiB, larger
/// ones are rounded up to whole granules, and `cuMemGetInfo` moves in steps of 2 MiB.
pub const GRANULE: u64 = 2 << 20;

/// `bytes` rounded up to a multiple of `to`, a power of two; saturating at the last multiple.
#[inline]
pub fn round_up(bytes: u64, to: u64) -> u64 {
    bytes.saturating_add(to - 1) & !(to - 1)
}
