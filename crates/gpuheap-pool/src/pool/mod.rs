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
//! A policy decides over block descriptors and reaches the driver only through the
//! [`Environment`] that it is handed, so each is tested with no driver at all.

mod binned;
mod direct;
mod free_list;
mod simple;
mod size_bins;
mod slab;
mod split;
mod stitched;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

pub use binned::Binned;
pub use direct::Direct;
pub use simple::Simple;
pub use split::Split;
pub use stitched::{Stitched, Tuning};

use crate::limits::Limits;
use crate::order::Order;
use crate::source::{Chunk, GRANULE, MemorySource, Pages, Segment, SourceError, round_up};
use crate::stats::RunningStats;
use crate::stream::{StreamRef, Ticket};
use crate::stuck::Stuck;

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolKind {
    /// No pool: `cuMemAlloc` for each request and `cuMemFree` for each free. A free waits on the
    /// host for its stream's work, and nothing is cached. Only what is freed on a stream that
    /// captures a graph is kept, as pending, until the capture is over.
    None,
    /// One list of whole blocks, for reading.
    Simple,
    /// Powers of two from one byte to 128 MiB, cached for each bin; larger ones are not cached.
    Binned,
    /// Best fit over segments that are split and coalesced.
    Split,
    /// Best fit over physical pages that are mapped into one range where no free range is large
    /// enough. `split` where the device has no virtual memory of this kind.
    Stitched,
    /// A stream-ordered pool of the driver's. It keeps what is freed up to the
    /// release threshold (`HeapBuilder::release_threshold`), by default all of it.
    Driver,
}

impl PoolKind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [PoolKind; 6] = [
        PoolKind::None,
        PoolKind::Simple,
        PoolKind::Binned,
        PoolKind::Split,
        PoolKind::Stitched,
        PoolKind::Driver,
    ];

    /// The name that settings and the command line use.
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

    /// The name that a `MemoryStatus` prints.
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

    /// The policy of that name.
    ///
    /// # Errors
    ///
    /// A text that lists the names, for any other.
    pub fn parse(name: &str) -> Result<PoolKind, UnknownPool> {
        PoolKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPool(name.to_owned()))
    }
}

/// What each thread keeps of a policy's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptByThreads {
    /// How sizes are rounded up.
    pub rounding: Rounding,
    /// Up to which size a few are kept of each size.
    pub small: u64,
    /// The same where several threads use the pool, which would wait for each other.
    pub small_shared: u64,
    /// `true` if the last larger one that was freed is kept.
    pub large: bool,
}

impl KeptByThreads {
    /// Returns what threads keep of the blocks of `pool`; `None` if they keep none. `simple` is for
    /// reading, `none` keeps nothing, and of `driver` the driver decides.
    pub fn of(pool: PoolKind) -> Option<KeptByThreads> {
        match pool {
            // A block of one bin is as good as another, so nothing is lost by it.
            PoolKind::Binned => Some(KeptByThreads {
                rounding: Rounding::PowersOfTwo,
                small: u64::MAX,
                small_shared: u64::MAX,
                large: false,
            }),
            // Larger ones that are handed out again where they lie, and not by best fit, cost
            // `gpt_train_short` 0.06 to 0.15 of utilisation and `serve_threads` 0.03 to 0.1.
            PoolKind::Split => Some(KeptByThreads {
                rounding: Rounding::Units,
                small: 256 << 10,
                small_shared: 1 << 20,
                large: false,
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

/// How a policy rounds sizes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To multiples of 512 bytes.
    Units,
    /// To powers of two.
    PowersOfTwo,
}

impl Rounding {
    /// The block for a request of `bytes`, which is not zero and has a block that is cached.
    #[inline]
    pub fn round(self, bytes: u64) -> u64 {
        match self {
            Rounding::Units => round_up(bytes, size_bins::ROUNDING),
            Rounding::PowersOfTwo => bytes.next_power_of_two(),
        }
    }

    /// The rounding as a number.
    #[inline]
    pub fn number(self) -> u64 {
        u64::from(self == Rounding::PowersOfTwo)
    }

    /// The rounding of that [number](Rounding::number).
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

/// No policy has that name. Its text lists the names that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPool(String);

impl fmt::Display for UnknownPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = PoolKind::ALL.iter().map(|kind| kind.name()).collect();
        write!(f, "'{}' is not a pool; the pools are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownPool {}

/// The policy of that kind, with nothing taken.
pub fn new_policy(pool: PoolKind, tuning: Tuning) -> Box<dyn Policy> {
    match pool {
        PoolKind::None | PoolKind::Driver => Box::new(Direct::default()),
        PoolKind::Simple => Box::new(Simple::default()),
        PoolKind::Binned => Box::new(Binned::default()),
        PoolKind::Split => Box::new(Split::default()),
        PoolKind::Stitched => Box::new(Stitched::with(tuning)),
    }
}

/// A block that a policy handed out: its key is the policy's own and says nothing to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    /// Which block.
    pub key: u32,
    /// Where the device sees it.
    pub address: u64,
    /// Its size, rounding included.
    pub bytes: u64,
}

/// What keeps a policy from serving a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Taking this many bytes would exceed the hard limit.
    Limit(u64),
    /// The device has not this many bytes.
    Device(u64),
    /// The driver refused this many bytes that a caller takes past the policy.
    Beside(u64),
    /// The driver failed in another way.
    Failed(SourceError),
}

impl Shortage {
    /// About how many bytes are missing.
    pub fn missing(&self) -> u64 {
        match *self {
            Shortage::Limit(missing) | Shortage::Device(missing) | Shortage::Beside(missing) => {
                missing
            }
            Shortage::Failed(_) => 0,
        }
    }
}

/// How much of a policy's memory is not in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Bytes free, pending ones included.
    pub bytes: u64,
    /// Of these, bytes whose stream is not known to have got to their free.
    pub pending: u64,
    /// The largest block in one piece.
    pub largest: u64,
    /// Of these bytes, those that only other streams than the one asked about may use at once.
    pub on_other_streams: u64,
}

impl Cached {
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

/// What a policy could do for a request once every free so far is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// What it would take from the driver with the cache as it is, in the order in which it tries. If
    /// there is memory for none of these, cached memory is given back for the request.
    pub takings: Vec<Taking>,
    /// `true` if something cached holds it in one piece.
    pub is_cached: bool,
    /// The least that it would take from the driver for it otherwise, bytes.
    pub take: u64,
    /// Bytes that it would take if no cached piece was a part of the request. What is missing is
    /// counted with this figure: pieces beside live blocks go back to the driver with these.
    pub take_whole: u64,
    /// The segments that nobody uses, which the driver could have back.
    pub spare: Vec<Segment>,
    /// The largest free piece of the other segments.
    pub largest_left: u64,
    /// Bytes that are free and [stuck](Stuck), which the other figures count as in use.
    pub stuck: u64,
    /// `true` if frees that a pool of the driver's was given are stuck. How much of the pool that is, the
    /// driver does not say.
    pub driver_is_stuck: bool,
}

/// Memory that a policy would take from the driver for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    /// Bytes; none if something cached holds the request.
    pub bytes: u64,
    /// Bytes that it gives back before, at least.
    pub after: u64,
}

impl Taking {
    /// So many bytes, with nothing given back before.
    pub fn of(bytes: u64) -> Taking {
        Taking { bytes, after: 0 }
    }
}

/// What a policy may reach while it works: the driver behind limits and statistics, and the order of
/// streams.
pub struct Environment<'a> {
    /// Where memory comes from.
    pub source: &'a mut dyn MemorySource,
    /// Which stream may use what.
    pub order: &'a mut Order,
    /// What was taken.
    pub stats: &'a mut RunningStats,
    /// How much may be taken.
    pub limits: Limits,
    /// Segments that are out of use and that the driver did not take back when it was asked.
    pub stranded: &'a mut Vec<Segment>,
}

impl Environment<'_> {
    /// Takes a segment from the driver if the hard limit allows it.
    pub fn take(&mut self, bytes: u64, stream: StreamRef) -> Result<Segment, Shortage> {
        let growth = self.source.growth(bytes);
        let ordered = self.source.is_stream_ordered();
        if let Some(limit) = self.limits.hard {
            let reserved = self.reserved()?;
            // A pool of the driver's may have the bytes already.
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
                // On a nearly full device a pool of the driver's takes less than its step.
                let least = round_up(bytes, GRANULE);
                return Err(if by_limit {
                    Shortage::Limit(growth)
                } else {
                    Shortage::Device(least)
                });
            }
            Err(error) => return Err(Shortage::Failed(error)),
        };
        self.stats.took(segment.bytes);
        self.note_grant(before);
        if ordered && let Some(limit) = self.limits.hard {
            // What the pool kept was in pieces, or cannot be asked about: not taken after all.
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
        self.stats.took(bytes);
        self.note_grant(before);
        Ok(chunk)
    }

    /// Bytes reserved before the driver is asked for more, if the driver refused some before.
    fn before_grant(&mut self) -> Option<u64> {
        self.stats.refused_margin.and_then(|_| self.source.reserved().ok())
    }

    /// Forgets a refusal that leaves nothing to go by: the driver has granted memory since, and called
    /// no more free after that than after what it refused.
    fn note_grant(&mut self, before: Option<u64>) {
        let (Some(margin), Some(before)) = (self.stats.refused_margin, before) else { return };
        // A pool of the driver's serves some requests without taking anything.
        let has_grown = self.source.reserved().is_ok_and(|reserved| reserved > before);
        if has_grown && self.source.device_memory().is_ok_and(|(free, _)| free <= margin) {
            self.stats.refused_margin = None;
        }
    }

    /// Refuses `bytes` more than the hard limit allows.
    pub fn allow(&mut self, bytes: u64) -> Result<(), Shortage> {
        let Some(limit) = self.limits.hard else { return Ok(()) };
        let allowed = self.reserved()?.saturating_add(bytes) <= limit;
        if allowed { Ok(()) } else { Err(Shortage::Limit(bytes)) }
    }

    /// Gives physical memory back to the driver that is mapped nowhere.
    pub fn destroy(&mut self, chunk: Chunk, bytes: u64) -> Result<(), SourceError> {
        self.pages()?.destroy(chunk)?;
        self.stats.gave_back(bytes);
        Ok(())
    }

    /// Memory and addresses apart.
    pub fn pages(&mut self) -> Result<&mut dyn Pages, SourceError> {
        // Such a policy is built over no other source.
        self.source.pages().ok_or(SourceError::OutOfMemory)
    }

    fn reserved(&mut self) -> Result<u64, Shortage> {
        self.source.reserved().map_err(Shortage::Failed)
    }

    /// Gives a segment back to the driver; its last use is known to be over.
    pub fn give_back(&mut self, segment: Segment) -> Result<(), SourceError> {
        self.source.give_back(segment)?;
        self.stats.gave_back(segment.bytes);
        Ok(())
    }

    /// Gives a segment back to the driver at this point of `stream`; for sources that are
    /// stream-ordered.
    pub fn give_back_on(&mut self, segment: Segment, stream: StreamRef) -> Result<(), SourceError> {
        self.source.give_back_on(segment, stream)?;
        self.stats.gave_back(segment.bytes);
        Ok(())
    }
}

/// How blocks are kept and found. All calls for one policy come one at a time.
pub trait Policy: Send {
    /// A block of at least `bytes`, which is not zero, usable on `stream` from this point on: from
    /// what is cached, else from the driver.
    ///
    /// What is found or taken on the way stays in order and in the statistics whatever fails after it.
    fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamRef,
        environment: &mut Environment<'_>,
    ) -> Result<BlockRef, Shortage>;

    /// The same of what is cached, nothing taken from the driver for it; none where nothing fits. Of
    /// policies whose blocks [threads keep](KeptByThreads).
    fn reuse(
        &mut self,
        _bytes: u64,
        _stream: StreamRef,
        _environment: &mut Environment<'_>,
    ) -> Result<Option<BlockRef>, Shortage> {
        Ok(None)
    }

    /// Takes a block back whose last use is on `stream`.
    fn free(
        &mut self,
        key: u32,
        stream: StreamRef,
        environment: &mut Environment<'_>,
    ) -> Result<(), SourceError>;

    /// Gives cached memory back to the driver until `target` bytes went, large segments before
    /// small ones and no more than need be; only what is known to be out of use. The bytes that
    /// went.
    fn release(
        &mut self,
        target: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError>;

    /// The same of what became free since it was looked at last, as far as the policy notes that: for
    /// who asks at every free. Only with a soft limit.
    fn release_freed(
        &mut self,
        target: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError> {
        self.release(target, environment)
    }

    /// Returns `true` if there may be something for [`release_freed`](Policy::release_freed).
    fn has_freed(&self) -> bool {
        true
    }

    /// Gives the segment that holds `address` back to the driver if nothing of it is in use: the
    /// bytes that went.
    fn release_at(
        &mut self,
        address: u64,
        environment: &mut Environment<'_>,
    ) -> Result<u64, SourceError>;

    /// What it could do for a request of `bytes`, which is not zero, if no work were in flight.
    fn forecast(&self, bytes: u64, stats: &RunningStats, stuck: &Stuck) -> Forecast;

    /// What is not in use, seen from `stream`.
    fn cached(&self, stream: Option<StreamRef>, order: &Order) -> Cached;

    /// Every block that is handed out, for tests of overlap.
    #[cfg(any(test, feature = "testing"))]
    fn live(&self) -> Vec<Segment>;
}
