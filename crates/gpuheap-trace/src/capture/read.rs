//! Reader of captures.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;

use gpuheap_text::printable;
use rustc_hash::FxHashMap;

use super::event::{Action, Timed};
use super::pools::{self, Part};
use super::symbols::Symbols;
use crate::model::{MemoryKind, Odd, StackInterner};
use crate::source::{Source, read_error};
use crate::{
    At, Copies, CopyDirection, CopyMemory, Coverage, Error, Format, Place, Range, ReadOptions,
    RecordedDevice, Recording, RecordingEnd, Segment, ThreadInfo, Trace, TraceBuilder, Warning,
    WarningKind,
};
use gpuheap_capture::{DecodeError, Deltas, MAGIC, OPEN_RANGES, Record, Time, VERSION};

/// Device number of host memory.
const HOST: u64 = u64::MAX;

const AGAIN: &str = "record again with gpuheap run";

/// Exclusive upper bound of device ordinals. A driver lists at most 64 devices. Each device has a
/// trace, so without a bound a hostile file could request a trace for each of its events.
const DEVICES: u32 = 256;

/// Maximum number of native calls in a stack, and maximum number of interpreter frames. Recorders
/// write up to 64 calls and 48 frames.
const DEPTH: usize = 256;

/// Maximum number of ranges in a small capture. A larger file may have one more range for every two
/// bytes. The trace of each device has all ranges, so without a bound a hostile file of 1 MB could
/// have 28 million.
const RANGES: usize = 1 << 18;

/// Maximum number of arguments that are kept.
const ARGUMENTS: usize = 1000;

/// Maximum number of frames in all stacks of a small capture, inlined functions included.
const FRAMES: usize = 1 << 20;
/// Number by which each byte of a capture raises the maximum [`FRAMES`]. A call takes three bytes
/// or more, so each call allows 12 more frames. A call seldom has more than ten inlined functions.
const FRAMES_PER_BYTE: usize = 4;

/// Minimum number of bytes that are read from the file at a time.
const CHUNK: usize = 1 << 18;

/// Part of the file that is in memory.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    /// Place of the window in the file.
    offset: usize,
    is_last: bool,
}

impl Window {
    /// Drops the first `used` bytes, and reads more.
    fn advance(&mut self, used: usize, source: &mut Source<'_>) -> Result<(), Error> {
        self.bytes.drain(..used);
        self.offset += used;
        // Doubles the window if a record exceeds it, so that the record is whole after few reads.
        let more = self.bytes.len().max(CHUNK);
        let read = source.by_ref().take(more as u64).read_to_end(&mut self.bytes);
        self.is_last = read.map_err(read_error)? < more;
        Ok(())
    }

    /// Returns the offset of the window's end in the file.
    fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

/// Reads a capture. Returns a trace for each device with events, and a trace for host memory if the
/// options request it. Holds only a part of the file in memory.
pub(crate) fn read(
    name: &str,
    mut source: Source<'_>,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    let mut window = Window::default();
    window.advance(0, &mut source)?;
    let mut used = window.bytes.len() - check_header(&window.bytes)?.len();
    let mut capture = Capture::new(options);
    capture.allow(window.end());
    let mut deltas = Deltas::default();
    let broken = loop {
        let mut input = &window.bytes[used..];
        let offset = (window.offset + used) as u64;
        let before = deltas;
        let is_at_end = input.is_empty();
        let decoded = Record::decode(&mut deltas, &mut input);
        let is_partial = is_at_end || matches!(decoded, Err(DecodeError::Cut));
        if is_partial && !window.is_last {
            deltas = before;
            window.advance(std::mem::take(&mut used), &mut source)?;
            capture.allow(window.end());
            continue;
        }
        let invalid = || {
            let error = Error::new("has an invalid record", "copy the file again, or record again");
            error.at(Place::Byte(offset))
        };
        match decoded {
            Ok(Some(record)) => {
                capture.add(record, offset)?.then_some(()).ok_or_else(invalid)?;
                used = window.bytes.len() - input.len();
            }
            Ok(None) => break source.damage().map(|reason| (reason.to_owned(), offset)),
            Err(DecodeError::Cut) => {
                let reason = source.damage().unwrap_or("the last record is cut").to_owned();
                break Some((reason, window.end() as u64));
            }
            Err(DecodeError::Invalid) => return Err(invalid()),
        }
    };
    let broken = broken.map(|(reason, offset)| Warning {
        kind: WarningKind::BrokenOff(reason),
        count: 1,
        first: Place::Byte(offset),
    });
    drop(window);
    capture.finish(name, broken)
}

/// Returns the records after the header.
fn check_header(bytes: &[u8]) -> Result<&[u8], Error> {
    let after = bytes.strip_prefix(&MAGIC).ok_or_else(|| {
        Error::new("begins as a capture of gpuheap, but its header is damaged", AGAIN)
    })?;
    let (version, records) = after
        .split_first_chunk()
        .ok_or_else(|| Error::new("ends within the header of a capture", AGAIN))?;
    match u16::from_le_bytes(*version) {
        VERSION => Ok(records),
        version => Err(Error::new(
            format!(
                "is a capture of format {version}, and this version of gpuheap reads format {VERSION}"
            ),
            "update gpuheap, or record again with this version",
        )),
    }
}

/// Range that the program named. `start` and `end` are indices of events.
struct OpenRange {
    thread: u32,
    name: Arc<str>,
    start: usize,
    end: usize,
    /// Place in the file.
    offset: u64,
}

struct RecordedStack {
    /// Numbers of calls in the capture's symbols.
    calls: Box<[u32]>,
    /// Numbers of frames in the capture's interner.
    frames: Box<[u32]>,
}

/// Content of a capture, collected while the file is read.
struct Capture {
    with_host: bool,
    with_pools: bool,
    recording: Recording,
    threads: Vec<ThreadInfo>,
    /// Numbers that `interner` gave the texts and frames of the file.
    texts: Vec<u32>,
    frames: Vec<u32>,
    interner: StackInterner,
    stacks: Vec<RecordedStack>,
    most_frames: usize,
    symbols: Symbols,
    events: Vec<Timed>,
    /// Ranges, indexed by their numbers; `None` for a range that is left out.
    ranges: Vec<Option<OpenRange>>,
    open_ranges: usize,
    lost_ranges: Odd,
    most_ranges: usize,
    /// Latest record for each combination of a kind of copies and a stack.
    copies: BTreeMap<(CopyDirection, CopyMemory, bool, u32), Copies>,
    /// Index of the last free of each address.
    frees: FxHashMap<(u32, u64), usize>,
    /// Live allocations: device and bytes.
    live: FxHashMap<(u32, u64), (u32, u64)>,
    live_bytes: FxHashMap<u32, u64>,
}

impl Capture {
    fn new(options: &ReadOptions) -> Self {
        Self {
            with_host: options.host_memory,
            with_pools: options.pools,
            recording: Recording::default(),
            threads: Vec::new(),
            texts: Vec::new(),
            frames: Vec::new(),
            interner: StackInterner::default(),
            stacks: Vec::new(),
            most_frames: FRAMES,
            symbols: Symbols::new(options.symbols),
            events: Vec::new(),
            ranges: Vec::new(),
            open_ranges: 0,
            lost_ranges: Odd::default(),
            most_ranges: RANGES,
            copies: BTreeMap::new(),
            frees: FxHashMap::default(),
            live: FxHashMap::default(),
            live_bytes: FxHashMap::default(),
        }
    }

    /// Bounds the memory in proportion to the bytes read so far.
    fn allow(&mut self, bytes: usize) {
        self.most_frames = FRAMES.saturating_add(bytes.saturating_mul(FRAMES_PER_BYTE));
        self.most_ranges = RANGES.saturating_add(bytes / 2);
        self.symbols.allow(bytes);
    }

    /// Adds a record. Returns `false` if the record is invalid, because it refers to an undefined
    /// text, thread, frame or stack, or has an impossible number.
    fn add(&mut self, record: Record<'_>, offset: u64) -> Result<bool, Error> {
        let mut event = None;
        match record {
            Record::Text { text } => self.texts.push(self.interner.text(text)?),
            Record::Process { pid, parent, started_unix_ns, program, arguments } => {
                let arguments = arguments.split_terminator('\0').take(ARGUMENTS);
                let arguments = arguments.map(name_of).collect();
                let program = name_of(program);
                let known = Recording {
                    pid,
                    parent,
                    program,
                    arguments,
                    started_unix_ns,
                    ..Recording::default()
                };
                self.recording = known;
            }
            Record::Module { path, build_id, start, end, base } => {
                self.symbols.load(path, build_id, start..end, base)?;
            }
            Record::Frame { function, file, line } => {
                let empty = self.interner.text("")?;
                let text = |number| numbered(&self.texts, number, empty);
                let (Some(function), Some(file)) = (text(function), text(file)) else {
                    return Ok(false);
                };
                self.frames.push(self.interner.frame(function, file, line)?);
            }
            Record::Stack { addresses, frames } => {
                if addresses.len().max(frames.len()) > DEPTH {
                    return Ok(false);
                }
                let calls = addresses.iter().map(|address| self.symbols.call(*address));
                let calls = calls.collect::<Result<_, Error>>()?;
                let frames = frames.iter().filter(|frame| **frame > 0);
                let frames = frames.map(|frame| numbered(&self.frames, *frame, 0));
                let Some(frames) = frames.collect() else { return Ok(false) };
                self.stacks.push(RecordedStack { calls, frames });
            }
            Record::Device { ordinal, name, bytes } => {
                if ordinal >= DEVICES {
                    return Ok(false);
                }
                let name = name_of(name);
                let (limit, used_before, coverage) = (None, None, None);
                let device = RecordedDevice { ordinal, name, bytes, limit, used_before, coverage };
                self.recording.devices.retain(|known| known.ordinal != ordinal);
                self.recording.devices.push(device);
            }
            Record::Limit { device, bytes } => {
                let mut devices = self.recording.devices.iter_mut();
                let known = devices.find(|known| known.ordinal == device);
                known.into_iter().for_each(|known| known.limit = Some(bytes));
            }
            Record::ThreadStart { time, id, name } => {
                self.note(time);
                let is_main = id == u64::from(self.recording.pid);
                let name = name_of(name);
                self.threads.push(ThreadInfo {
                    id,
                    is_id_reused: false,
                    started_ns: time.0,
                    name,
                    is_main,
                    ended_ns: None,
                });
            }
            Record::ThreadEnd { time, thread, name } => {
                self.note(time);
                let Some(thread) = (thread as usize).checked_sub(1) else { return Ok(false) };
                let Some(thread) = self.threads.get_mut(thread) else { return Ok(false) };
                thread.ended_ns = Some(time.0);
                if !name.is_empty() {
                    thread.name = name_of(name);
                }
            }
            Record::Allocate { time, thread, kind, device, stream, address, bytes, stack } => {
                if device >= DEVICES {
                    return Ok(false);
                }
                let counted = if kind.counts_on_device() { bytes } else { 0 };
                self.add_live((kind.space(), address.0), device, counted);
                let address = address.0;
                let action = Action::Allocate { kind, device, address, bytes, stack };
                event = Some((time, thread, stream, stack, action));
            }
            Record::Free { time, thread, space, stream, address } => {
                let freed = self.release((space, address.0));
                self.frees.insert((space, address.0), self.events.len());
                let action = Action::Free { space, address: address.0, freed };
                event = Some((time, thread, stream, 0, action));
            }
            Record::FreeFailed { time, space, address } => {
                self.note(time);
                let key = (space, address.0);
                if let Some(index) = self.frees.remove(&key) {
                    let free = std::mem::replace(&mut self.events[index].action, Action::Nothing);
                    if let Action::Free { freed: Some((device, bytes)), .. } = free {
                        self.add_live(key, device, bytes);
                    }
                }
            }
            Record::Fail { time, thread, kind, device, stream, bytes, stack, .. } => {
                if device >= DEVICES {
                    return Ok(false);
                }
                let action = Action::Fail { kind, device, bytes, stack };
                event = Some((time, thread, stream, stack, action));
            }
            Record::Folded { time, thread, kind, device, stack, count, bytes, largest } => {
                if device >= DEVICES {
                    return Ok(false);
                }
                let (count, bytes, largest) = (count.0, bytes.0, largest.0);
                let action = Action::Folded { kind, device, stack, count, bytes, largest };
                event = Some((time, thread, 0, stack, action));
            }
            Record::DriverMemory { time, device, free, total } => {
                self.note(time);
                let recorded = self.live_bytes.get(&device).copied().unwrap_or(0);
                let mut devices = self.recording.devices.iter_mut();
                if let Some(device) = devices.find(|known| known.ordinal == device) {
                    let used = total.saturating_sub(free);
                    device.used_before.get_or_insert(used);
                    device.coverage = Some(Coverage { used, recorded });
                }
            }
            Record::RangeStart { time, thread, name } => {
                self.note(time);
                let empty = self.interner.text("")?;
                let name = numbered(&self.texts, name, empty);
                let name = name.and_then(|name| self.interner.text_of(name));
                let Some(name) = name else { return Ok(false) };
                if thread as usize > self.threads.len() {
                    return Ok(false);
                }
                if self.open_ranges == OPEN_RANGES {
                    self.lost_ranges.count(|| Place::Byte(offset));
                    self.ranges.push(None);
                } else {
                    self.open_ranges += 1;
                    let (start, end) = (self.events.len(), usize::MAX);
                    self.ranges.push(Some(OpenRange { thread, name, start, end, offset }));
                }
            }
            Record::RangeEnd { time, range } => {
                self.note(time);
                // Only a range's first end counts: a child made by a raw `clone` may end it again.
                let range = (range as usize).checked_sub(1).and_then(|at| self.ranges.get_mut(at));
                if let Some(Some(range)) = range {
                    self.open_ranges -= usize::from(range.end == usize::MAX);
                    range.end = range.end.min(self.events.len());
                }
            }
            Record::LostRanges { count } => {
                self.lost_ranges.add(count, || Place::Byte(offset));
            }
            Record::Copies {
                time,
                direction,
                memory,
                is_async,
                stack,
                count,
                bytes,
                call_ns,
                repeated,
                repeated_bytes,
            } => {
                self.note(time);
                if stack as usize > self.stacks.len() {
                    return Ok(false);
                }
                let is_async = is_async != 0;
                self.copies.insert(
                    (direction, memory, is_async, stack),
                    Copies {
                        direction,
                        memory,
                        is_async,
                        stack,
                        count,
                        bytes,
                        call_ns,
                        repeated,
                        repeated_bytes,
                    },
                );
            }
            Record::Map { time, address, bytes, handle } => {
                let action = Action::Map { address: address.0, bytes, handle };
                event = Some((time, 0, 0, 0, action));
            }
            Record::Unmap { time, address, bytes } => {
                let action = Action::Unmap { address: address.0, bytes };
                event = Some((time, 0, 0, 0, action));
            }
            Record::End { time, reason } => {
                self.note(time);
                self.recording.end = match reason {
                    "" => RecordingEnd::Exit,
                    reason => RecordingEnd::Stopped(name_of(reason)),
                };
            }
        }
        let Some((time, thread, stream, stack, action)) = event else { return Ok(true) };
        self.note(time);
        let is_known = thread as usize <= self.threads.len() && stack as usize <= self.stacks.len();
        self.events.push(Timed { time_ns: time.0, thread, stream, offset, action });
        Ok(is_known)
    }

    /// Counts live memory of the device.
    fn add_live(&mut self, key: (u32, u64), device: u32, bytes: u64) {
        self.release(key);
        self.live.insert(key, (device, bytes));
        let sum = self.live_bytes.entry(device).or_default();
        // Saturates, because only a hostile file has sums of 2^64 bytes.
        *sum = sum.saturating_add(bytes);
    }

    /// Removes live memory. Returns its device and bytes; `None` if no such memory was live.
    fn release(&mut self, key: (u32, u64)) -> Option<(u32, u64)> {
        let (device, bytes) = self.live.remove(&key)?;
        let sum = self.live_bytes.entry(device).or_default();
        *sum = sum.saturating_sub(bytes);
        Some((device, bytes))
    }

    fn note(&mut self, time: Time) {
        self.recording.ended_ns = time.0;
    }

    fn finish(mut self, name: &str, broken: Option<Warning>) -> Result<Vec<Trace>, Error> {
        // The traces do not need these tables.
        self.live = FxHashMap::default();
        self.frees = FxHashMap::default();
        let numbers = self.resolve()?;
        let stacks = Arc::new(self.interner.finish());
        self.recording.copies = self.copies.into_values().collect();
        for copies in &mut self.recording.copies {
            copies.stack = numbers.get(copies.stack as usize).copied().unwrap_or(0);
        }
        let recording = Arc::new(self.recording);
        let mut of_ids: FxHashMap<u64, u32> = FxHashMap::default();
        for thread in &self.threads {
            *of_ids.entry(thread.id).or_default() += 1;
        }
        for thread in &mut self.threads {
            thread.is_id_reused = of_ids[&thread.id] > 1;
        }
        let threads: Arc<[ThreadInfo]> = self.threads.into();
        let mut builders: BTreeMap<u64, Device> = BTreeMap::new();
        let mut owners: FxHashMap<(u32, u64), u64> = FxHashMap::default();
        let lane =
            |kind: MemoryKind, device: u32| if kind.is_host() { HOST } else { device.into() };
        let parts = if self.with_pools { pools::split(&self.events) } else { Vec::new() };
        for (index, event) in self.events.iter().enumerate() {
            let (stack, owner) = match event.action {
                Action::Nothing | Action::Map { .. } | Action::Unmap { .. } => continue,
                Action::Allocate { kind, .. } if kind.is_pooled() && !self.with_pools => continue,
                Action::Folded { kind, .. } if kind.is_pooled() && !self.with_pools => continue,
                Action::Free { space, .. } if space > 3 && !self.with_pools => continue,
                _ if parts.get(index) == Some(&Part::Nested) => continue,
                Action::Allocate { kind, device, address, stack, .. } => {
                    let owner = lane(kind, device);
                    owners.insert((kind.space(), address), owner);
                    (stack, owner)
                }
                Action::Fail { kind, device, stack, .. }
                | Action::Folded { kind, device, stack, .. } => (stack, lane(kind, device)),
                Action::Free { space, address, .. } => {
                    let first = builders.keys().next().copied().unwrap_or(0);
                    (0, owners.remove(&(space, address)).unwrap_or(first))
                }
            };
            let at = At {
                time_ns: event.time_ns,
                stream: event.stream,
                thread: u64::from(event.thread),
                stack: numbers.get(stack as usize).copied().unwrap_or(0),
            };
            let device = builders.entry(owner).or_insert_with(|| Device::new(name, owner));
            if !self.ranges.is_empty() {
                device.starts.push((index, device.builder.event_count()));
            }
            match (parts.get(index), event.action) {
                (Some(Part::Segment(start)), Action::Allocate { kind, address, bytes, .. }) => {
                    device.take_segment(at, (kind.space(), address), *start, bytes)?;
                }
                _ => device.add(at, event)?,
            }
        }
        let ranges: Vec<_> = self.ranges.into_iter().flatten().collect();
        if !self.with_host {
            builders.remove(&HOST);
        }
        if builders.is_empty() {
            return Err(Error::new(
                "is a capture without an allocation of device memory",
                "the process allocated none, or was ended before",
            ));
        }
        let each_has = self.most_ranges / builders.len();
        let beyond = ranges.get(each_has..).unwrap_or_default();
        beyond.iter().for_each(|range| self.lost_ranges.count(|| Place::Byte(range.offset)));
        let lost_ranges = self.lost_ranges.warning(WarningKind::LostRange);
        let traces = builders.into_values().map(|mut device| {
            device.builder.set_segments(device.segments.drain().map(|(_, held)| held).collect());
            device.builder.set_stacks(Arc::clone(&stacks));
            device.builder.set_recording(Arc::clone(&recording), Arc::clone(&threads));
            for range in ranges.iter().take(each_has) {
                let events = device.first_from(range.start)..device.first_from(range.end);
                let named = Range { name: Arc::clone(&range.name), thread: None, events };
                device.builder.add_range(range.thread.into(), named)?;
            }
            let unknown = device.unknown_frees.warning(WarningKind::UnknownFree);
            let lost = device.lost_frees.warning(WarningKind::LostFree);
            let folded = device.folded.warning(WarningKind::Folded);
            let warnings = [broken.clone(), lost_ranges.clone(), unknown, lost, folded];
            for warning in warnings.into_iter().flatten() {
                device.builder.warn(warning);
            }
            Ok(device.builder.finish())
        });
        traces.collect()
    }

    /// Looks up the names and lines of calls. Returns the interner's number of each stack.
    fn resolve(&mut self) -> Result<Vec<u32>, Error> {
        let symbols = std::mem::replace(&mut self.symbols, Symbols::new(false));
        let of_calls = symbols.resolve(&mut self.interner)?;
        let mut numbers = vec![0];
        let mut count = 0;
        for RecordedStack { calls, frames } in std::mem::take(&mut self.stacks) {
            let mut found = Vec::new();
            let mut module = None;
            for call in calls {
                let call = &of_calls[call as usize];
                found.extend_from_slice(&call.frames);
                module = module.or(call.module.as_ref());
            }
            found.extend_from_slice(&frames);
            count += found.len();
            if count > self.most_frames {
                return Err(Error::new(
                    format!("has stacks of more than {} frames in all", self.most_frames),
                    "record again with gpuheap run --no-stacks",
                ));
            }
            let stack = self.interner.stack(found)?;
            if let Some(module) = module {
                self.interner.set_module(stack, module);
            }
            numbers.push(stack);
        }
        Ok(numbers)
    }
}

/// Returns a name without its control characters.
fn name_of(text: &str) -> Arc<str> {
    printable(text).into()
}

/// Returns the item with this number, counted from 1. For number 0, returns `zeroth`.
fn numbered(items: &[u32], number: u32, zeroth: u32) -> Option<u32> {
    match number.checked_sub(1) {
        None => Some(zeroth),
        Some(index) => items.get(index as usize).copied(),
    }
}

/// Trace of one device, while it is built.
struct Device {
    builder: TraceBuilder,
    /// One pair for each event of the device: the event's index in the file, and the index of the
    /// first trace event made from it. Empty if the file has no ranges.
    starts: Vec<(usize, usize)>,
    unknown_frees: Odd,
    lost_frees: Odd,
    folded: Odd,
    /// Segments, keyed by the address space and address of the driver's allocation.
    segments: FxHashMap<(u32, u64), Segment>,
}

impl Device {
    fn new(name: &str, owner: u64) -> Self {
        let mut builder = TraceBuilder::new(name, Format::Capture);
        if let Ok(ordinal) = u32::try_from(owner) {
            builder.set_device(ordinal);
        }
        Self {
            builder,
            starts: Vec::new(),
            unknown_frees: Odd::default(),
            lost_frees: Odd::default(),
            folded: Odd::default(),
            segments: FxHashMap::default(),
        }
    }

    /// Returns the index of the first trace event that was made from the event with index `event`
    /// in the file, or from a later one.
    fn first_from(&self, event: usize) -> usize {
        let at = self.starts.partition_point(|(index, _)| *index < event);
        self.starts.get(at).map_or(self.builder.event_count(), |(_, first)| *first)
    }

    /// Adds a segment. A segment is driver memory that contains blocks of a pool.
    fn take_segment(
        &mut self,
        at: At,
        key: (u32, u64),
        address: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        /// Size of PyTorch's segments for small blocks.
        const SMALL: u64 = 2 << 20;
        let is_small = bytes <= SMALL;
        let is_expandable = key.0 == MemoryKind::Physical.space();
        let (stream, pool) = (at.stream, (0, 0));
        let segment = Segment { address, bytes, stream, is_small, is_expandable, pool };
        self.segments.insert(key, segment);
        self.builder.mark_retries(at, bytes);
        self.builder.segment_taken(at, address, bytes)
    }

    fn add(&mut self, at: At, event: &Timed) -> Result<(), Error> {
        let place = || Place::Byte(event.offset);
        match event.action {
            Action::Allocate { kind, address, bytes, .. } => {
                self.builder.set_kind(kind);
                // Imported memory counts in the process that exported it.
                let bytes = if kind == MemoryKind::Imported { 0 } else { bytes };
                if !self.builder.allocate(at, key(kind.space(), address), bytes)? {
                    self.lost_frees.count(place);
                }
            }
            Action::Free { space, address, .. } => {
                if let Some(Segment { address, bytes, .. }) =
                    self.segments.remove(&(space, address))
                {
                    return self.builder.segment_given_back(at, address, bytes);
                }
                if !self.builder.free(at, key(space, address), 1)? {
                    self.unknown_frees.count(place);
                }
            }
            Action::Fail { bytes, .. } => self.builder.fail(at, bytes)?,
            Action::Folded { kind, count, bytes, largest, .. } => {
                self.folded.add(count, place);
                self.builder.fold(at, kind, count, bytes, largest)?;
            }
            Action::Map { .. } | Action::Unmap { .. } | Action::Nothing => {}
        }
        Ok(())
    }
}

/// Returns the address that a block has in the trace. The highest four bits hold the address space,
/// so that no handle equals a pointer. CUDA pointers do not use these bits.
fn key(space: u32, address: u64) -> u64 {
    // Only handles and imported pointers (spaces 1 to 3) may equal a pointer. Spaces above 3 hold
    // blocks of pools, and their addresses are driver pointers, as in space 0.
    address ^ u64::from(if space > 3 { 0 } else { space }) << 60
}
