//! A recorded trace, in the rows that `simplify_trace.py` writes.

use std::fs;
use std::time::Instant;

use gpuheap::{Block, Error, Stream};

use crate::{Done, Peer, median};

struct Event {
    is_allocation: bool,
    id: usize,
    bytes: u64,
    stream: usize,
}

/// Replays a trace on its own streams: once with an empty cache, then with the cache that the first
/// pass left.
pub(crate) fn replay(peer: &mut Peer, file: &str) -> Done {
    let events = load(file)?;
    let ids = events.iter().map(|event| event.id + 1).max().unwrap_or(0);
    let last_stream = events.iter().map(|event| event.stream).max().unwrap_or(0);
    let mut blocks: Vec<Option<(Block, usize)>> = Vec::new();
    blocks.resize_with(ids, || None);
    // The trace's first stream is the default one.
    let mut streams = vec![peer.device.default_stream()?];
    for _ in 0..last_stream {
        streams.push(peer.device.stream()?);
    }
    let (mut live, mut peak) = (0, 0);
    let mut pass = || -> Result<f64, Error> {
        let start = Instant::now();
        for event in &events {
            let stream: &Stream = &streams[event.stream];
            let slot = &mut blocks[event.id];
            if event.is_allocation {
                *slot = Some((peer.heap.allocate(event.bytes, stream)?, event.stream));
                live += event.bytes;
                peak = peak.max(live);
            } else if let Some((block, _)) = slot.take() {
                live -= block.bytes();
                block.free_on(stream)?;
            }
        }
        let nanoseconds = start.elapsed().as_secs_f64() / events.len() as f64 * 1e9;
        for (block, stream) in blocks.iter_mut().filter_map(Option::take) {
            live -= block.bytes();
            block.free_on(&streams[stream])?;
        }
        Ok(nanoseconds)
    };
    let cold = pass()?;
    let warm = median(vec![pass()?, pass()?, pass()?]);
    let name = file.rsplit('/').next().unwrap_or(file);
    let figures = format!(
        "trace={name} cold_ns={cold:.1} ns={warm:.1} live_peak={peak} reserved_peak={}",
        peer.reserved_peak()?
    );
    peer.result("replay", &figures)
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
    // At least one byte: allocators disagree about requests for zero bytes.
    let bytes = cells.next()?.parse::<u64>().ok()?.max(1);
    let stream = cells.next()?.parse().ok()?;
    Some(Event { is_allocation, id, bytes, stream })
}
