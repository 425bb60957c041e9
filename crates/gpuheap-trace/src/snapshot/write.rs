//! Writer of PyTorch's memory snapshots.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use rustc_hash::FxHashMap;

use super::opcode;
use crate::{Error, Op, Taken, Trace};

/// Unit of PyTorch's block sizes. PyTorch's viewer needs blocks that fill their segments.
const BLOCK: u64 = 512;

/// Writes traces as one PyTorch memory snapshot, for PyTorch's memory viewer. The pickle has plain
/// data only, in protocol 2.
///
/// A trace without a device becomes device 0. If two traces have the same device, the later trace
/// becomes the next free device. A trace without segments gets a segment for each block, because
/// the viewer shows blocks within segments. Threads and the kinds of memory are left out.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_pytorch_snapshot(traces: &[Trace], writer: impl Write) -> Result<(), Error> {
    let mut pickle = Pickle {
        writer: BufWriter::new(writer),
        memo: 0,
        texts: FxHashMap::default(),
        stacks: FxHashMap::default(),
    };
    snapshot(traces, &mut pickle).and_then(|()| pickle.writer.flush()).map_err(|error| {
        let advice = "check the disk and the path's permissions";
        Error::io("the snapshot cannot be written", error, advice)
    })
}

fn snapshot<W: Write>(traces: &[Trace], pickle: &mut Pickle<W>) -> io::Result<()> {
    let mut devices: BTreeMap<u32, &Trace> = BTreeMap::new();
    for trace in traces {
        let mut device = trace.device().unwrap_or(0);
        while devices.contains_key(&device) {
            device = device.wrapping_add(1);
        }
        devices.insert(device, trace);
    }
    pickle.op(opcode::PROTO)?;
    pickle.op(2)?;
    pickle.dict(|pickle| {
        pickle.text("segments")?;
        pickle.list(|pickle| {
            devices.iter().try_for_each(|(&device, trace)| {
                pickle.stacks.clear();
                segments(trace, device, pickle)
            })
        })?;
        pickle.text("device_traces")?;
        pickle.list(|pickle| {
            // The list's index is the device. A hostile file may have large device numbers, so
            // the list is bounded.
            let last = devices.keys().next_back().map_or(0, |&last| last.min(1023));
            for device in 0..=last {
                pickle.stacks.clear();
                pickle.list(|pickle| match devices.get(&device) {
                    Some(trace) => entries(trace, pickle),
                    None => Ok(()),
                })?;
            }
            Ok(())
        })?;
        pickle.text("allocator_settings")?;
        pickle.dict(|pickle| {
            let settings = traces.iter().find_map(Trace::allocator_settings);
            pickle.text("PYTORCH_CUDA_ALLOC_CONF")?;
            pickle.text(settings.map_or("", |settings| &settings.text))?;
            pickle.text("expandable_segments")?;
            pickle.truth(settings.is_some_and(|settings| settings.expandable_segments))
        })?;
        pickle.text("external_annotations")?;
        pickle.list(|_| Ok(()))
    })?;
    pickle.op(opcode::STOP)
}

/// A block that is live or pending (freed, but still in use) at the end of the trace.
struct AtEnd {
    bytes: u64,
    stream: u64,
    stack: u32,
    is_pending: bool,
}

fn blocks_at_end(trace: &Trace) -> BTreeMap<u64, AtEnd> {
    let mut live: FxHashMap<u32, AtEnd> = FxHashMap::default();
    for event in trace.events() {
        match event.op {
            Op::Allocate { allocation, bytes } if bytes > 0 => {
                let stream = trace.streams()[event.stream as usize].handle;
                let stack = event.stack;
                live.insert(allocation, AtEnd { bytes, stream, stack, is_pending: false });
            }
            Op::Free { allocation } => match live.get_mut(&allocation) {
                Some(block) if trace.format().records_completion() => block.is_pending = true,
                _ => drop(live.remove(&allocation)),
            },
            Op::FreeCompleted { allocation } => drop(live.remove(&allocation)),
            _ => {}
        }
    }
    let address = |allocation: u32| trace.addresses()[allocation as usize];
    live.into_iter().map(|(allocation, block)| (address(allocation), block)).collect()
}

/// Writes the segments that exist when the trace ends, each filled with blocks.
fn segments<W: Write>(trace: &Trace, device: u32, pickle: &mut Pickle<W>) -> io::Result<()> {
    let blocks = blocks_at_end(trace);
    let events = trace.events().len();
    let taken: Vec<(u64, u64, u64)> = match Taken::after(trace, events) {
        Some(taken) => taken.ranges().collect(),
        None => {
            let mut next = u64::MAX;
            let mut ranges: Vec<_> = blocks
                .iter()
                .rev()
                .map(|(&start, block)| {
                    let end = start.saturating_add(block.bytes.next_multiple_of(BLOCK)).min(next);
                    next = start;
                    (start, end, block.stream)
                })
                .collect();
            ranges.reverse();
            ranges
        }
    };
    for (start, end, stream) in taken {
        let at_end = trace.segments_at_end();
        let known = at_end.binary_search_by_key(&start, |segment| segment.address).ok();
        let known = known.map(|index| at_end[index]);
        let inside = || blocks.range(start..end);
        let live = inside().filter(|(_, block)| !block.is_pending);
        let requested: u64 = live.map(|(_, block)| block.bytes).fold(0, u64::saturating_add);
        pickle.dict(|pickle| {
            pickle.field("device", device.into())?;
            pickle.field("address", start)?;
            pickle.field("total_size", end - start)?;
            pickle.field("allocated_size", requested)?;
            pickle.field("active_size", requested)?;
            pickle.field("requested_size", requested)?;
            pickle.field("stream", stream)?;
            pickle.text("segment_type")?;
            pickle.text(if known.is_some_and(|known| known.is_small) {
                "small"
            } else {
                "large"
            })?;
            pickle.text("segment_pool_id")?;
            let (first, second) = known.map_or((0, 0), |known| known.pool);
            pickle.number(first)?;
            pickle.number(second)?;
            pickle.op(opcode::TUPLE2)?;
            pickle.text("is_expandable")?;
            pickle.truth(known.is_some_and(|known| known.is_expandable))?;
            pickle.text("frames")?;
            pickle.list(|_| Ok(()))?;
            pickle.text("blocks")?;
            pickle.list(|pickle| {
                let mut at = start;
                let starts: Vec<u64> = inside().map(|(&address, _)| address).collect();
                for (index, (&address, block)) in inside().enumerate() {
                    free_block(pickle, at, address)?;
                    let next = starts.get(index + 1).copied().unwrap_or(end);
                    let size = block.bytes.checked_next_multiple_of(BLOCK).unwrap_or(block.bytes);
                    at = address.saturating_add(size).min(next);
                    let state = match block.is_pending {
                        true => "active_pending_free",
                        false => "active_allocated",
                    };
                    one_block(pickle, address, at - address, block.bytes, state)?;
                    frames(trace, block.stack, pickle)?;
                    pickle.op(opcode::SETITEMS)?;
                }
                free_block(pickle, at, end)
            })
        })?;
    }
    Ok(())
}

/// Writes a block's dict up to the key `frames`. The caller writes the frames, and ends the dict.
fn one_block<W: Write>(
    pickle: &mut Pickle<W>,
    address: u64,
    size: u64,
    requested: u64,
    state: &str,
) -> io::Result<()> {
    pickle.op(opcode::EMPTY_DICT)?;
    pickle.op(opcode::MARK)?;
    pickle.field("address", address)?;
    pickle.field("size", size)?;
    pickle.field("requested_size", requested)?;
    pickle.text("state")?;
    pickle.text(state)?;
    pickle.text("frames")
}

fn free_block<W: Write>(pickle: &mut Pickle<W>, start: u64, end: u64) -> io::Result<()> {
    if end <= start {
        return Ok(());
    }
    one_block(pickle, start, end - start, end - start, "inactive")?;
    pickle.list(|_| Ok(()))?;
    pickle.op(opcode::SETITEMS)
}

/// Writes the recorded events.
fn entries<W: Write>(trace: &Trace, pickle: &mut Pickle<W>) -> io::Result<()> {
    let mut sizes = vec![0; trace.allocations() as usize];
    let has_segments = Taken::after(trace, trace.events().len()).is_some();
    let completes = trace.format().records_completion();
    for (index, event) in trace.events().iter().enumerate() {
        let is_recorded = index >= trace.reconstructed_events();
        let address = |allocation: u32| trace.addresses()[allocation as usize];
        let mut entry = |action: &str, address: u64, bytes: u64| {
            if !is_recorded {
                return Ok(());
            }
            let key = if action == "oom" { "device_free" } else { "addr" };
            pickle.dict(|pickle| {
                pickle.text("action")?;
                pickle.text(action)?;
                pickle.field(key, address)?;
                pickle.field("size", bytes)?;
                pickle.field("stream", trace.streams()[event.stream as usize].handle)?;
                pickle.field("time_us", event.time_ns / 1000)?;
                pickle.text("compile_context")?;
                pickle.text("N/A")?;
                pickle.text("user_metadata")?;
                pickle.text("")?;
                pickle.text("frames")?;
                frames(trace, event.stack, pickle)
            })
        };
        match event.op {
            Op::Allocate { allocation, bytes } => {
                sizes[allocation as usize] = bytes;
                if !has_segments && bytes > 0 {
                    entry("segment_alloc", address(allocation), bytes.next_multiple_of(BLOCK))?;
                }
                entry("alloc", address(allocation), bytes)?;
            }
            Op::Free { allocation } => {
                let (address, bytes) = (address(allocation), sizes[allocation as usize]);
                entry("free_requested", address, bytes)?;
                if !completes {
                    entry("free_completed", address, bytes)?;
                }
                if !has_segments && bytes > 0 {
                    entry("segment_free", address, bytes.next_multiple_of(BLOCK))?;
                }
            }
            Op::FreeCompleted { allocation } => {
                entry("free_completed", address(allocation), sizes[allocation as usize])?;
            }
            Op::Fail { bytes } | Op::Retry { bytes } => {
                entry("oom", trace.device_free(index).unwrap_or(0), bytes)?;
            }
            Op::SegmentTaken { address, bytes } => entry("segment_alloc", address, bytes)?,
            Op::SegmentGivenBack { address, bytes } => entry("segment_free", address, bytes)?,
        }
    }
    Ok(())
}

/// Writes the frames of a stack, once for all events with this stack.
fn frames<W: Write>(trace: &Trace, stack: u32, pickle: &mut Pickle<W>) -> io::Result<()> {
    if let Some(&number) = pickle.stacks.get(&stack) {
        return pickle.get(number);
    }
    pickle.list(|pickle| {
        trace.stack(stack).try_for_each(|frame| {
            pickle.dict(|pickle| {
                pickle.text("name")?;
                pickle.text(&frame.function)?;
                pickle.text("filename")?;
                pickle.text(&frame.file)?;
                pickle.field("line", frame.line.into())
            })
        })
    })?;
    let number = pickle.put()?;
    pickle.stacks.insert(stack, number);
    Ok(())
}

/// Writer of opcodes.
struct Pickle<W: Write> {
    writer: BufWriter<W>,
    /// Number of values in the pickle's memo. A later use of such a value writes only its number.
    memo: u32,
    texts: FxHashMap<String, u32>,
    /// Numbers of the current trace's stacks.
    stacks: FxHashMap<u32, u32>,
}

impl<W: Write> Pickle<W> {
    fn op(&mut self, opcode: u8) -> io::Result<()> {
        self.writer.write_all(&[opcode])
    }

    fn dict(&mut self, fill: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.op(opcode::EMPTY_DICT)?;
        self.op(opcode::MARK)?;
        fill(self)?;
        self.op(opcode::SETITEMS)
    }

    fn list(&mut self, fill: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.op(opcode::EMPTY_LIST)?;
        self.op(opcode::MARK)?;
        fill(self)?;
        self.op(opcode::APPENDS)
    }

    fn field(&mut self, key: &str, number: u64) -> io::Result<()> {
        self.text(key)?;
        self.number(number)
    }

    /// Writes a text, or only its number if it was written before.
    fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            return self.get(number);
        }
        // No text of a trace has 4 GiB, because the reader's limit is lower.
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.op(opcode::BINUNICODE)?;
        self.writer.write_all(&length.to_le_bytes())?;
        self.writer.write_all(text.as_bytes())?;
        let number = self.put()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    fn get(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.writer.write_all(&[opcode::BINGET, number]),
            Err(_) => {
                self.op(opcode::LONG_BINGET)?;
                self.writer.write_all(&number.to_le_bytes())
            }
        }
    }

    /// Stores the last value in the memo. Returns its number.
    fn put(&mut self) -> io::Result<u32> {
        let number = self.memo;
        self.memo += 1;
        match u8::try_from(number) {
            Ok(number) => self.writer.write_all(&[opcode::BINPUT, number])?,
            Err(_) => {
                self.op(opcode::LONG_BINPUT)?;
                self.writer.write_all(&number.to_le_bytes())?;
            }
        }
        Ok(number)
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        match number {
            0..=0xff => self.writer.write_all(&[opcode::BININT1, number as u8]),
            0x100..=0x7fff_ffff => {
                self.op(opcode::BININT)?;
                self.writer.write_all(&(number as u32).to_le_bytes())
            }
            _ => {
                // Nine bytes, because the last byte has the sign.
                self.writer.write_all(&[opcode::LONG1, 9])?;
                self.writer.write_all(&number.to_le_bytes())?;
                self.op(0)
            }
        }
    }

    fn truth(&mut self, truth: bool) -> io::Result<()> {
        self.op(if truth { opcode::NEWTRUE } else { opcode::NEWFALSE })
    }
}
