//! The policies: how cached blocks are kept, found and given back.
//!
//! | name | keeps | finds |
//! |---|---|---|
//! | [`none`](PoolKind::None) | nothing | the driver, every time |
//! | [`simple`](PoolKind::Simple) | blocks as they were taken | the first one that is not too large |
//! | [`binned`](PoolKind::Binned) | powers of two up to 128 MiB | the last one freed in the bin |
//! | [`split`](PoolKind::Split) | segments, split and coalesced | the smallest range that fits |
//! | [`stitched`](PoolKind::Stitched) | pages at addresses of its own | the smallest range that fits, else maps pages into one |
//! | [`driver`](PoolKind::Driver) | a pool of the driver's own | as the driver does |
//!
//! A policy manages block descriptors. It reaches the driver only through the [`Environment`] that
//! it is handed, so each policy is tested without a driver.

mod binned;
mod direct;
mod free_list;
mod simple;
mod slot_map;
mod stitched;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

pub use binned::Binned;
pub use direct::Direct;
pub use simple::Simple;
pub use stitched::{Stitched, Tuning};

use crate::headroom::Headroom;
use crate::limits::Limits;
use crate::order::Order;
use crate::source::{Chunk, GRANULE, MemorySource, Pages, Segment, SourceError, round_up};
use crate::stats::RunningStats;
use crate::stream::{StreamRef, Ticket};
use crate::stuck::Stuck;

/// Unit of sizes, in bytes: the alignment of the driver's allocations (H200, driver 580).
const ROUNDING: u64 = 512;

/// Policy of a pool, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolKind {
    /// No pool: `cuMemAlloc` for each request and `cuMemFree` for each free. A free blocks the host
    /// until all work of the device is completed, and nothing is cached. Only memory freed on a
    /// capturing stream is kept, as pending, until the capture ends.
    None,
    /// One list of whole blocks; simple enough to read.
    Simple,
    /// Powers of two from one byte to 128 MiB, cached by bin. Larger blocks are not cached.
    Binned,
    /// Best fit over segments that are split and coalesced.
    Split,
    /// Best fit over physical pages. If no free range is large enough, free pages are mapped into
    /// one range. On a device without virtual memory management this is `split`.
    Stitched,
    /// A stream-ordered pool of the driver. It keeps freed memory up to the release threshold
    /// (`HeapBuilder::release_threshold`), by default all of it.
    Driver,
}

impl PoolKind {
    /// All pools, in the order in which they are shown.
    pub const ALL: [PoolKind; 6] = [
        PoolKind::None,
        PoolKind::Simple,
        PoolKind::Binned,
        PoolKind::Split,
        PoolKind::Stitched,
        PoolKind::Driver,
    ];

    /// Returns the name that settings and the command line use.
    pub fn name(self) -> &'static str {
        match self {
            PoolKind::None => "none",
            PoolKind::Simple => "simple",
            PoolKind::Binned => "binned",
            PoolKind::Split => "split",
            PoolKind::Stitched => "stitched",
            PoolKind::Driver => "driver",
        }
    }

    /// Returns the name that a `MemoryStatus` prints.
    pub fn title(self) -> &'static str {
        match self {
            PoolKind::None => "NonePool",
            PoolKind::Simple => "SimplePool",
            PoolKind::Binned => "BinnedPool",
            PoolKind::Split => "SplitPool",
            PoolKind::Stitched => "StitchedPool",
            PoolKind::Driver => "DriverPool",
        }
    }

    /// Returns the policy of that name.
    ///
    /// # Errors
    ///
    /// [`UnknownPool`] for any other name; its text lists the names.
    pub fn parse(name: &str) -> Result<PoolKind, UnknownPool> {
        PoolKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPool(name.to_owned()))
    }
}

/// Blocks of a policy that each thread caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptByThreads {
    /// Rounding of sizes.
    pub rounding: Rounding,
    /// Largest size, in bytes, of which a few blocks each are cached.
    pub small: u64,
    /// Largest size, in bytes, of which a few blocks each are cached if several threads use the
    /// pool and would wait for each other.
    pub small_shared: u64,
    /// `true` if the last larger block that was freed is cached.
    pub large: bool,
}

impl KeptByThreads {
    /// Returns which blocks of `pool` threads cache; `None` if they cache none. `simple` is for
    /// reading, `none` caches nothing, and with `driver` the driver decides.
    pub fn for_pool(pool: PoolKind) -> Option<KeptByThreads> {
        match pool {
            // Blocks of one bin are interchangeable, so caching them costs no utilisation.
            PoolKind::Binned => Some(KeptByThreads {
                rounding: Rounding::PowersOfTwo,
                small: u64::MAX,
                small_shared: u64::MAX,
                large: false,
            }),
            // Reusing larger blocks in place instead of by best fit costs `gpt_train_short` 0.06 to
            // 0.15 of utilisation and `serve_threads` 0.03 to 0.1.
            PoolKind::Split => Some(KeptByThreads {
                rounding: Rounding::Units,
                small: 256 << 10,
                small_shared: 1 << 20,
                large: true,
            }),
            PoolKind::Stitched => Some(KeptByThreads {
                rounding: Rounding::Units,
                small: 64 << 10,
                small_shared: 1 << 20,
                large: true,
            }),
            PoolKind::None | PoolKind::Simple | PoolKind::Driver => None,
        }
    }
}

/// Rounding of sizes by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Rounds up to multiples of 512 bytes.
    Units,
    /// Rounds up to powers of two.
    PowersOfTwo,
}

impl Rounding {
    /// Returns the block size for a request of `bytes`, which is not zero and whose block is
    /// cached.
    #[inline]
    pub fn round(self, bytes: u64) -> u64 {
        match self {
            Rounding::Units => round_up(bytes, ROUNDING),
            Rounding::PowersOfTwo => bytes.next_power_of_two(),
        }
    }

    /// Returns the rounding as a number.
    #[inline]
    pub fn number(self) -> u64 {
        u64::from(self == Rounding::PowersOfTwo)
    }

    /// Returns the rounding with that [number](Rounding::number).
    #[inline]
    pub fn from_number(number: u64) -> Rounding {
        if number == 0 { Rounding::Units } else { Rounding::PowersOfTwo }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error for a name that no policy has. Its text lists the names of all policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPool(String);

impl fmt::Display for UnknownPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = PoolKind::ALL.iter().map(|kind| kind.name()).collect();
        write!(f, "'{}' is not a pool; the pools are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownPool {}

/// Makes the policy of that kind, with nothing taken.
pub fn new_policy(pool: PoolKind, tuning: Tuning) -> Box<dyn Policy> {
    match pool {
        PoolKind::None | PoolKind::Driver => Box::new(Direct::default()),
        PoolKind::Simple => Box::new(Simple::default()),
        PoolKind::Binned => Box::new(Binned::default()),
        PoolKind::Split => Box::new(Stitched::in_segments()),
        PoolKind::Stitched => Box::new(Stitched::with(tuning)),
    }
}

/// Block that a policy handed out. The key has a meaning only within the policy.
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

/// Block that serves a request; `None` if none is cached and the policy may not take memory.
pub type Served = Result<Option<BlockRef>, Shortage>;

/// Reason for which a policy cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Taking this many bytes would exceed the hard limit.
    Limit(u64),
    /// The device does not have this many bytes.
    Device(u64),
    /// The driver refused this many bytes, which a caller takes without the policy.
    OutsidePool(u64),
    /// The driver failed in another way.
    Failed(SourceError),
}

impl Shortage {
    /// Returns how many bytes are missing, approximately.
    pub fn missing(&self) -> u64 {
        match *self {
            Shortage::Limit(missing)
            | Shortage::Device(missing)
            | Shortage::OutsidePool(missing) => missing,
            Shortage::Failed(_) => 0,
        }
    }
}

/// Memory of a policy that is not in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Free bytes, pending ones included.
    pub bytes: u64,
    /// Pending bytes: free, but their stream is not known to have reached the free.
    pub pending: u64,
    /// Largest free block at contiguous addresses, in bytes.
    pub largest: u64,
    /// Bytes that could be mapped together for one request; zero for policies that map nothing.
    pub stitchable: u64,
    /// Free bytes that only other streams than the requesting one may use at once.
    pub on_other_streams: u64,
}

impl Cached {
    /// Returns the size of the largest request that the cached memory could serve.
    pub fn largest_request(&self) -> u64 {
        self.largest.max(self.stitchable)
    }

    /// Counts one free block.
    fn add(&mut self, bytes: u64, ticket: Ticket, stream: Option<StreamRef>, order: &Order) {
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

/// Memory that live blocks hold: the pieces, segments and chunks, with at least one live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of these pieces. None of them can be given back.
    pub bytes: u64,
    /// Free bytes of these pieces, pending ones included.
    pub free: u64,
    /// Number of these pieces.
    pub pieces: u64,
}

impl Held {
    /// Counts a piece.
    fn add(&mut self, bytes: u64, free: u64) {
        self.bytes += bytes;
        self.free += free;
        self.pieces += 1;
    }

    /// Returns the memory of segments that are live as a whole.
    fn whole<'a>(live: impl Iterator<Item = &'a Segment>) -> Held {
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
    /// Memory that the heap could have.
    pub headroom: Headroom,
    /// Frees that no wait can complete.
    pub stuck: &'a Stuck,
}

/// Forecast of a policy for a request, with all frees so far completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Memory that the policy would take from the driver with the cache as it is, in the order in
    /// which it tries. If there is memory for none of these, it gives cached memory back for the
    /// request.
    pub takings: Vec<Taking>,
    /// `true` if a cached block holds the request in one piece.
    pub is_cached: bool,
    /// Least that the policy would take from the driver otherwise, in bytes.
    pub take: u64,
    /// Bytes that the policy would take if no cached piece became part of the request. Missing
    /// memory is counted with this figure, because such pieces are given back to the driver with
    /// the others.
    pub take_whole: u64,
    /// Segments without a live block, which could be given back to the driver.
    pub spare: Vec<Segment>,
    /// Largest free piece of the other segments, in bytes.
    pub largest_left: u64,
    /// Bytes that are free but [stuck](Stuck). The other figures count them as in use.
    pub stuck: u64,
    /// `true` if frees that were passed to a pool of the driver are stuck. The driver does not say
    /// how much of its pool that is.
    pub driver_is_stuck: bool,
}

/// Memory that a policy would take from the driver for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    /// Bytes; zero if a cached block holds the request.
    pub bytes: u64,
    /// Bytes that the policy gives back first, at least.
    pub after: u64,
}

impl Taking {
    /// Taking of `bytes`, with nothing given back first.
    pub fn new(bytes: u64) -> Taking {
        Taking { bytes, after: 0 }
    }
}

/// Environment of a policy's calls: the memory source, the stream order, statistics and limits.
pub struct Environment<'a> {
    /// Source of memory.
    pub source: &'a mut dyn MemorySource,
    /// Order of streams: which stream may use which block.
    pub order: &'a mut Order,
    /// Statistics of the heap.
    pub stats: &'a mut RunningStats,
    /// Limits of the heap.
    pub limits: Limits,
    /// Segments that are out of use, but that the driver failed to take back.
    pub stranded: &'a mut Vec<Segment>,
}

impl Environment<'_> {
    /// Takes a segment from the driver if the hard limit allows it.
    pub fn take(&mut self, bytes: u64, stream: StreamRef) -> Result<Segment, Shortage> {
        let growth = self.source.growth(bytes);
        let ordered = self.source.is_stream_ordered();
        if let Some(limit) = self.limits.hard {
            let reserved = self.reserved()?;
            // A pool of the driver may have the bytes already.
            let kept = if ordered { reserved.saturating_sub(self.stats.taken) } else { 0 };
            if reserved.saturating_add(growth) > limit && kept < bytes {
                return Err(Shortage::Limit(growth));
            }
        }
        let before = self.before_grant();
        let segment = match self.source.take(bytes, stream) {
            Ok(segment) => segment,
            Err(SourceError::OutOfMemory) => {
                let by_limit = match self.limits.hard {
                    Some(limit) => self.reserved()?.saturating_add(growth) > limit,
                    None => false,
                };
                // On a nearly full device a pool of the driver takes less than its step.
                let least = round_up(bytes, GRANULE);
                return Err(if by_limit {
                    Shortage::Limit(growth)
                } else {
                    Shortage::Device(least)
                });
            }
            Err(error) => return Err(Shortage::Failed(error)),
        };
        self.stats.count_taken(segment.bytes);
        self.note_grant(before);
        if ordered && let Some(limit) = self.limits.hard {
            // The pool's free memory was in pieces, or is unknown, so the driver took more: it is
            // given back.
            let reserved = self.reserved();
            if !matches!(reserved, Ok(reserved) if reserved <= limit) {
                if self.give_back(segment).is_err() {
                    self.stranded.push(segment);
                }
                let _ = self.source.trim();
                return Err(reserved.err().unwrap_or(Shortage::Limit(growth)));
            }
        }
        Ok(segment)
    }

    /// Takes physical memory from the driver if the hard limit allows it.
    pub fn create(&mut self, bytes: u64) -> Result<Chunk, Shortage> {
        self.allow(bytes)?;
        let before = self.before_grant();
        let created = self.pages().and_then(|pages| pages.create(bytes));
        let chunk = created.map_err(|error| match error {
            SourceError::OutOfMemory => Shortage::Device(bytes),
            error => Shortage::Failed(error),
        })?;
        self.stats.count_taken(bytes);
        self.note_grant(before);
        Ok(chunk)
    }

    /// Returns the bytes reserved before the next driver call, if the driver refused a request
    /// before.
    fn before_grant(&mut self) -> Option<u64> {
        self.stats.refused_margin.and_then(|_| self.source.reserved().ok())
    }

    /// Drops a recorded refusal that no longer tells anything: the driver granted memory since, and
    /// reported no more free bytes after the grant than after the refusal.
    fn note_grant(&mut self, before: Option<u64>) {
        let (Some(margin), Some(before)) = (self.stats.refused_margin, before) else { return };
        // A pool of the driver serves some requests without taking anything.
        let has_grown = self.source.reserved().is_ok_and(|reserved| reserved > before);
        if has_grown && self.source.device_memory().is_ok_and(|(free, _)| free <= margin) {
            self.stats.refused_margin = None;
        }
    }

    /// Returns the memory that the heap could have, and what is left of it.
    pub fn headroom(&mut self) -> Headroom {
        Headroom::from_source(self.source, self.limits)
    }

    /// Returns an error if `bytes` more would exceed the hard limit.
    pub fn allow(&mut self, bytes: u64) -> Result<(), Shortage> {
        let Some(limit) = self.limits.hard else { return Ok(()) };
        let allowed = self.reserved()?.saturating_add(bytes) <= limit;
        if allowed { Ok(()) } else { Err(Shortage::Limit(bytes)) }
    }

    /// Gives physical memory back to the driver. The chunk is mapped nowhere.
    pub fn destroy(&mut self, chunk: Chunk, bytes: u64) -> Result<(), SourceError> {
        self.pages()?.destroy(chunk)?;
        self.stats.count_given_back(bytes);
        Ok(())
    }

    /// Returns the calls for physical memory and addresses.
    pub fn pages(&mut self) -> Result<&mut dyn Pages, SourceError> {
        // Policies that need pages are built only over sources that have them.
        self.source.pages().ok_or(SourceError::OutOfMemory)
    }

    fn reserved(&mut self) -> Result<u64, Shortage> {
        self.source.reserved().map_err(Shortage::Failed)
    }

    /// Gives a segment back to the driver. Its last use is known to be completed.
    pub fn give_back(&mut self, segment: Segment) -> Result<(), SourceError> {
        self.source.give_back(segment)?;
        self.stats.count_given_back(segment.bytes);
        Ok(())
    }

    /// Gives a segment back to the driver in the order of `stream`. Only for stream-ordered
    /// sources.
    pub fn give_back_on(&mut self, segment: Segment, stream: StreamRef) -> Result<(), SourceError> {
        self.source.give_back_on(segment, stream)?;
        self.stats.count_given_back(segment.bytes);
        Ok(())
    }
}

/// A policy: how free blocks are kept and found. Calls for one policy never overlap.
pub trait Policy: Send {
    /// Allocates a block of at least `bytes`, not zero, for use on `stream`, ordered after the work
    /// enqueued there. The block comes from the cache, else from the driver.
    ///
    /// If the call fails, memory found or taken on the way stays cached and counted.
    fn allocate(
        &mut self,
        request: Request,
        env: &mut Environment<'_>,
    ) -> Result<BlockRef, Shortage>;

    /// Allocates a block from the cache alone; `None` if no cached block fits. Only for policies
    /// whose blocks [threads cache](KeptByThreads).
    fn reuse(&mut self, _request: Request, _env: &mut Environment<'_>) -> Served {
        Ok(None)
    }

    /// Frees a block whose last use is on `stream`.
    fn free(
        &mut self,
        key: u32,
        stream: StreamRef,
        env: &mut Environment<'_>,
    ) -> Result<(), SourceError>;

    /// Gives at least `target` bytes of cached memory back to the driver, as far as it is known to
    /// be out of use. Large segments go before small ones, and no more than necessary. Returns the
    /// bytes given back.
    fn release(&mut self, target: u64, env: &mut Environment<'_>) -> Result<u64, SourceError>;

    /// Gives back at least `target` bytes of the memory freed since the last call, as far as the
    /// policy notes it. Returns the bytes given back. For callers that ask at every free; only with
    /// a soft limit.
    fn release_freed(
        &mut self,
        target: u64,
        env: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.release(target, env)
    }

    /// Returns `true` if [`release_freed`](Policy::release_freed) may find memory to give back.
    fn has_freed(&self) -> bool {
        true
    }

    /// Gives the segment that holds `address` back to the driver if no block of it is in use.
    /// Returns the bytes given back.
    fn release_at(&mut self, address: u64, env: &mut Environment<'_>) -> Result<u64, SourceError>;

    /// Returns what the policy could do for a request of `bytes`, not zero, if no work were in
    /// flight and the heap had this headroom.
    fn forecast(&self, bytes: u64, outlook: &Outlook<'_>) -> Forecast;

    /// Returns the memory that is not in use, seen from `stream`.
    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached;

    /// Returns the memory that live blocks hold.
    fn held(&self) -> Held;

    /// Returns every live block, for tests of overlap.
    #[cfg(any(test, feature = "testing"))]
    fn live(&self) -> Vec<Segment>;
}
