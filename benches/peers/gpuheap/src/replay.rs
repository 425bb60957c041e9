//! Replays a recorded trace from the rows that `simplify_trace.py` writes.

use std::fs;
use std::time::Instant;

use gpuheap::{Block, Error, Heap, Stream};

use crate::{Done, Peer, median};

struct Event {
    is_allocation: bool,
    id: usize,
    bytes: u64,
    stream: usize,
}

/// Replays a trace on the trace's streams. The first pass starts with an empty cache, and later
/// passes reuse the cache.
pub(crate) fn replay(peer: &mut Peer, file: &str) -> Done {
    let mut passes = Passes::new(peer, file)?;
    let cold = passes.pass(&peer.heap)?;
    let warm = [passes.pass(&peer.heap)?, passes.pass(&peer.heap)?, passes.pass(&peer.heap)?];
    let figures = format!(
        "trace={} cold_ns={cold:.1} second_ns={:.1} ns={:.1} live_peak={} reserved_peak={}",
        name(file),
        warm[0],
        median(warm.to_vec()),
        passes.peak,
        peer.reserved_peak()?
    );
    peer.result("replay", &figures)
}

/// Counts the driver calls of the first two passes through a trace, and the bytes that each pass
/// took from the driver. Reading the counts flushes the thread's caches, so no time is printed.
pub(crate) fn calls(peer: &mut Peer, file: &str) -> Done {
    let mut passes = Passes::new(peer, file)?;
    let calls = |heap: &Heap| heap.usage().map(|usage| usage.driver_calls);
    let (before, first) = (calls(&peer.heap)?, peer.heap.meter()?);
    passes.pass(&peer.heap)?;
    let (between, second) = (calls(&peer.heap)?, peer.heap.meter()?);
    let first_taken = first.read()?.taken;
    passes.pass(&peer.heap)?;
    let after = calls(&peer.heap)?;
    let figures = format!(
        "trace={} first_calls={} first_taken={} second_calls={} second_taken={}",
        name(file),
        between - before,
        first_taken,
        after - between,
        second.read()?.taken
    );
    peer.result("calls", &figures)
}

/// Trace that is replayed in one or more passes, and the blocks that are live at its current event.
struct Passes {
    events: Vec<Event>,
    streams: Vec<Stream>,
    blocks: Vec<Option<(Block, usize)>>,
    live: u64,
    peak: u64,
}

impl Passes {
    fn new(peer: &Peer, file: &str) -> Done<Passes> {
        let events = load(file)?;
        let ids = events.iter().map(|event| event.id + 1).max().unwrap_or(0);
        let last_stream = events.iter().map(|event| event.stream).max().unwrap_or(0);
        let mut blocks = Vec::new();
        blocks.resize_with(ids, || None);
        // The trace's first stream is the default stream.
        let mut streams = vec![peer.device.default_stream()?];
        for _ in 0..last_stream {
            streams.push(peer.device.stream()?);
        }
        Ok(Passes { events, streams, blocks, live: 0, peak: 0 })
    }

    /// Replays the trace, then frees its live blocks. Returns nanoseconds per event.
    fn pass(&mut self, heap: &Heap) -> Result<f64, Error> {
        let Passes { events, streams, blocks, live, peak } = self;
        let start = Instant::now();
        for event in events.iter() {
            let stream: &Stream = &streams[event.stream];
            let slot = &mut blocks[event.id];
            if event.is_allocation {
                *slot = Some((heap.allocate(event.bytes, stream)?, event.stream));
                *live += event.bytes;
                *peak = (*peak).max(*live);
            } else if let Some((block, _)) = slot.take() {
                *live -= block.bytes();
                block.free_on(stream)?;
            }
        }
        let nanoseconds = start.elapsed().as_secs_f64() / events.len() as f64 * 1e9;
        for (block, stream) in blocks.iter_mut().filter_map(Option::take) {
            *live -= block.bytes();
            block.free_on(&streams[stream])?;
        }
        Ok(nanoseconds)
    }
}

fn name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn load(file: &str) -> Done<Vec<Event>> {
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let events: Vec<Event> = text.lines().skip(1).filter_map(event).collect();
    if events.is_empty() {
        return Err(format!("{file} has no events").into());
    }
    Ok(events)
}

fn event(line: &str) -> Option<Event> {
    let mut cells = line.split(',');
    let is_allocation = cells.next()? == "a";
    let id = cells.next()?.parse().ok()?;
    // Allocators disagree about requests for zero bytes.
    let bytes = cells.next()?.parse::<u64>().ok()?.max(1);
    let stream = cells.next()?.parse().ok()?;
    Some(Event { is_allocation, id, bytes, stream })
}
