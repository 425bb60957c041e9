//! Builds a [`Trace`] from events that identify blocks by address.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ids::{Ids, next_number};
use super::stacks::Stacks;
use super::{
    AllocatorSettings, Event, FoldedPairs, Format, MemoryKind, Op, Range, Recording, Segment,
    SnapshotKeys, StreamInfo, ThreadInfo, Trace, Warning,
};
use crate::Error;

/// Builder of a [`Trace`]. All readers use this builder, so that frees are matched to allocations
/// by the same rules in all formats:
///
/// * A free ends the block that was last allocated at its address.
/// * Allocations of zero bytes may share an address with each other and with one larger block. A
///   free of zero bytes ends the latest of these allocations. A free of more bytes ends the larger
///   block first.
/// * An allocation at an address that is still live means that the file lacks a free. Then the
///   builder adds a free of the old block, on the stream of that block ([`Trace::inferred_frees`]).
/// * A free of an address that is not live is not an event ([`Trace::unknown_frees`]).
/// * A failed request is an [`Op::Retry`], not an [`Op::Fail`], if the thread repeats the request
///   on the stream until it succeeds, with no other request in between.
///
/// ```
/// use gpuheap_trace::{At, Format, TraceBuilder};
///
/// let mut builder = TraceBuilder::new("made up", Format::RmmCsv);
/// let at = At { time_ns: 0, stream: 0, thread: 1, stack: 0 };
/// builder.allocate(at, 0x1000, 256)?;
/// builder.free(At { time_ns: 10, ..at }, 0x1000, 256)?;
/// assert_eq!(builder.finish().summary().peak_live_bytes, 256);
/// # Ok::<(), gpuheap_trace::Error>(())
/// ```
#[derive(Debug)]
pub struct TraceBuilder {
    /// Trace so far, without streams and threads.
    trace: Trace,
    streams: Ids,
    threads: Ids,
    /// Indices of failures, keyed by thread and stream. If a later request of the thread on the
    /// stream succeeds, the failures become retries.
    refused: FxHashMap<(u64, u64), Vec<usize>>,
    live: FxHashMap<u64, Live>,
    live_empty: FxHashMap<u64, Vec<Live>>,
    pending: FxHashMap<u64, Live>,
    /// Threads of the recorded process. The traces of all devices share this list.
    known_threads: Arc<[ThreadInfo]>,
    time_ns: u64,
    /// Number of the latest event, for [`Event::number`].
    number: u32,
}

/// Time, stream, thread and stack of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Nanoseconds since the recording began. A time before the previous event's time is replaced
    /// by the previous time.
    pub time_ns: u64,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// The thread's id; zero if unknown.
    pub thread: u64,
    /// The stack's number; zero if unknown.
    pub stack: u32,
}

#[derive(Debug, Clone, Copy)]
struct Live {
    allocation: u32,
    stream: u32,
}

impl TraceBuilder {
    /// Makes an empty trace.
    pub fn new(name: impl Into<String>, format: Format) -> Self {
        Self {
            trace: Trace {
                name: name.into(),
                format,
                device: None,
                events: Vec::new(),
                recorded_from: 0,
                addresses: Vec::new(),
                streams: Vec::new(),
                threads: None,
                thread_infos: Vec::new(),
                kinds: Vec::new(),
                recording: None,
                ranges: Vec::new(),
                folded: Vec::new(),
                stacks: Arc::default(),
                allocator: None,
                keys: None,
                segments: Vec::new(),
                pools: Vec::new(),
                device_free: Vec::new(),
                unknown_frees: 0,
                inferred_frees: 0,
                warnings: Vec::new(),
            },
            streams: Ids::default(),
            threads: Ids::default(),
            refused: FxHashMap::default(),
            live: FxHashMap::default(),
            live_empty: FxHashMap::default(),
            pending: FxHashMap::default(),
            known_threads: Arc::default(),
            time_ns: 0,
            number: 0,
        }
    }

    /// Sets the index of the device.
    pub fn set_device(&mut self, device: u32) {
        self.trace.device = Some(device);
    }

    pub(crate) fn set_stacks(&mut self, stacks: Arc<Stacks>) {
        self.trace.stacks = stacks;
    }

    pub(crate) fn set_allocator(&mut self, settings: AllocatorSettings) {
        self.trace.allocator = Some(settings);
    }

    pub(crate) fn set_keys(&mut self, keys: SnapshotKeys) {
        self.trace.keys = Some(keys);
    }

    pub(crate) fn set_segments(&mut self, mut segments: Vec<Segment>) {
        segments.sort_unstable_by_key(|segment| segment.address);
        self.trace.segments = segments;
    }

    /// Begins the recording. All events so far happened before the recording, and get time zero.
    pub fn begin_recording(&mut self) {
        for event in &mut self.trace.events {
            event.time_ns = 0;
            event.number = 0;
        }
        self.time_ns = 0;
        self.number = 0;
        self.trace.recorded_from = self.trace.events.len();
        self.refused.clear();
        self.trace.unknown_frees = 0;
        self.trace.inferred_frees = 0;
    }

    /// Adds an allocation of `bytes` at `address`. If the address was still live, the file lacks a
    /// free, and the method returns `false`.
    ///
    /// # Errors
    /// Returns an error if the number of events, allocations, streams or threads exceeds 32 bits.
    pub fn allocate(&mut self, at: At, address: u64, bytes: u64) -> Result<bool, Error> {
        self.count_event()?;
        let allocation = next_number(self.trace.addresses.len())?;
        let stream = self.streams.number(at.stream)?;
        if let Some(pending) = self.pending.remove(&address) {
            self.push(at, pending.stream, Op::FreeCompleted { allocation: pending.allocation })?;
        }
        let new = Live { allocation, stream };
        let lost = if bytes == 0 {
            self.live_empty.entry(address).or_default().push(new);
            None
        } else {
            self.live.insert(address, new)
        };
        if let Some(lost) = lost {
            self.trace.inferred_frees += 1;
            self.push(at, lost.stream, Op::Free { allocation: lost.allocation })?;
            if self.trace.format.records_completion() {
                self.push(at, lost.stream, Op::FreeCompleted { allocation: lost.allocation })?;
            }
        }
        self.trace.addresses.push(address);
        self.mark_retries(at, bytes);
        self.push(at, stream, Op::Allocate { allocation, bytes })?;
        Ok(lost.is_none())
    }

    /// Adds a free of the block of `bytes` at `address`. Returns `false` if the address was not
    /// live.
    ///
    /// # Errors
    /// Returns an error if the number of events, streams or threads exceeds 32 bits.
    pub fn free(&mut self, at: At, address: u64, bytes: u64) -> Result<bool, Error> {
        self.count_event()?;
        let found = if bytes == 0 {
            self.take_empty(address).or_else(|| self.live.remove(&address))
        } else {
            self.live.remove(&address).or_else(|| self.take_empty(address))
        };
        let Some(Live { allocation, .. }) = found else {
            self.trace.unknown_frees += 1;
            return Ok(false);
        };
        let stream = self.streams.number(at.stream)?;
        self.push(at, stream, Op::Free { allocation })?;
        if self.trace.format.records_completion()
            && let Some(older) = self.pending.insert(address, Live { allocation, stream })
        {
            self.push(at, older.stream, Op::FreeCompleted { allocation: older.allocation })?;
        }
        Ok(true)
    }

    /// Ends the pending state of the block at `address`. If the block is still live, frees it
    /// first. Returns `false` if no live or pending block has this address.
    ///
    /// # Errors
    /// Returns an error if the number of streams or threads exceeds 32 bits.
    pub fn free_completed(&mut self, at: At, address: u64) -> Result<bool, Error> {
        let pending = match self.pending.remove(&address) {
            Some(pending) => pending,
            None => {
                let live = self.live.remove(&address).or_else(|| self.take_empty(address));
                let Some(live) = live else { return Ok(false) };
                self.trace.inferred_frees += 1;
                self.push(at, live.stream, Op::Free { allocation: live.allocation })?;
                live
            }
        };
        let stream = self.streams.number(at.stream)?;
        self.push(at, stream, Op::FreeCompleted { allocation: pending.allocation })?;
        Ok(true)
    }

    /// Adds a failed request for `bytes`. The failure becomes an [`Op::Retry`] if the thread's next
    /// request on the stream is for as many bytes and succeeds.
    ///
    /// # Errors
    /// Returns an error if the number of events, streams or threads exceeds 32 bits.
    pub fn fail(&mut self, at: At, bytes: u64) -> Result<(), Error> {
        self.count_event()?;
        let stream = self.streams.number(at.stream)?;
        let refused = self.refused.entry((at.thread, at.stream)).or_default();
        let is_same = |&index: &usize| self.trace.events[index].op == Op::Fail { bytes };
        if !refused.last().is_some_and(is_same) {
            refused.clear();
        }
        refused.push(self.trace.events.len());
        self.push(at, stream, Op::Fail { bytes })
    }

    /// Sets the private pool of all later allocations; `None` if the file does not name it.
    pub(crate) fn set_pool(&mut self, pool: Option<(u64, u64)>) -> Result<(), Error> {
        if self.trace.pools.last().and_then(|&(_, last)| last) != pool {
            self.trace.pools.push((next_number(self.trace.addresses.len())?, pool));
        }
        Ok(())
    }

    /// Sets the free bytes of the device at the latest event.
    pub(crate) fn set_device_free(&mut self, bytes: u64) {
        if let Some(index) = self.trace.events.len().checked_sub(1) {
            self.trace.device_free.push((index, bytes));
        }
    }

    /// Adds memory that the recorded allocator took from the driver.
    ///
    /// # Errors
    /// Returns an error if the number of streams or threads exceeds 32 bits.
    pub fn segment_taken(&mut self, at: At, address: u64, bytes: u64) -> Result<(), Error> {
        let stream = self.streams.number(at.stream)?;
        self.push(at, stream, Op::SegmentTaken { address, bytes })
    }

    /// Adds memory that the recorded allocator gave back to the driver.
    ///
    /// # Errors
    /// Returns an error if the number of streams or threads exceeds 32 bits.
    pub fn segment_given_back(&mut self, at: At, address: u64, bytes: u64) -> Result<(), Error> {
        let stream = self.streams.number(at.stream)?;
        self.push(at, stream, Op::SegmentGivenBack { address, bytes })
    }

    /// Sets the kind of the next allocation.
    pub(crate) fn set_kind(&mut self, kind: MemoryKind) {
        self.trace.kinds.resize(self.trace.addresses.len(), MemoryKind::default());
        self.trace.kinds.push(kind);
    }

    /// Sets the recorded process and its threads. An event's thread number `n` means `threads[n -
    /// 1]`.
    pub(crate) fn set_recording(&mut self, recording: Arc<Recording>, threads: Arc<[ThreadInfo]>) {
        self.trace.recording = Some(recording);
        self.known_threads = threads;
    }

    /// Returns the number of events so far.
    pub(crate) fn event_count(&self) -> usize {
        self.trace.events.len()
    }

    /// Adds a range of the thread with this id. If the id is 0, adds a range of all threads.
    pub(crate) fn add_range(&mut self, thread: u64, mut range: Range) -> Result<(), Error> {
        range.thread = match thread {
            0 => None,
            thread => Some(self.threads.number(thread)?),
        };
        self.trace.ranges.push(range);
        Ok(())
    }

    /// Adds allocations and frees that the recorder only counted. Inserts them after the events so
    /// far.
    pub(crate) fn fold(
        &mut self,
        at: At,
        kind: MemoryKind,
        count: u64,
        bytes: u64,
        largest_bytes: u64,
    ) -> Result<(), Error> {
        let (before, thread) = (self.event_count(), self.threads.number(at.thread)?);
        let stack = at.stack;
        let folded = FoldedPairs { before, thread, stack, kind, count, bytes, largest_bytes };
        self.trace.folded.push(folded);
        Ok(())
    }

    /// Adds a warning to the trace.
    pub fn warn(&mut self, warning: Warning) {
        self.trace.warnings.push(warning);
    }

    /// Returns `true` if the trace has an event on this stream.
    pub fn has_stream(&self, handle: u64) -> bool {
        self.streams.contains(handle)
    }

    /// Returns the trace.
    pub fn finish(self) -> Trace {
        let streams = self.streams.into_keys().into_iter();
        let mut threads = self.threads.into_keys();
        let known = self.known_threads;
        let mut thread_infos = Vec::new();
        if !known.is_empty() {
            for thread in &mut threads {
                let info =
                    usize::try_from(*thread).ok().and_then(|at| known.get(at.checked_sub(1)?));
                let info = info.cloned().unwrap_or_default();
                *thread = info.id;
                thread_infos.push(info);
            }
        }
        Trace {
            streams: streams.map(|handle| StreamInfo { handle }).collect(),
            threads: self.trace.format.records_threads().then_some(threads),
            thread_infos,
            ..self.trace
        }
    }

    /// Turns earlier refusals of a request into retries, because the request succeeded. `at` and
    /// `bytes` describe the request.
    pub(crate) fn mark_retries(&mut self, at: At, bytes: u64) {
        if self.refused.is_empty() {
            return;
        }
        for index in self.refused.remove(&(at.thread, at.stream)).into_iter().flatten() {
            let op = &mut self.trace.events[index].op;
            if let Op::Fail { bytes: refused } = *op
                && self.trace.format.is_refused_size(refused, bytes)
            {
                *op = Op::Retry { bytes: refused };
            }
        }
    }

    fn take_empty(&mut self, address: u64) -> Option<Live> {
        // Returns early, because most traces have no blocks of zero bytes.
        if self.live_empty.is_empty() {
            return None;
        }
        let blocks = self.live_empty.get_mut(&address)?;
        let latest = blocks.pop();
        if blocks.is_empty() {
            self.live_empty.remove(&address);
        }
        latest
    }

    /// Counts one more event of the file.
    fn count_event(&mut self) -> Result<(), Error> {
        self.number = next_number(self.number as usize + 1)?;
        Ok(())
    }

    fn push(&mut self, at: At, stream: u32, op: Op) -> Result<(), Error> {
        self.time_ns = self.time_ns.max(at.time_ns);
        let thread = self.threads.number(at.thread)?;
        let Self { time_ns, number, .. } = *self;
        self.trace.events.push(Event { time_ns, stream, thread, stack: at.stack, number, op });
        Ok(())
    }
}
