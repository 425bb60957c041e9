//! Reader of captures.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::symbols::{Module, Symbols};
use crate::model::{MemoryKind, Odd, StackInterner};
use crate::source::{Source, read_error};
use crate::{
    At, Coverage, Error, Format, Place, ReadOptions, RecordedDevice, Recording, RecordingEnd,
    ThreadInfo, Trace, TraceBuilder, Warning, WarningKind,
};
use gpuheap_capture::{DecodeError, Deltas, MAGIC, Record, Time, VERSION};

/// Number that host memory has in place of a device.
const HOST: u64 = u64::MAX;

const AGAIN: &str = "record again with gpuheap run";

/// Reads a capture: one trace for each device with events, and one for host memory if the options
/// request it.
pub(crate) fn read(
    name: &str,
    mut source: Source<'_>,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).map_err(read_error)?;
    let records = check_header(&bytes)?;
    let mut capture = Capture::new(options);
    let mut input = records;
    let mut deltas = Deltas::default();
    let broken = loop {
        let offset = bytes.len() - input.len();
        let invalid = || {
            let error = Error::new("has an invalid record", "copy the file again, or record again");
            error.at(Place::Byte(offset as u64))
        };
        match Record::decode(&mut deltas, &mut input) {
            Ok(Some(record)) => {
                capture.add(record, offset as u64)?.then_some(()).ok_or_else(invalid)?;
            }
            Ok(None) => break source.damage().map(str::to_owned),
            Err(DecodeError::Cut) => {
                break Some(source.damage().unwrap_or("the last record is cut").to_owned());
            }
            Err(DecodeError::Invalid) => return Err(invalid()),
        }
    };
    let broken = broken.map(|reason| Warning {
        kind: WarningKind::BrokenOff(reason),
        count: 1,
        first: Place::Byte((bytes.len() - input.len()) as u64),
    });
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

/// Event that the file contains, with numbers that are checked.
#[derive(Clone, Copy)]
enum Action {
    Allocate {
        kind: MemoryKind,
        device: u32,
        address: u64,
        bytes: u64,
        stack: u32,
    },
    Free {
        space: u32,
        address: u64,
    },
    Fail {
        kind: MemoryKind,
        device: u32,
        bytes: u64,
        stack: u32,
    },
    /// Free that failed, so it is no event.
    Nothing,
}

struct Timed {
    time_ns: u64,
    thread: u32,
    stream: u64,
    offset: u64,
    action: Action,
}

/// Content of a capture that is read.
struct Capture<'a> {
    with_host: bool,
    recording: Recording,
    texts: Vec<&'a str>,
    threads: Vec<ThreadInfo>,
    frames: Vec<[u32; 3]>,
    /// Addresses, frames, and the number of modules that were recorded before.
    stacks: Vec<(Vec<u64>, Vec<u32>, usize)>,
    symbols: Symbols,
    events: Vec<Timed>,
    /// Index of the last free of each address.
    frees: FxHashMap<(u32, u64), usize>,
    /// Live allocations: device and bytes.
    live: FxHashMap<(u32, u64), (u32, u64)>,
    /// Live bytes by device.
    live_bytes: FxHashMap<u32, u64>,
}

impl<'a> Capture<'a> {
    fn new(options: &ReadOptions) -> Self {
        Self {
            with_host: options.host_memory,
            recording: Recording::default(),
            texts: Vec::new(),
            threads: Vec::new(),
            frames: Vec::new(),
            stacks: Vec::new(),
            symbols: Symbols::new(options.symbols),
            events: Vec::new(),
            frees: FxHashMap::default(),
            live: FxHashMap::default(),
            live_bytes: FxHashMap::default(),
        }
    }

    /// Adds a record. Returns `false` if it names a text, thread, frame or stack that no record
    /// before it defines.
    fn add(&mut self, record: Record<'a>, offset: u64) -> Result<bool, Error> {
        let mut event = None;
        match record {
            Record::Text { text } => self.texts.push(text),
            Record::Process { pid, parent, started_unix_ns, program, arguments } => {
                let arguments = arguments.split_terminator('\0').map(Arc::from).collect();
                let program = program.into();
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
                self.symbols.add(Module::new(path, build_id, start, end, base));
            }
            Record::Frame { function, file, line } => {
                if function.max(file) as usize > self.texts.len() {
                    return Ok(false);
                }
                self.frames.push([function, file, line]);
            }
            Record::Stack { addresses, frames } => {
                if frames.iter().any(|frame| (*frame as usize) > self.frames.len()) {
                    return Ok(false);
                }
                let loaded = self.symbols.len();
                self.stacks.push((addresses.into_owned(), frames.into_owned(), loaded));
            }
            Record::Device { ordinal, name, bytes } => {
                let name = name.into();
                let device =
                    RecordedDevice { ordinal, name, bytes, used_before: None, coverage: None };
                self.recording.devices.push(device);
            }
            Record::ThreadStart { time, id, name } => {
                self.note(time);
                let is_main = id == u64::from(self.recording.pid);
                self.threads.push(ThreadInfo { id, name: name.into(), is_main, ended_ns: None });
            }
            Record::ThreadEnd { time, thread, name } => {
                self.note(time);
                let Some(thread) = (thread as usize).checked_sub(1) else { return Ok(false) };
                let Some(thread) = self.threads.get_mut(thread) else { return Ok(false) };
                thread.ended_ns = Some(time.0);
                if !name.is_empty() {
                    thread.name = name.into();
                }
            }
            Record::Allocate { time, thread, kind, device, stream, address, bytes, stack } => {
                let key = (kind.space(), address.0);
                if let Some((device, bytes)) = self.live.insert(key, (device, bytes)) {
                    let sum = self.live_bytes.entry(device).or_default();
                    *sum = sum.saturating_sub(bytes);
                }
                let counted = if kind.counts_on_device() { bytes } else { 0 };
                self.live.insert(key, (device, counted));
                let sum = self.live_bytes.entry(device).or_default();
                // No device has so much memory that honest sums reach this limit.
                *sum = sum.saturating_add(counted);
                let address = address.0;
                let action = Action::Allocate { kind, device, address, bytes, stack };
                event = Some((time, thread, stream, stack, action));
            }
            Record::Free { time, thread, space, stream, address } => {
                if let Some((device, bytes)) = self.live.remove(&(space, address.0)) {
                    let sum = self.live_bytes.entry(device).or_default();
                    *sum = sum.saturating_sub(bytes);
                }
                self.frees.insert((space, address.0), self.events.len());
                let action = Action::Free { space, address: address.0 };
                event = Some((time, thread, stream, 0, action));
            }
            Record::FreeFailed { time, space, address } => {
                self.note(time);
                if let Some(index) = self.frees.remove(&(space, address.0)) {
                    self.events[index].action = Action::Nothing;
                }
            }
            Record::Fail { time, thread, kind, device, stream, bytes, stack, .. } => {
                let action = Action::Fail { kind, device, bytes, stack };
                event = Some((time, thread, stream, stack, action));
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
            Record::End { time, reason } => {
                self.note(time);
                self.recording.end = match reason {
                    "" => RecordingEnd::Exit,
                    reason => RecordingEnd::Stopped(reason.into()),
                };
            }
        }
        let Some((time, thread, stream, stack, action)) = event else { return Ok(true) };
        self.note(time);
        let is_known = thread as usize <= self.threads.len() && stack as usize <= self.stacks.len();
        self.events.push(Timed { time_ns: time.0, thread, stream, offset, action });
        Ok(is_known)
    }

    fn note(&mut self, time: Time) {
        self.recording.ended_ns = time.0;
    }

    fn finish(mut self, name: &str, broken: Option<Warning>) -> Result<Vec<Trace>, Error> {
        let stacks = self.resolve()?;
        let numbers = stacks.1;
        let stacks = Arc::new(stacks.0.finish());
        let recording = Arc::new(self.recording);
        let mut builders: BTreeMap<u64, Device> = BTreeMap::new();
        let mut owners: FxHashMap<(u32, u64), u64> = FxHashMap::default();
        let lane =
            |kind: MemoryKind, device: u32| if kind.is_host() { HOST } else { device.into() };
        for event in &self.events {
            let (stack, owner) = match event.action {
                Action::Nothing => continue,
                Action::Allocate { kind, device, address, stack, .. } => {
                    let owner = lane(kind, device);
                    owners.insert((kind.space(), address), owner);
                    (stack, owner)
                }
                Action::Fail { kind, device, stack, .. } => (stack, lane(kind, device)),
                Action::Free { space, address } => {
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
            device.add(at, event)?;
        }
        if !self.with_host {
            builders.remove(&HOST);
        }
        if builders.is_empty() {
            return Err(Error::new(
                "is a capture without an allocation of device memory",
                "the process allocated none, or was ended before",
            ));
        }
        let traces = builders.into_values().map(|mut device| {
            device.builder.set_stacks(Arc::clone(&stacks));
            device.builder.set_recording(Arc::clone(&recording), &self.threads);
            let unknown = device.unknown_frees.warning(WarningKind::UnknownFree);
            let lost = device.lost_frees.warning(WarningKind::LostFree);
            for warning in [broken.clone(), unknown, lost].into_iter().flatten() {
                device.builder.warn(warning);
            }
            device.builder.finish()
        });
        Ok(traces.collect())
    }

    /// Returns the stacks with names and lines, and the new number of each stack of the file.
    fn resolve(&mut self) -> Result<(StackInterner, Vec<u32>), Error> {
        let mut stacks = StackInterner::default();
        let mut numbers = vec![0];
        for (addresses, frames, loaded) in &self.stacks {
            let mut found = Vec::with_capacity(addresses.len() + frames.len());
            for address in addresses {
                self.symbols.append(*address, *loaded, &mut stacks, &mut found)?;
            }
            for frame in frames.iter().filter_map(|frame| (*frame as usize).checked_sub(1)) {
                let [function, file, line] = self.frames[frame];
                let text = |number: u32| match (number as usize).checked_sub(1) {
                    Some(at) => self.texts[at],
                    None => "",
                };
                let (function, file) = (stacks.text(text(function))?, stacks.text(text(file))?);
                found.push(stacks.frame(function, file, line)?);
            }
            numbers.push(stacks.stack(found)?);
        }
        Ok((stacks, numbers))
    }
}

/// Trace of one device that is built.
struct Device {
    builder: TraceBuilder,
    unknown_frees: Odd,
    lost_frees: Odd,
}

impl Device {
    fn new(name: &str, owner: u64) -> Self {
        let mut builder = TraceBuilder::new(name, Format::Capture);
        if let Ok(ordinal) = u32::try_from(owner) {
            builder.set_device(ordinal);
        }
        Self { builder, unknown_frees: Odd::default(), lost_frees: Odd::default() }
    }

    fn add(&mut self, at: At, event: &Timed) -> Result<(), Error> {
        let place = || Place::Byte(event.offset);
        match event.action {
            Action::Allocate { kind, address, bytes, .. } => {
                self.builder.set_kind(kind);
                // The process that exported the memory counts its bytes.
                let bytes = if kind == MemoryKind::Imported { 0 } else { bytes };
                if !self.builder.allocate(at, key(kind.space(), address), bytes)? {
                    self.lost_frees.count(place);
                }
            }
            Action::Free { space, address } => {
                if !self.builder.free(at, key(space, address), 1)? {
                    self.unknown_frees.count(place);
                }
            }
            Action::Fail { bytes, .. } => self.builder.fail(at, bytes)?,
            Action::Nothing => {}
        }
        Ok(())
    }
}

/// Returns the address of a block in a trace. The highest bits keep handles apart from pointers: no
/// pointer of CUDA uses them.
fn key(space: u32, address: u64) -> u64 {
    address ^ u64::from(space) << 60
}
