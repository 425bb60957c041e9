//! A memory source without a driver: a naive model of memory and streams, for tests of the
//! policies.
//!
//! Streams are counters. [`Model::work`] notes work. The work is done when the test calls
//! [`Model::complete`], or immediately if [`Model::immediate`] is set. The vector clock of each
//! stream records the work of other streams that the stream comes after.
//!
//! [`Pages`] are checked strictly. Chunks must be mapped whole, inside reserved addresses, and not
//! over another mapping. A mapping may be removed only after the host knows that the work on the
//! mapping is done.

use std::collections::{BTreeMap, HashMap};

use crate::source::{
    Chunk, DriverFailure, Fence, GRANULE, MemorySource, Pages, Segment, SourceError, SourceResult,
    Waiter, round_up,
};
use crate::stream::StreamRef;

/// Capacity, in bytes, of a device with plenty of memory. The tables have an entry for each page of
/// this memory, and Miri fills the entries one by one.
pub const LARGE_DEVICE: u64 = if cfg!(miri) { 1 << 30 } else { 1 << 40 };

/// Progress of every stream, by slot.
pub type Clock = Vec<u64>;

/// Model of a device's memory and streams that needs no driver.
#[derive(Debug)]
pub struct Model {
    capacity: u64,
    next_address: u64,
    /// Segments that were taken and not given back, keyed by address.
    taken: BTreeMap<u64, Segment>,
    reserved: u64,
    reserved_peak: u64,
    /// Vector clock of each stream, by slot. Entry `n` counts the work of stream `n` that must be
    /// done before the clock's stream continues; for the stream itself, all of its work.
    clocks: Vec<Clock>,
    /// Work done on each stream, by slot.
    done: Clock,
    /// `true` if work is done as soon as a test enqueues it.
    pub immediate: bool,
    fences: HashMap<u32, (usize, Clock)>,
    next_fence: u32,
    /// Work that the host knows to be done, counted for each stream, by slot.
    known: Clock,
    /// Address and size of each chunk's bytes, keyed by the chunk's number.
    chunks: HashMap<u32, Segment>,
    next_chunk: u32,
    /// Reserved ranges of addresses: start and length.
    ranges: BTreeMap<u64, u64>,
    /// Mappings, by address.
    maps: BTreeMap<u64, Mapping>,
    calls: u64,
    /// Number of calls so far that changed memory or mappings.
    pub changes: u64,
    /// Number of the call that fails, counted like `calls`.
    pub fail_call: Option<u64>,
    /// Slot of a stream that is capturing a graph.
    pub capturing: Option<usize>,
}

#[derive(Debug)]
struct Mapping {
    chunk: u32,
    bytes: u64,
    /// Last work on the mapping by each stream, keyed by the stream's slot.
    work: HashMap<usize, u64>,
}

/// First address of the chunks' bytes, above all device addresses.
const PHYSICAL: u64 = 1 << 60;

impl Model {
    /// Makes a device with `capacity` bytes, none of them taken.
    pub fn new(capacity: u64) -> Model {
        Model {
            capacity,
            next_address: 1 << 40,
            taken: BTreeMap::new(),
            reserved: 0,
            reserved_peak: 0,
            clocks: Vec::new(),
            done: Vec::new(),
            immediate: true,
            fences: HashMap::new(),
            next_fence: 0,
            known: Vec::new(),
            chunks: HashMap::new(),
            next_chunk: 0,
            ranges: BTreeMap::new(),
            maps: BTreeMap::new(),
            calls: 0,
            changes: 0,
            fail_call: None,
            capturing: None,
        }
    }

    /// Enqueues a piece of work on a stream. Returns the stream's clock.
    pub fn work(&mut self, stream: StreamRef) -> Clock {
        self.clock(stream.slot())[stream.slot()] += 1;
        if self.immediate {
            self.done[stream.slot()] = self.clocks[stream.slot()][stream.slot()];
        }
        self.clocks[stream.slot()].clone()
    }

    /// Completes all work enqueued on a stream so far, and all work that the stream waits for.
    pub fn complete(&mut self, slot: usize) {
        let clock = self.clock(slot).clone();
        self.note_done(&clock);
    }

    /// Returns `true` if the work of `owner` up to `end` comes before the next work of `stream`:
    /// either `stream` waits for that work, or the work is done.
    pub fn is_ordered(&mut self, owner: usize, end: &Clock, stream: StreamRef) -> bool {
        let position = end[owner];
        self.clock(stream.slot());
        self.clocks[stream.slot()].get(owner).copied().unwrap_or(0) >= position
            || self.done.get(owner).copied().unwrap_or(0) >= position
    }

    /// Completes all work and marks it as known to the host.
    pub fn all_known(&mut self) {
        (0..self.clocks.len()).for_each(|slot| self.complete(slot));
        self.known.clone_from(&self.done);
    }

    /// Returns the bytes taken and not given back.
    pub fn taken(&self) -> u64 {
        let segments: u64 = self.taken.values().map(|segment| segment.bytes).sum();
        segments + self.chunks.values().map(|chunk| chunk.bytes).sum::<u64>()
    }

    /// Returns the number of mappings; a chunk mapped twice counts twice.
    pub fn mappings(&self) -> usize {
        self.maps.len()
    }

    /// Returns the number of fences that were recorded and not [forgotten](MemorySource::forget).
    pub fn fences(&self) -> usize {
        self.fences.len()
    }

    /// Returns the reserved addresses, in bytes.
    pub fn addresses(&self) -> u64 {
        self.ranges.values().sum()
    }

    /// Returns the physical pieces that are mapped in a range of addresses, in the order of the
    /// addresses. Returns `None` if an address of the range has no memory.
    pub fn physical(&self, address: u64, bytes: u64) -> Option<Vec<(u64, u64)>> {
        let end = address + bytes;
        if let Some((_, segment)) = self.taken.range(..=address).next_back()
            && end <= segment.address + segment.bytes
        {
            return Some(vec![(address, end)]);
        }
        let (mut at, mut pieces) = (address, Vec::new());
        while at < end {
            let (start, map) = self.maps.range(..=at).next_back()?;
            let stop = end.min(start + map.bytes);
            if stop <= at {
                return None;
            }
            let base = self.chunks[&map.chunk].address;
            pieces.push((base + (at - start), base + (stop - start)));
            at = stop;
        }
        Some(pieces)
    }

    /// Notes that the stream in `slot` uses these addresses in its work so far.
    pub fn uses(&mut self, address: u64, bytes: u64, slot: usize) {
        let position = self.clocks[slot][slot];
        for (start, map) in self.maps.range_mut(..address + bytes).rev() {
            if start + map.bytes <= address {
                break;
            }
            map.work.insert(slot, position);
        }
    }

    fn know(&mut self, clock: &Clock) {
        self.known.resize(self.known.len().max(clock.len()), 0);
        for (known, position) in self.known.iter_mut().zip(clock) {
            *known = (*known).max(*position);
        }
    }

    fn clock(&mut self, slot: usize) -> &mut Clock {
        let slots = self.clocks.len().max(slot + 1);
        self.clocks.resize(slots, Vec::new());
        self.done.resize(slots, 0);
        for clock in &mut self.clocks {
            clock.resize(slots, 0);
        }
        &mut self.clocks[slot]
    }

    fn note_done(&mut self, clock: &Clock) {
        for (done, position) in self.done.iter_mut().zip(clock) {
            *done = (*done).max(*position);
        }
    }

    fn refuse_capturing(&self, stream: StreamRef) -> SourceResult {
        if self.capturing == Some(stream.slot()) { Err(SourceError::Capturing) } else { Ok(()) }
    }

    fn call(&mut self) -> SourceResult {
        self.calls += 1;
        if self.fail_call == Some(self.calls) {
            // The driver's code for an unknown error.
            return Err(SourceError::Driver(DriverFailure { function: "cuModel", code: 999 }));
        }
        Ok(())
    }
}

impl MemorySource for Model {
    fn take(&mut self, bytes: u64, _stream: StreamRef) -> SourceResult<Segment> {
        self.call()?;
        let counted = round_up(bytes, GRANULE);
        if self.reserved + counted > self.capacity {
            return Err(SourceError::OutOfMemory);
        }
        self.reserved += counted;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
        let segment = Segment { address: self.next_address, bytes };
        // The gap keeps segments from being adjacent.
        self.next_address += counted + GRANULE;
        self.taken.insert(segment.address, segment);
        Ok(segment)
    }

    fn give_back(&mut self, segment: Segment) -> SourceResult {
        self.call()?;
        assert_eq!(self.taken.remove(&segment.address), Some(segment), "given back and not taken");
        self.reserved -= round_up(segment.bytes, GRANULE);
        Ok(())
    }

    fn reserved(&mut self) -> SourceResult<u64> {
        Ok(self.reserved)
    }

    fn reserved_peak(&mut self) -> SourceResult<u64> {
        Ok(self.reserved_peak)
    }

    fn growth(&self, bytes: u64) -> u64 {
        round_up(bytes, GRANULE)
    }

    fn regained(&mut self, segments: &[Segment]) -> SourceResult<u64> {
        Ok(segments.iter().map(|segment| round_up(segment.bytes, GRANULE)).sum())
    }

    fn zero(&mut self, _address: u64, _bytes: u64, _stream: Option<StreamRef>) -> SourceResult {
        self.call()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn device_memory(&mut self) -> SourceResult<(u64, u64)> {
        Ok((self.capacity - self.reserved, self.capacity))
    }

    fn record(&mut self, stream: StreamRef) -> SourceResult<Fence> {
        self.call()?;
        self.refuse_capturing(stream)?;
        let clock = self.clock(stream.slot()).clone();
        self.next_fence += 1;
        self.fences.insert(self.next_fence, (stream.slot(), clock));
        Ok(Fence(self.next_fence))
    }

    fn record_again(&mut self, fence: Fence, stream: StreamRef) -> SourceResult {
        self.call()?;
        let clock = self.clock(stream.slot()).clone();
        let (slot, point) = self.fences.get_mut(&fence.0).expect("a fence that there is");
        assert_eq!(*slot, stream.slot(), "a fence of another stream");
        *point = clock;
        Ok(())
    }

    fn is_fence_reached(&mut self, fence: Fence) -> SourceResult<bool> {
        self.call()?;
        let (slot, clock) = self.fences[&fence.0].clone();
        let reached = self.done[slot] >= clock[slot];
        if reached {
            self.know(&clock);
        }
        Ok(reached)
    }

    fn order_after(&mut self, stream: StreamRef, fence: Fence) -> SourceResult {
        self.call()?;
        self.refuse_capturing(stream)?;
        let (_, after) = self.fences[&fence.0].clone();
        let clock = self.clock(stream.slot());
        for (mine, theirs) in clock.iter_mut().zip(&after) {
            *mine = (*mine).max(*theirs);
        }
        // The wait counts as work of the stream: a later fence of the stream is not reached before
        // the wait ends.
        self.work(stream);
        Ok(())
    }

    fn waiter(&mut self, fence: Fence) -> Waiter {
        let (_, clock) = self.fences[&fence.0].clone();
        self.note_done(&clock);
        self.know(&clock);
        Box::new(|| Ok(()))
    }

    fn forget(&mut self, fence: Fence) {
        assert!(self.fences.remove(&fence.0).is_some(), "a fence is forgotten twice");
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        Some(self)
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}

impl Pages for Model {
    fn granule(&self) -> u64 {
        GRANULE
    }

    fn reserve(&mut self, bytes: u64) -> SourceResult<u64> {
        self.call()?;
        assert!(bytes > 0 && bytes.is_multiple_of(GRANULE));
        let address = self.next_address;
        self.next_address += bytes + GRANULE;
        self.ranges.insert(address, bytes);
        Ok(address)
    }

    fn unreserve(&mut self, address: u64, bytes: u64) -> SourceResult {
        self.call()?;
        assert!(self.maps.range(address..address + bytes).next().is_none(), "still mapped");
        assert_eq!(self.ranges.remove(&address), Some(bytes), "not reserved so");
        Ok(())
    }

    fn create(&mut self, bytes: u64) -> SourceResult<Chunk> {
        self.call()?;
        assert!(bytes > 0 && bytes.is_multiple_of(GRANULE));
        if self.reserved + bytes > self.capacity {
            return Err(SourceError::OutOfMemory);
        }
        self.changes += 1;
        self.reserved += bytes;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
        self.next_chunk += 1;
        let address = PHYSICAL + u64::from(self.next_chunk) * (1 << 36);
        self.chunks.insert(self.next_chunk, Segment { address, bytes });
        Ok(Chunk(self.next_chunk))
    }

    fn destroy(&mut self, chunk: Chunk) -> SourceResult {
        self.call()?;
        self.changes += 1;
        assert!(self.maps.values().all(|map| map.chunk != chunk.0), "destroyed, still mapped");
        let gone = self.chunks.remove(&chunk.0).expect("a chunk that there is");
        self.reserved -= gone.bytes;
        Ok(())
    }

    fn map(&mut self, address: u64, chunks: &[Chunk]) -> SourceResult {
        self.call()?;
        let mut at = address;
        for chunk in chunks {
            let bytes = self.chunks[&chunk.0].bytes;
            self.changes += 1;
            let below = self.maps.range(..at + bytes).next_back();
            assert!(below.is_none_or(|(start, map)| start + map.bytes <= at), "mapped over");
            self.maps.insert(at, Mapping { chunk: chunk.0, bytes, work: HashMap::new() });
            at += bytes;
        }
        let (start, length) = self.ranges.range(..=address).next_back().expect("reserved");
        assert!(at <= start + length, "mapped past what is reserved");
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> SourceResult {
        self.call()?;
        self.changes += 1;
        let map = self.maps.remove(&address).expect("a mapping that there is");
        assert_eq!(map.bytes, bytes, "not the whole mapping");
        for (slot, position) in map.work {
            let known = self.known.get(slot).copied().unwrap_or(0);
            assert!(known >= position, "unmapped before the host knows that stream {slot} is done");
        }
        Ok(())
    }
}
