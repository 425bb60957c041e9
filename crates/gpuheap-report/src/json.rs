//! Renders reports as JSON. Fields may be added, but no field is renamed or removed.

use gpuheap_trace::Holder;
use serde::Serialize;

use crate::compare::Comparison;
use crate::copies::CopySite;
use crate::growth::Growth;
use crate::holders::KeptStack;
use crate::pools::Pools;
use crate::ranges::RangeMemory;
use crate::report::Report;
use crate::temporary::Temporary;

/// Version of the fields.
const SCHEMA: u32 = 1;

/// Renders comparisons as one JSON array with one object for each device. `docs/report.schema.json`
/// is its schema.
///
/// # Errors
/// Returns no error for any comparison.
pub fn render_comparisons(comparisons: &[Comparison]) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(comparisons)? + "\n")
}

/// Renders reports as one JSON array with one object for each trace. `docs/report.schema.json` is
/// its schema.
///
/// # Errors
/// Returns no error for any report.
pub fn render(reports: &[Report]) -> Result<String, serde_json::Error> {
    let objects: Vec<Trace<'_>> = reports.iter().map(Trace::new).collect();
    Ok(serde_json::to_string_pretty(&objects)? + "\n")
}

#[derive(Serialize)]
struct Trace<'a> {
    schema: u32,
    trace: &'a str,
    format: &'a str,
    device: Option<u32>,
    note: Option<String>,
    limit_bytes: Option<u64>,
    events: u64,
    allocations: u64,
    frees: u64,
    failures: u64,
    streams: usize,
    threads: Option<usize>,
    duration_ns: u64,
    peak_live_bytes: u64,
    live_before_bytes: u64,
    left_live: u64,
    left_live_bytes: u64,
    sites: &'static str,
    moment: Moment<'a>,
    left_by_site: Vec<HolderRow<'a>>,
    left_by_library: Vec<HolderRow<'a>>,
    left_by_thread: Vec<HolderRow<'a>>,
    left_by_stack: &'a [KeptStack],
    left_by_ended_threads_bytes: Option<u64>,
    ranges: &'a [RangeMemory],
    copies: Vec<CopyRow<'a>>,
    pools: Option<PoolsRow<'a>>,
    growth: Vec<GrowthRow<'a>>,
    temporary: &'a [Temporary],
}

#[derive(Serialize)]
struct Moment<'a> {
    event: u64,
    time_ns: u64,
    live_bytes: u64,
    by_site: Vec<HolderRow<'a>>,
    by_thread: Vec<HolderRow<'a>>,
    by_kind: Vec<HolderRow<'a>>,
}

#[derive(Serialize)]
struct PoolsRow<'a> {
    segments: usize,
    segment_bytes: u64,
    used_bytes: u64,
    by_framework: Vec<HolderRow<'a>>,
    no_framework_bytes: u64,
    no_framework_by_site: Vec<HolderRow<'a>>,
}

#[derive(Serialize)]
struct HolderRow<'a> {
    name: &'a str,
    bytes: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct CopyRow<'a> {
    direction: &'a str,
    memory: &'a str,
    site: &'a str,
    copies: u64,
    bytes: u64,
    call_ns: u64,
    repeated: u64,
    repeated_bytes: u64,
}

#[derive(Serialize)]
struct GrowthRow<'a> {
    site: &'a str,
    thread: Option<&'a str>,
    bytes: u64,
    rises: usize,
    steady: bool,
    floor_bytes: &'a [u64],
    frames: &'a [String],
}

impl<'a> Trace<'a> {
    fn new(report: &'a Report) -> Self {
        let Report { summary, .. } = report;
        Self {
            schema: SCHEMA,
            trace: &report.name,
            format: report.format.as_str(),
            device: report.device,
            note: report.note(),
            limit_bytes: report.limit(),
            events: summary.events,
            allocations: summary.allocations,
            frees: summary.frees,
            failures: summary.failures,
            streams: summary.streams,
            threads: summary.threads,
            duration_ns: summary.duration_ns,
            peak_live_bytes: summary.peak_live_bytes,
            live_before_bytes: summary.live_before_bytes,
            left_live: summary.left_live,
            left_live_bytes: summary.left_live_bytes,
            sites: report.kind.name(),
            moment: Moment {
                event: report.event,
                time_ns: report.time_ns,
                live_bytes: report.held_bytes(),
                by_site: holders(&report.held),
                by_thread: holders(&report.held_by_thread),
                by_kind: holders(&report.held_by_kind),
            },
            left_by_site: holders(&report.left),
            left_by_library: holders(&report.left_by_library),
            left_by_thread: holders(&report.left_by_thread),
            left_by_stack: &report.left_by_stack,
            left_by_ended_threads_bytes: report
                .left_by_ended_threads
                .as_ref()
                .map(|held| held.iter().map(|holder| holder.bytes).sum()),
            ranges: &report.ranges,
            copies: report.copies.iter().map(copy).collect(),
            pools: report.pools.as_ref().map(pools),
            growth: report.growing.iter().map(growth).collect(),
            temporary: &report.temporary,
        }
    }
}

fn pools(pools: &Pools) -> PoolsRow<'_> {
    PoolsRow {
        segments: pools.segments.len(),
        segment_bytes: pools.segment_bytes(),
        used_bytes: pools.used_bytes(),
        by_framework: holders(&pools.frameworks),
        no_framework_bytes: pools.outside_bytes(),
        no_framework_by_site: holders(&pools.outside),
    }
}

fn holders(holders: &[Holder]) -> Vec<HolderRow<'_>> {
    let rows = holders.iter();
    rows.map(|Holder { name, bytes, blocks, .. }| HolderRow {
        name,
        bytes: *bytes,
        blocks: *blocks,
    })
    .collect()
}

fn copy(copies: &CopySite) -> CopyRow<'_> {
    let &CopySite { ref site, count, bytes, call_ns, repeated, repeated_bytes, .. } = copies;
    CopyRow {
        direction: copies.direction.as_str(),
        memory: copies.memory.as_str(),
        site,
        copies: count,
        bytes,
        call_ns,
        repeated,
        repeated_bytes,
    }
}

fn growth(growth: &Growth) -> GrowthRow<'_> {
    GrowthRow {
        site: &growth.site,
        thread: growth.thread.as_deref(),
        bytes: growth.bytes(),
        rises: growth.rises(),
        steady: growth.is_steady,
        floor_bytes: &growth.floors,
        frames: &growth.frames,
    }
}
