//! Writes one page of HTML with a timeline, flame graphs, a map of addresses, lanes of threads, and
//! tables. The page contains its styles, scripts and data. It loads nothing from a network.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use gpuheap_trace::{MemoryKind, Op, Trace};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::compare::Comparison;
use crate::growth::Growth;
use crate::holders::thread_name;
use crate::ledger::{Ledger, SiteKind};
use crate::report::Report;
use crate::stacks::device_name;
use crate::temporary::Temporary;
use crate::text;
use crate::view::{Bounds, View};

/// Bounds of a page. With these bounds, a page of 5 million events has 4 MiB. Chromium 148 opened
/// it in 1.0 to 1.3 s on a loaded machine with two cores (2026-11-24).
const BOUNDS: Bounds = Bounds { moments: 2_000, blocks: 250_000 };
/// Failed requests that the page marks.
const FAILURES: usize = 100;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const FLAMES: &str = include_str!("flames.js");
const UPLOT: &str = include_str!("vendor/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("vendor/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("vendor/uPlot-LICENSE");

/// Writes a page that shows one trace at a time. If `earlier` has a trace of the same device, the
/// page compares the two traces.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write(traces: &[Trace], earlier: &[Trace], mut writer: impl Write) -> io::Result<()> {
    let mut data: Vec<Data> = traces.iter().chain(earlier).map(data).collect();
    for (index, trace) in traces.iter().enumerate() {
        let before = earlier.iter().position(|before| before.device() == trace.device());
        if let Some(before) = before {
            let reports = [&earlier[before], trace].map(Report::at_peak);
            let compared = Comparison::new(&reports[0], &reports[1]).render();
            data[index].text = format!("{compared}\n{}", data[index].text);
            data[index].before = Some(traces.len() + before);
        }
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut packed, &data)?;
    let packed = base64(&packed.finish()?);
    let title = traces.first().map_or_else(String::new, |trace| escaped(trace.name()));
    // Replaces the placeholders in order. Each search begins after the last inserted text, because
    // that text may contain a placeholder.
    let parts = [
        ("<!--title-->", title.as_str()),
        ("/*license*/", UPLOT_LICENSE),
        ("/*uplot.css*/", UPLOT_STYLE),
        ("/*page.css*/", STYLE),
        ("/*data*/", &packed),
        ("/*uplot.js*/", UPLOT),
        ("/*flames.js*/", FLAMES),
        ("/*page.js*/", SCRIPT),
    ];
    let mut rest = PAGE;
    for (place, part) in parts {
        let (before, after) = rest.split_once(place).unwrap_or((rest, ""));
        writer.write_all(before.as_bytes())?;
        writer.write_all(part.as_bytes())?;
        rest = after;
    }
    writer.write_all(rest.as_bytes())?;
    writer.flush()
}

/// Data of one trace, as `page.js` reads it. A table is stored as an array for each column: a
/// browser reads it in a tenth of the time that an object for each row takes.
#[derive(Serialize)]
struct Data {
    name: String,
    device: String,
    format: &'static str,
    by: &'static str,
    text: String,
    note: Option<String>,
    moments: Moments,
    peak: usize,
    blocks: Blocks,
    left_out: (u64, u64),
    /// Index of the trace that this trace is compared with.
    before: Option<usize>,
    sites: Vec<String>,
    /// Frames of each stack, outermost first, as indices into `frames`.
    stacks: Vec<Vec<u32>>,
    frames: Vec<String>,
    /// Module of each stack, as an index into `modules`.
    stack_modules: Vec<Option<u32>>,
    modules: Vec<String>,
    /// `true` for each stack of NVIDIA's libraries.
    of_library: Vec<bool>,
    /// Kinds of memory; empty if the format does not record them.
    kinds: Vec<&'static str>,
    threads: Vec<Thread>,
    ranges: Vec<(u64, u64, u32, u32)>,
    failures: Vec<Failure>,
    growth: Vec<Grown>,
    temporary: Vec<Temporary>,
}

#[derive(Serialize)]
struct Moments {
    ns: Vec<u64>,
    event: Vec<u32>,
    live: Vec<u64>,
    high: Vec<u64>,
}

/// Table of blocks, stored by column. A block is live at the moments `from..until`.
#[derive(Default, Serialize)]
struct Blocks {
    from: Vec<u32>,
    until: Vec<u32>,
    bytes: Vec<u64>,
    address: Vec<u64>,
    site: Vec<u32>,
    stack: Vec<u32>,
    thread: Vec<u32>,
    /// Indices into `kinds`.
    kind: Vec<u32>,
}

#[derive(Serialize)]
struct Thread {
    name: String,
    ended_ns: Option<u64>,
}

#[derive(Serialize)]
struct Failure {
    ns: u64,
    bytes: u64,
    event: u32,
    site: String,
}

#[derive(Serialize)]
struct Grown {
    site: String,
    thread: String,
    bytes: u64,
    first: u64,
    last: u64,
    rises: usize,
    steady: bool,
    callers: String,
}

fn data(trace: &Trace) -> Data {
    let report = Report::at_peak(trace);
    let ledger = Ledger::new(trace);
    let view = View::new(trace, &ledger, BOUNDS);
    let mut stacks = Stacks::default();
    let mut blocks = Blocks::default();
    let has_kinds = trace.recording().is_some();
    for &allocation in &view.blocks {
        let block = &ledger.blocks[allocation as usize];
        let (from, until) = view.span(block);
        let stack = match ledger.kind {
            SiteKind::Line => trace.events()[block.from as usize].stack,
            SiteKind::Size => 0,
        };
        blocks.from.push(from);
        blocks.until.push(until);
        blocks.bytes.push(block.bytes);
        blocks.address.push(trace.addresses()[allocation as usize]);
        blocks.site.push(block.site);
        blocks.stack.push(stacks.number(trace, stack));
        blocks.thread.push(block.thread);
        if has_kinds {
            blocks.kind.push(trace.kind(allocation) as u32);
        }
    }
    let column = |field: fn(&crate::view::Moment) -> u64| view.moments.iter().map(field).collect();
    let moments = Moments {
        ns: column(|moment| moment.time_ns),
        event: view.moments.iter().map(|moment| moment.number).collect(),
        live: column(|moment| moment.live),
        high: column(|moment| moment.high),
    };
    let peak = report.summary.peak_event.map_or(0, |index| {
        view.moments.partition_point(|moment| (moment.events as usize) <= index)
    });
    // The number of threads fits in 32 bits.
    let threads = 0..trace.threads().map_or(0, <[u64]>::len) as u32;
    let failures = trace.events().iter().filter_map(|event| match event.op {
        Op::Fail { bytes } => Some(Failure {
            ns: event.time_ns,
            bytes,
            event: event.number,
            site: trace.site(event.stack),
        }),
        _ => None,
    });
    let ranges = view.ranges(trace);
    Data {
        name: trace.name().to_owned(),
        device: device_name(trace),
        format: trace.format().as_str(),
        by: ledger.kind.name(),
        text: text::render(&report),
        note: report.note(),
        moments,
        peak,
        blocks,
        left_out: view.left_out,
        before: None,
        stacks: stacks.stacks,
        frames: stacks.frames.names,
        stack_modules: stacks.stack_modules,
        modules: stacks.modules.names,
        of_library: stacks.of_library,
        kinds: match has_kinds {
            true => MemoryKind::ALL.iter().map(|kind| kind.as_str()).collect(),
            false => Vec::new(),
        },
        threads: threads
            .map(|thread| Thread {
                name: thread_name(trace, thread, u64::MAX),
                ended_ns: trace.thread_info(thread).and_then(|info| info.ended_ns),
            })
            .collect(),
        ranges: ranges
            .iter()
            .map(|range| (range.address, range.bytes, range.from, range.until))
            .collect(),
        failures: failures.take(FAILURES).collect(),
        growth: report.growing.iter().map(grown).collect(),
        temporary: report.temporary,
        sites: ledger.sites,
    }
}

fn grown(growth: &Growth) -> Grown {
    Grown {
        site: growth.site.clone(),
        thread: growth.thread.clone().unwrap_or_default(),
        bytes: growth.bytes(),
        first: growth.first(),
        last: growth.last(),
        rises: growth.rises(),
        steady: growth.is_steady,
        callers: growth.frames.get(1..).unwrap_or_default().join(" ← "),
    }
}

/// Distinct stacks, frames and modules of the blocks on the HTML page.
#[derive(Default)]
struct Stacks {
    stacks: Vec<Vec<u32>>,
    stack_modules: Vec<Option<u32>>,
    of_library: Vec<bool>,
    frames: Names,
    modules: Names,
    stack_numbers: FxHashMap<u32, u32>,
}

impl Stacks {
    fn number(&mut self, trace: &Trace, stack: u32) -> u32 {
        if let Some(&number) = self.stack_numbers.get(&stack) {
            return number;
        }
        let frames = trace.stack(stack).map(|frame| self.frames.number(&frame.to_string()));
        let mut outermost_first: Vec<u32> = frames.collect();
        outermost_first.reverse();
        self.stacks.push(outermost_first);
        self.stack_modules.push(trace.module(stack).map(|name| self.modules.number(name)));
        self.of_library.push(trace.library(stack).is_some());
        let number = self.stacks.len() as u32 - 1;
        self.stack_numbers.insert(stack, number);
        number
    }
}

/// Distinct names.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    numbers: FxHashMap<String, u32>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        // There are at most as many names as frames, so their number fits in 32 bits.
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

/// Replaces the characters of a text that HTML reads as markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns bytes as base64, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit <= group.len() { DIGITS[index as usize] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_its_end() {
        for (bytes, text) in [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xef, 0xbe]), "/+++");
    }
}
