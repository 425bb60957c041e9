//! An environment takes memory from the driver within the heap's limits, and counts the memory.

use crate::order::Order;
use crate::source::Limits;
use crate::source::{
    Chunk, GRANULE, MemorySource, Pages, Segment, SourceError, SourceResult, round_up,
};
use crate::stats::RunningStats;
use crate::stream::StreamRef;

/// Reason for which a policy cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Taking this many bytes would exceed the hard limit.
    Limit(u64),
    /// The device does not have this many bytes.
    Device(u64),
    /// The driver refused this many bytes that the heap takes directly, not through its pool.
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

/// Memory source, stream order, statistics and limits that a policy's calls use.
pub struct Environment<'a> {
    /// Source of memory.
    pub source: &'a mut dyn MemorySource,
    /// Stream order. It decides which stream may use which block.
    pub order: &'a mut Order,
    /// Statistics of the heap.
    pub stats: &'a mut RunningStats,
    /// Limits of the heap.
    pub limits: Limits,
    /// Unused segments that could not be given back because a driver call failed.
    pub stranded: &'a mut Vec<Segment>,
}

impl Environment<'_> {
    /// Takes a segment from the driver if the hard limit allows it.
    pub fn take(&mut self, bytes: u64, stream: StreamRef) -> Result<Segment, Shortage> {
        let growth = self.source.growth(bytes);
        let ordered = self.source.is_stream_ordered();
        if let Some(limit) = self.limits.hard {
            let reserved = self.reserved()?;
            // The free bytes of a driver's pool may already cover the request.
            let kept = if ordered { reserved.saturating_sub(self.stats.taken) } else { 0 };
            if reserved.saturating_add(growth) > limit && kept < bytes {
                return Err(Shortage::Limit(growth));
            }
        }
        let before = self.before_grant();
        let segment = match self.source.take(bytes, stream) {
            Ok(segment) => segment,
            Err(SourceError::Limited) => return Err(Shortage::Limit(growth)),
            Err(SourceError::OutOfMemory) => {
                let by_limit = match self.limits.hard {
                    Some(limit) => self.reserved()?.saturating_add(growth) > limit,
                    None => false,
                };
                // On a nearly full device, a pool of the driver grows by less than its usual step.
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
            // The free memory of the driver's pool was fragmented, or its size is unknown, so the
            // driver took more than the limit. The segment is given back.
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
            SourceError::Limited => Shortage::Limit(bytes),
            SourceError::OutOfMemory => Shortage::Device(bytes),
            error => Shortage::Failed(error),
        })?;
        self.stats.count_taken(bytes);
        self.note_grant(before);
        Ok(chunk)
    }

    /// Returns the reserved bytes before a driver call. [`note_grant`](Environment::note_grant)
    /// compares them with the bytes after the call. Returns `None` if no refusal of the driver is
    /// recorded.
    fn before_grant(&mut self) -> Option<u64> {
        self.stats.refused_margin.and_then(|_| self.source.reserved().ok())
    }

    /// Drops the recorded refusal if this grant has filled the device as far as the refused request
    /// would have. At most `refused_margin` bytes are then free.
    fn note_grant(&mut self, before: Option<u64>) {
        let (Some(margin), Some(before)) = (self.stats.refused_margin, before) else { return };
        // A pool of the driver serves some requests without memory from the device.
        let has_grown = self.source.reserved().is_ok_and(|reserved| reserved > before);
        if has_grown && self.source.device_memory().is_ok_and(|(free, _)| free <= margin) {
            self.stats.refused_margin = None;
        }
    }

    /// Returns the bytes that the heap could reserve in total, and the bytes left to reserve.
    pub fn headroom(&mut self) -> Headroom {
        Headroom::from_source(self.source, self.limits)
    }

    /// Returns an error if `bytes` more would exceed the hard limit.
    pub fn allow(&mut self, bytes: u64) -> Result<(), Shortage> {
        let Some(limit) = self.limits.hard else { return Ok(()) };
        let allowed = self.reserved()?.saturating_add(bytes) <= limit;
        if allowed { Ok(()) } else { Err(Shortage::Limit(bytes)) }
    }

    /// Gives physical memory back to the driver. The caller has unmapped the chunk everywhere.
    pub fn destroy(&mut self, chunk: Chunk, bytes: u64) -> SourceResult {
        self.pages()?.destroy(chunk)?;
        self.stats.count_given_back(bytes);
        Ok(())
    }

    /// Returns the interface to the source's physical memory and addresses.
    pub fn pages(&mut self) -> SourceResult<&mut dyn Pages> {
        // Never fails: policies that need pages are built only over sources that have pages.
        self.source.pages().ok_or(SourceError::OutOfMemory)
    }

    fn reserved(&mut self) -> Result<u64, Shortage> {
        self.source.reserved().map_err(Shortage::Failed)
    }

    /// Gives back a segment to the driver. The segment's last use is known to be completed.
    pub fn give_back(&mut self, segment: Segment) -> SourceResult {
        self.source.give_back(segment)?;
        self.stats.count_given_back(segment.bytes);
        Ok(())
    }

    /// Gives back a segment to the driver in the order of `stream`. Only for stream-ordered
    /// sources.
    pub fn give_back_on(&mut self, segment: Segment, stream: StreamRef) -> SourceResult {
        self.source.give_back_on(segment, stream)?;
        self.stats.count_given_back(segment.bytes);
        Ok(())
    }
}

/// Bytes that a heap could reserve in total, and bytes that are left to reserve. Both are zero if
/// the driver does not report the device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headroom {
    /// Maximum of the reserved bytes: the device's memory, or a limit below it.
    pub most: u64,
    /// Bytes that the heap can reserve before the device or a limit is full.
    pub left: u64,
}

impl Headroom {
    /// Returns the headroom of a heap that takes memory from `source`. Memory that other programs
    /// use on the device does not count as left.
    pub fn from_source(source: &mut dyn MemorySource, limits: Limits) -> Headroom {
        let (Ok((free, _)), Ok(reserved)) = (source.device_memory(), source.reserved()) else {
            return Headroom::default();
        };
        let limit = limits.hard.unwrap_or(u64::MAX).min(limits.soft.unwrap_or(u64::MAX));
        Headroom {
            most: source.capacity().min(limit),
            left: free.min(limit.saturating_sub(reserved)),
        }
    }
}
