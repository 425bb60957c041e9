//! Renders traces as trace events for Perfetto and Chrome.

use std::fmt::Write as _;

use gpuheap_text::Amount;
use gpuheap_trace::{Op, Trace};
use serde_json::{Value, json};

use crate::holders::thread_name;
use crate::ledger::Ledger;
use crate::stacks::device_name;
use crate::view::{Bounds, View};

/// Bounds of a trace for Perfetto. A track has one point at most for each moment. Perfetto draws a
/// hundred thousand points without delay.
const BOUNDS: Bounds = Bounds { moments: 20_000, blocks: 2_000_000 };
/// Number of sites with a track.
const SITES: usize = 15;

/// Renders trace events as JSON. Each device has a track of live bytes, a track for each of its
/// heaviest sites, and a track of the bytes that the allocator held. Failed requests and ends of
/// threads are instants.
pub fn render(traces: &[Trace]) -> String {
    let mut events = Events::default();
    for (process, trace) in (1_u64..).zip(traces) {
        add_trace(&mut events, process, trace);
    }
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{}]}}\n", events.0)
}

/// The events as JSON text, separated by commas. As JSON values, they took ten times the memory.
#[derive(Default)]
struct Events(String);

impl Events {
    fn push(&mut self, event: &Value) {
        if !self.0.is_empty() {
            self.0.push_str(",\n");
        }
        // A write to a string never fails.
        let _ = write!(self.0, "{event}");
    }
}

fn add_trace(events: &mut Events, process: u64, trace: &Trace) {
    let ledger = Ledger::new(trace);
    let view = View::new(trace, &ledger, BOUNDS);
    let name = format!("{} of {}", device_name(trace), trace.name());
    events.push(&json!({
        "ph": "M", "name": "process_name", "pid": process, "args": { "name": name },
    }));
    let mut counter = |name: &str, time_ns: u64, bytes: u64| {
        events.push(&json!({
            "ph": "C", "name": name, "pid": process, "ts": micros(time_ns),
            "args": { "bytes": bytes },
        }));
    };
    for moment in &view.moments {
        counter("live", moment.time_ns, moment.live);
    }
    for (site, row) in view.by_site(&ledger, SITES) {
        let mut before = None;
        for (moment, bytes) in view.moments.iter().zip(row) {
            if before.replace(bytes) != Some(bytes) {
                counter(&site, moment.time_ns, bytes);
            }
        }
    }
    let ranges = view.ranges(trace);
    if !ranges.is_empty() {
        let mut changes = vec![0_i128; view.moments.len() + 1];
        for range in ranges {
            changes[range.from as usize] += i128::from(range.bytes);
            changes[range.until as usize] -= i128::from(range.bytes);
        }
        let mut held = 0;
        for (moment, change) in view.moments.iter().zip(changes) {
            held += change;
            counter("reserved", moment.time_ns, u64::try_from(held).unwrap_or(u64::MAX));
        }
    }
    for event in trace.events() {
        let name = match event.op {
            Op::Fail { bytes } => format!("out of memory: {}", Amount(bytes)),
            Op::Retry { bytes } => format!("refused, then served: {}", Amount(bytes)),
            _ => continue,
        };
        events.push(&json!({
            "ph": "i", "s": "p", "name": name, "pid": process, "tid": event.thread,
            "ts": micros(event.time_ns), "args": { "site": (event.stack != 0).then(|| trace.site(event.stack)) },
        }));
    }
    // The number of threads fits in 32 bits.
    for thread in 0..trace.threads().map_or(0, <[u64]>::len) as u32 {
        let name = thread_name(trace, thread, u64::MAX);
        events.push(&json!({
            "ph": "M", "name": "thread_name", "pid": process, "tid": thread,
            "args": { "name": name },
        }));
        let info = trace.thread_info(thread);
        if let Some(ended) = info.and_then(|info| info.ended_ns) {
            events.push(&json!({
                "ph": "i", "s": "t", "name": "thread ended", "pid": process, "tid": thread,
                "ts": micros(ended),
            }));
        }
    }
}

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}
