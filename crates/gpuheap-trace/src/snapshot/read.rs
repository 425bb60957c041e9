//! Reads a memory snapshot into one [`Trace`] for each device.

use std::sync::Arc;

use super::before::blocks_before;
use super::entry::{Action, ActionText, AtEnd, Block, Entry, read_at_end};
use super::frames::Frames;
use super::heap::Value;
use super::keys;
use super::pickle;
use super::plain::{Path, Plain};
use super::settings;
use crate::error::escape;
use crate::model::Odd;
use crate::source::Source;
use crate::{At, Error, Format, Place, ReadOptions, Trace, TraceBuilder, WarningKind};

/// Reads a snapshot: the devices that have events, in their order.
pub(crate) fn read(
    name: &str,
    mut source: Source<'_>,
    options: &ReadOptions,
) -> Result<Vec<Trace>, Error> {
    let input = source.read_all()?;
    if let Some(reason) = source.damage() {
        return Err(Error::new(
            format!("the gzip data breaks off ({reason}), and part of a snapshot cannot be read"),
            "copy the file again, or record again",
        ));
    }
    let (value, heap) = pickle::read(&input, options.unpacked_limit)?;
    let plain = Plain::new(&heap, input.len(), options.unpacked_limit);
    read_devices(name, &plain, value, options.recorded_only)
}

fn read_devices(
    name: &str,
    plain: &Plain<'_, '_>,
    snapshot: Value,
    recorded_only: bool,
) -> Result<Vec<Trace>, Error> {
    const TRACES: usize = 0;
    const SEGMENTS: usize = 1;
    const SETTINGS: usize = 2;
    let keys = ["device_traces", "segments", "allocator_settings"];
    let fields = plain.fields(snapshot, &Path::TOP, keys)?;
    let mut frames = Frames::default();
    let mut builders = Vec::new();

    let traces = fields.path(TRACES);
    let mut devices = Vec::new();
    for (device, &entries) in plain.list(fields.required(TRACES)?, &traces)?.iter().enumerate() {
        let device = Device::read(plain, &mut frames, entries, &traces, device)?;
        if !device.entries.is_empty() {
            devices.push(device);
        }
    }
    if devices.is_empty() {
        return Err(Error::new(
            "holds no allocation events",
            "call torch.cuda.memory._record_memory_history() before what is to be recorded",
        )
        .at(traces.place()));
    }
    let settings = match fields.optional(SETTINGS) {
        Some(settings) => Some(settings::read(plain, settings, &fields.path(SETTINGS))?),
        None => None,
    };
    let AtEnd { mut blocks, mut segments } = if recorded_only {
        AtEnd::default()
    } else {
        read_at_end(plain, &mut frames, fields.required(SEGMENTS)?, &fields.path(SEGMENTS))?
    };
    blocks.sort_by_key(|&(device, _)| device);
    segments.sort_by_key(|&(device, _)| device);
    for device in devices {
        let index = device.index as u64;
        let start = blocks.partition_point(|&(other, _)| other < index);
        let of_device = blocks[start..].iter().take_while(|&&(other, _)| other == index);
        let at_end = of_device.map(|&(_, block)| block);
        let mut builder = device.build(name, at_end, recorded_only)?;
        let start = segments.partition_point(|&(other, _)| other < index);
        let of_device = segments[start..].iter().take_while(|&&(other, _)| other == index);
        builder.set_segments(of_device.map(|&(_, segment)| segment).collect());
        if let Some(settings) = &settings {
            builder.set_allocator(settings.clone());
        }
        builders.push(builder);
    }

    let keys = keys::compare(plain, snapshot);
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

/// What the snapshot recorded of one device.
struct Device {
    index: usize,
    entries: Vec<Entry>,
    /// Of each entry, its index in the snapshot's list.
    indices: Vec<usize>,
    unknown_actions: Odd,
    first_unknown_action: String,
}

impl Device {
    fn read(
        plain: &Plain<'_, '_>,
        frames: &mut Frames,
        entries: Value,
        traces: &Path<'_>,
        index: usize,
    ) -> Result<Self, Error> {
        let path = traces.index(index);
        let mut device = Self {
            index,
            entries: Vec::new(),
            indices: Vec::new(),
            unknown_actions: Odd::default(),
            first_unknown_action: String::new(),
        };
        for (index, &entry) in plain.list(entries, &path)?.iter().enumerate() {
            match Entry::read(plain, frames, entry, &path.index(index))? {
                Ok(entry) => {
                    device.entries.push(entry);
                    device.indices.push(index);
                }
                Err(ActionText::Unknown(action)) => device.unknown_actions.seen(|| {
                    device.first_unknown_action = escape(action);
                    entry_place(device.index, index)
                }),
                Err(_) => {}
            }
        }
        Ok(device)
    }

    fn build(
        self,
        name: &str,
        at_end: impl Iterator<Item = Block>,
        recorded_only: bool,
    ) -> Result<TraceBuilder, Error> {
        let mut builder = TraceBuilder::new(name, Format::PytorchSnapshot);
        builder.set_device(u32::try_from(self.index).unwrap_or(u32::MAX));
        if !recorded_only {
            for block in blocks_before(&self.entries, at_end) {
                let at = At { time_ns: 0, stream: block.stream, thread: 0, stack: block.stack };
                builder.allocate(at, block.address, block.bytes)?;
                if block.pending {
                    builder.free(at, block.address, block.bytes)?;
                }
            }
        }
        builder.begin_recording();
        let (mut unknown_frees, mut lost_frees) = (Odd::default(), Odd::default());
        let first_us = self.entries.first().map_or(0, |entry| entry.time_us);
        for (entry, &index) in self.entries.iter().zip(&self.indices) {
            let place = || entry_place(self.index, index);
            let at = At {
                time_ns: entry.time_us.saturating_sub(first_us).saturating_mul(1000),
                stream: entry.stream,
                thread: 0,
                stack: entry.stack,
            };
            match entry.action {
                Action::Alloc => {
                    if !builder.allocate(at, entry.address, entry.bytes)? {
                        lost_frees.seen(place);
                    }
                }
                Action::FreeRequested => {
                    if !builder.free(at, entry.address, entry.bytes)? && !recorded_only {
                        unknown_frees.seen(place);
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
