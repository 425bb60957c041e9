//! Reader of memory snapshots. It makes one [`Trace`] for each device.

use std::sync::Arc;

use super::at_end::{AtEnd, Block, read_at_end};
use super::before::blocks_before;
use super::entry::{Action, Entries, Entry};
use super::entry_dict::read_dict;
use super::frames::Frames;
use super::keys;
use super::pickle::{self, Pickle};
use super::plain::{Path, Plain};
use super::settings;
use super::value::Value;
use crate::error::escape;
use crate::model::Odd;
use crate::source::Source;
use crate::{At, Error, Format, Place, ReadOptions, Trace, TraceBuilder, WarningKind};

/// Reads a snapshot. Returns a trace for each device with events, in order of the devices.
pub(crate) fn read(
    name: &str,
    source: Source<'_>,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    let limit = options.unpacked_limit;
    let (source, result) = match pickle::read(source, limit) {
        Ok(Pickle { value, heap, len, source }) => (source, Ok((value, heap, len))),
        Err((source, error)) => (source, Err(error)),
    };
    if let Some(reason) = source.damage() {
        return Err(Error::new(
            format!("the gzip data breaks off ({reason}), and part of a snapshot cannot be read"),
            "copy the file again, or record again",
        ));
    }
    let (value, mut heap, len) = result?;
    let mut entries = heap.take_entries();
    let plain = Plain::new(&heap, len, limit);
    read_devices(name, &plain, &mut entries, value, options.recorded_only)
}

fn read_devices(
    name: &str,
    plain: &Plain<'_>,
    entries: &mut Entries,
    snapshot: Value,
    recorded_only: bool,
) -> Result<Vec<Trace>, Error> {
    let keys = ["device_traces", "segments", "allocator_settings"];
    let [traces, segments, settings] = plain.fields(snapshot, &Path::TOP, keys)?;
    let mut frames = Frames::default();
    let mut builders = Vec::new();

    let traces_path = traces.path();
    let mut devices = Vec::new();
    for (device, list) in traces.list()?.iter().enumerate() {
        let path = traces_path.index(device);
        let device = Device::read(plain, entries, &mut frames, list.value(), &path, device)?;
        if device.first_us.is_some() {
            devices.push(device);
        }
    }
    if devices.is_empty() {
        return Err(Error::new(
            "holds no allocation events",
            "call torch.cuda.memory._record_memory_history() before what is to be recorded",
        )
        .at(traces_path.place()));
    }
    let settings = settings.optional(settings::read)?;
    let AtEnd { mut blocks, mut segments } = if recorded_only {
        AtEnd::default()
    } else {
        read_at_end(plain, &mut frames, segments.required()?, &segments.path())?
    };
    blocks.sort_by_key(|&(device, _)| device);
    segments.sort_by_key(|&(device, _)| device);
    for device in devices {
        let index = device.index as u64;
        let start = blocks.partition_point(|&(other, _)| other < index);
        let of_device = blocks[start..].iter().take_while(|&&(other, _)| other == index);
        let at_end = of_device.map(|&(_, block)| block);
        let stack = |entry: &Entry| match entry.frames {
            Entry::NO_FRAMES => 0,
            list => frames.known(plain, Value::List(list)).unwrap_or(0),
        };
        let mut builder = device.build(name, entries, stack, at_end, recorded_only)?;
        let start = segments.partition_point(|&(other, _)| other < index);
        let of_device = segments[start..].iter().take_while(|&&(other, _)| other == index);
        builder.set_segments(of_device.map(|&(_, segment)| segment).collect());
        if let Some(settings) = &settings {
            builder.set_allocator(settings.clone());
        }
        builders.push(builder);
    }

    let keys = keys::compare(plain, entries, snapshot);
    let stacks = Arc::new(frames.finish());
    Ok(builders
        .into_iter()
        .map(|mut builder| {
            builder.set_stacks(Arc::clone(&stacks));
            builder.set_keys(keys.clone());
            builder.finish()
        })
        .collect())
}

/// Records of one device in the snapshot.
struct Device {
    index: usize,
    /// Indices of the device's entries (events) in [`Entries`], in the snapshot's order.
    entries: Vec<u32>,
    /// Time of the first event; `None` if the device has only marks (they change no memory).
    first_us: Option<u64>,
    unknown_actions: Odd,
    first_unknown_action: String,
}

impl Device {
    fn read(
        plain: &Plain<'_>,
        entries: &mut Entries,
        frames: &mut Frames,
        list: Value,
        path: &Path<'_>,
        index: usize,
    ) -> Result<Self, Error> {
        let items = plain.list(list, path)?;
        let mut device = Self {
            index,
            entries: Vec::with_capacity(items.len()),
            first_us: None,
            unknown_actions: Odd::default(),
            first_unknown_action: String::new(),
        };
        for (at, item) in items.iter().enumerate() {
            let path = path.index(at);
            let number = match plain.entry(item.value(), &path)? {
                Some(number) => number,
                None => {
                    let (number, unknown) = read_dict(plain, entries, item.value(), &path)?;
                    if let Some(action) = unknown {
                        device.unknown_actions.count(|| {
                            device.first_unknown_action = escape(action);
                            entry_place(index, at)
                        });
                    }
                    number
                }
            };
            let entry = entries.get(number);
            if entry.frames != Entry::NO_FRAMES {
                frames.stack(plain, Value::List(entry.frames), &path.key("frames"))?;
            }
            if entry.action != Action::Note && device.first_us.is_none() {
                device.first_us = Some(entry.time_us);
            }
            device.entries.push(number);
        }
        Ok(device)
    }

    fn build(
        self,
        name: &str,
        all_entries: &Entries,
        stack: impl Fn(&Entry) -> u32,
        at_end: impl Iterator<Item = Block>,
        recorded_only: bool,
    ) -> Result<TraceBuilder, Error> {
        let mut builder = TraceBuilder::new(name, Format::PytorchSnapshot);
        builder.set_device(u32::try_from(self.index).unwrap_or(u32::MAX));
        let entries = || self.entries.iter().map(|&number| all_entries.get(number));
        if !recorded_only {
            for block in blocks_before(entries(), at_end) {
                let at = At { time_ns: 0, stream: block.stream, thread: 0, stack: block.stack };
                builder.allocate(at, block.address, block.bytes)?;
                if block.pending {
                    builder.free(at, block.address, block.bytes)?;
                }
            }
        }
        builder.begin_recording();
        let (mut unknown_frees, mut lost_frees) = (Odd::default(), Odd::default());
        let first_us = self.first_us.unwrap_or(0);
        for (index, entry) in entries().enumerate() {
            let place = || entry_place(self.index, index);
            let at = At {
                time_ns: entry.time_us.saturating_sub(first_us).saturating_mul(1000),
                stream: entry.stream,
                thread: 0,
                stack: stack(entry),
            };
            match entry.action {
                Action::Alloc => {
                    builder.set_pool(all_entries.pool(entry))?;
                    if !builder.allocate(at, entry.address, entry.bytes)? {
                        lost_frees.count(place);
                    }
                }
                Action::FreeRequested => {
                    if !builder.free(at, entry.address, entry.bytes)? && !recorded_only {
                        unknown_frees.count(place);
                    }
                }
                Action::FreeCompleted => {
                    builder.free_completed(at, entry.address)?;
                }
                Action::OutOfMemory => {
                    builder.fail(at, entry.bytes)?;
                    if entry.address != Entry::UNKNOWN_FREE {
                        builder.set_device_free(entry.address);
                    }
                }
                Action::SegmentTaken => builder.segment_taken(at, entry.address, entry.bytes)?,
                Action::SegmentGivenBack => {
                    builder.segment_given_back(at, entry.address, entry.bytes)?;
                }
                Action::Note => {}
            }
        }
        let warnings = [
            self.unknown_actions.warning(WarningKind::UnknownAction(self.first_unknown_action)),
            unknown_frees.warning(WarningKind::UnknownFree),
            lost_frees.warning(WarningKind::LostFree),
        ];
        for warning in warnings.into_iter().flatten() {
            builder.warn(warning);
        }
        Ok(builder)
    }
}

fn entry_place(device: usize, index: usize) -> Place {
    Place::Item(format!("device_traces[{device}][{index}]"))
}
