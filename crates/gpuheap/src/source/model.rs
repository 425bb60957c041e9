//! A source with no driver behind it: a naive model of memory and of streams, for tests of the
//! policies.
//!
//! Streams are counters. Work is noted with [`Model::work`]; it is done when the test says so
//! ([`Model::complete`]), or at once. A vector clock for each stream says which work of the others
//! it comes after.

use std::collections::{BTreeMap, HashMap};

use super::{Fence, GRANULE, MemorySource, Segment, SourceError, Waiter, round_up};
use crate::heap::limits::Limits;
use crate::heap::order::StreamRef;

/// How far every stream had got, by slot.
pub(crate) type Clock = Vec<u64>;

#[derive(Debug)]
pub(crate) struct Model {
    capacity: u64,
    next_address: u64,
    /// Segments by address, with what the driver counts for each.
    taken: BTreeMap<u64, Segment>,
    reserved: u64,
    reserved_peak: u64,
    /// By slot: what the stream comes after; its own entry counts its work.
    clocks: Vec<Clock>,
    /// By slot: how much of its work is done.
    done: Clock,
    /// Whether work is done as soon as it is noted.
    pub(crate) immediate: bool,
    fences: HashMap<u32, (usize, Clock)>,
    next_fence: u32,
    calls: u64,
    /// Makes the call of this number fail.
    pub(crate) fail_call: Option<u64>,
}

impl Model {
    pub(crate) fn new(capacity: u64) -> Model {
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
            calls: 0,
            fail_call: None,
        }
    }

    /// One more piece of work on a stream; what the stream now comes after.
    pub(crate) fn work(&mut self, stream: StreamRef) -> Clock {
        self.clock(stream.slot())[stream.slot()] += 1;
        if self.immediate {
            self.done[stream.slot()] = self.clocks[stream.slot()][stream.slot()];
        }
        self.clocks[stream.slot()].clone()
    }

    /// Everything noted so far on a stream is done, and what it came after too.
    pub(crate) fn complete(&mut self, slot: usize) {
        let clock = self.clock(slot).clone();
        self.note_done(&clock);
    }

    /// Whether work that ended at `end` on `owner` comes before what `stream` does next: the stream
    /// waits for it, or it is done.
    pub(crate) fn is_ordered(&mut self, owner: usize, end: &Clock, stream: StreamRef) -> bool {
        let position = end[owner];
        self.clock(stream.slot());
        self.clocks[stream.slot()].get(owner).copied().unwrap_or(0) >= position
            || self.done.get(owner).copied().unwrap_or(0) >= position
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.taken.values()
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

    fn call(&mut self) -> Result<(), SourceError> {
        self.calls += 1;
        if self.fail_call == Some(self.calls) {
            let error = gpuheap_driver::check("cuModel", gpuheap_driver::CUresult::ERROR_UNKNOWN);
            return Err(error.expect_err("a failure").into());
        }
        Ok(())
    }
}

impl MemorySource for Model {
    fn take(&mut self, bytes: u64, _stream: StreamRef) -> Result<Segment, SourceError> {
        self.call()?;
        let counted = round_up(bytes, GRANULE);
        if self.reserved + counted > self.capacity {
            return Err(SourceError::OutOfMemory);
        }
        self.reserved += counted;
        self.reserved_peak = self.reserved_peak.max(self.reserved);
        let segment = Segment { address: self.next_address, bytes };
        // A gap, so that neighbours in address are never neighbours in memory.
        self.next_address += counted + GRANULE;
        self.taken.insert(segment.address, segment);
        Ok(segment)
    }

    fn give_back(&mut self, segment: Segment) -> Result<(), SourceError> {
        self.call()?;
        assert_eq!(self.taken.remove(&segment.address), Some(segment), "given back and not taken");
        self.reserved -= round_up(segment.bytes, GRANULE);
        Ok(())
    }

    fn give_back_on(&mut self, segment: Segment, _stream: StreamRef) -> Result<(), SourceError> {
        self.give_back(segment)
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn reserved(&mut self) -> Result<u64, SourceError> {
        Ok(self.reserved)
    }

    fn reserved_peak(&mut self) -> Result<u64, SourceError> {
        Ok(self.reserved_peak)
    }

    fn growth(&self, bytes: u64) -> u64 {
        round_up(bytes, GRANULE)
    }

    fn regained(&mut self, segments: &[Segment]) -> Result<u64, SourceError> {
        Ok(segments.iter().map(|segment| round_up(segment.bytes, GRANULE)).sum())
    }

    fn trim(&mut self) -> Result<u64, SourceError> {
        Ok(0)
    }

    fn limit(&mut self, _limits: Limits) -> Result<bool, SourceError> {
        Ok(true)
    }

    fn zero(
        &mut self,
        _address: u64,
        _bytes: u64,
        _stream: Option<StreamRef>,
    ) -> Result<(), SourceError> {
        self.call()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn device_memory(&mut self) -> Result<(u64, u64), SourceError> {
        Ok((self.capacity - self.reserved, self.capacity))
    }

    fn record(&mut self, stream: StreamRef) -> Result<Fence, SourceError> {
        self.call()?;
        let clock = self.clock(stream.slot()).clone();
        self.next_fence += 1;
        self.fences.insert(self.next_fence, (stream.slot(), clock));
        Ok(Fence(self.next_fence))
    }

    fn is_reached(&mut self, fence: Fence) -> Result<bool, SourceError> {
        self.call()?;
        let (slot, clock) = &self.fences[&fence.0];
        Ok(self.done[*slot] >= clock[*slot])
    }

    fn order_after(&mut self, stream: StreamRef, fence: Fence) -> Result<(), SourceError> {
        self.call()?;
        let (_, after) = self.fences[&fence.0].clone();
        let clock = self.clock(stream.slot());
        for (mine, theirs) in clock.iter_mut().zip(&after) {
            *mine = (*mine).max(*theirs);
        }
        // The wait is work of the stream: what is recorded after it is not reached before it.
        self.work(stream);
        Ok(())
    }

    fn waiter(&mut self, fence: Fence) -> Waiter {
        let (_, clock) = self.fences[&fence.0].clone();
        self.note_done(&clock);
        Box::new(|| Ok(()))
    }

    fn forget(&mut self, fence: Fence) {
        assert!(self.fences.remove(&fence.0).is_some(), "a fence is forgotten twice");
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}
