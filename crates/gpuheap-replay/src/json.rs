//! Reports as JSON. Names are stable: fields are added, and none is removed.

use serde::Serialize;

use crate::moment::Holder as Held;
use crate::replay::{Minimum, PoolReport, Stop};
use crate::run::TraceReport;
use crate::tune::{Candidate, TraceSearch};
use crate::verdict;

/// Version of the fields.
const SCHEMA: u32 = 1;

/// Renders reports as one JSON array with one object for each trace. `docs/replay.schema.json` is
/// its schema.
///
/// # Errors
/// None for any report.
pub fn render(reports: &[TraceReport]) -> Result<String, serde_json::Error> {
    let traces: Vec<Trace<'_>> = reports.iter().map(Trace::of).collect();
    Ok(serde_json::to_string_pretty(&traces)? + "\n")
}

/// Renders searches for settings as one JSON array with one object for each trace, by the same
/// schema.
///
/// # Errors
/// None for any search.
pub fn render_searches(searches: &[TraceSearch]) -> Result<String, serde_json::Error> {
    let searches: Vec<Search<'_>> = searches.iter().map(Search::of).collect();
    Ok(serde_json::to_string_pretty(&searches)? + "\n")
}

/// The search for one trace.
#[derive(Serialize)]
struct Search<'a> {
    schema: u32,
    trace: &'a str,
    format: &'static str,
    device: Option<u32>,
    device_memory_bytes: u64,
    profile: Option<&'a str>,
    framework: &'static str,
    tried: u64,
    gets_through: bool,
    at_least: bool,
    settings: Vec<Setting<'a>>,
}

/// Pareto-optimal setting.
#[derive(Serialize)]
struct Setting<'a> {
    line: &'a str,
    python: Option<&'a str>,
    pool: &'a str,
    peak_reserved_bytes: u64,
    driver_calls: u64,
    fails: bool,
}

impl<'a> Search<'a> {
    fn of(search: &'a TraceSearch) -> Self {
        let setting = |candidate: &'a Candidate| Setting {
            line: &candidate.setting,
            python: candidate.python.as_deref(),
            pool: &candidate.model,
            peak_reserved_bytes: candidate.reserved_peak,
            driver_calls: candidate.driver_calls,
            fails: candidate.fails,
        };
        Self {
            schema: SCHEMA,
            trace: &search.name,
            format: search.format.as_str(),
            device: search.recorded_on,
            device_memory_bytes: search.device.usable,
            profile: search.device.profile.as_deref(),
            framework: search.family.name(),
            tried: search.tried,
            gets_through: search.gets_through(),
            at_least: !search.recorded.failed.is_empty(),
            settings: search.candidates.iter().map(setting).collect(),
        }
    }
}

/// One trace; a snapshot has one for each device that it saw.
#[derive(Serialize)]
struct Trace<'a> {
    schema: u32,
    trace: &'a str,
    format: &'static str,
    device: Option<u32>,
    events: u64,
    allocations: u64,
    frees: u64,
    unknown_frees: u64,
    failures: u64,
    left_live: u64,
    streams: usize,
    threads: Option<usize>,
    peak_live_bytes: u64,
    live_before_bytes: u64,
    device_memory_bytes: u64,
    results: Vec<Pool<'a>>,
    recorded: Recorded<'a>,
    verdict: Verdict<'a>,
}

/// One pool.
#[derive(Serialize)]
struct Pool<'a> {
    pool: String,
    settings: Option<&'a str>,
    peak_reserved_bytes: u64,
    peak_reserved_low_bytes: u64,
    utilisation: Option<f64>,
    driver_calls: u64,
    ns_per_event: Option<f64>,
    cold_ns_per_event: Option<f64>,
    minimum_device_bytes: Option<u64>,
    out_of_memory: Option<OutOfMemory>,
    fallback: Option<&'a str>,
}

/// Request at which a pool ran out of memory.
#[derive(Serialize)]
struct OutOfMemory {
    event: u64,
    requested_bytes: u64,
    live_bytes: u64,
    rounding_bytes: u64,
    cached_bytes: u64,
    pending_bytes: u64,
    largest_cached_block_bytes: u64,
    short_by_bytes: Option<u64>,
    cause: &'static str,
}

/// Facts that the recording has of its own allocator.
#[derive(Serialize)]
struct Recorded<'a> {
    allocator: Option<&'static str>,
    settings: Option<&'a str>,
    peak_reserved_bytes: Option<u64>,
    memory_at_least_bytes: Option<u64>,
    memory_below_bytes: Option<u64>,
    failed_requests: Vec<FailedRequest>,
    gaps: Vec<Gap>,
}

/// Gap of the recording.
#[derive(Serialize)]
struct Gap {
    kind: &'static str,
    text: String,
}

#[derive(Serialize)]
struct FailedRequest {
    event: u64,
    requested_bytes: u64,
    device_free_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Verdict<'a> {
    gets_through: bool,
    may_fail: bool,
    at_least: bool,
    checked: Vec<String>,
    profile: Option<&'a str>,
    recommended_pool: Option<&'a str>,
    recommended_setting: Option<&'a str>,
    enough_bytes: Option<u64>,
    needs_bytes: Option<u64>,
    takes_bytes: Option<u64>,
    failure: Option<Failure<'a>>,
    fits: Vec<Fit<'a>>,
    remedies: Vec<Remedy<'a>>,
}

#[derive(Serialize)]
struct Failure<'a> {
    pool: Option<String>,
    event: u64,
    requested_bytes: u64,
    reserved_bytes: Option<u64>,
    device_free_bytes: Option<u64>,
    cause: Option<&'static str>,
    causes: Causes,
    pieces: Option<u64>,
    largest_piece_bytes: Option<u64>,
    held_most: Vec<Holder<'a>>,
}

/// A card.
#[derive(Serialize)]
struct Fit<'a> {
    card: &'a str,
    usable_bytes: u64,
    usable_is_measured: bool,
    fits: bool,
    /// The pool with which the trace fits; null if it fits without another pool, or with none.
    with_pool: Option<&'a str>,
}

impl<'a> Fit<'a> {
    fn of(fit: &'a verdict::Fit) -> Self {
        Self {
            card: fit.card.name,
            usable_bytes: fit.card.usable_bytes,
            usable_is_measured: fit.card.usable_is_measured,
            fits: fit.way.is_some(),
            with_pool: match &fit.way {
                Some(verdict::Way::With(pool)) => Some(pool),
                _ => None,
            },
        }
    }
}

/// Memory at the failure, bytes.
#[derive(Serialize)]
struct Causes {
    live_bytes: u64,
    rounding_bytes: Option<u64>,
    free_in_pieces_bytes: Option<u64>,
    pending_bytes: Option<u64>,
    other_streams_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Holder<'a> {
    name: &'a str,
    bytes: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct Remedy<'a> {
    kind: &'static str,
    pool: Option<&'a str>,
    line: &'a str,
    python: Option<&'a str>,
    reserved_bytes: Option<u64>,
    reserved_low_bytes: Option<u64>,
    saves_bytes: Option<u64>,
    driver_calls: Option<u64>,
    driver_calls_before: Option<u64>,
}

impl<'a> Trace<'a> {
    fn of(report: &'a TraceReport) -> Self {
        let summary = &report.summary;
        Self {
            schema: SCHEMA,
            trace: &report.name,
            format: report.format.as_str(),
            device: report.recorded_on,
            events: summary.events,
            allocations: summary.allocations,
            frees: summary.frees,
            unknown_frees: summary.unknown_frees,
            failures: summary.failures,
            left_live: summary.left_live,
            streams: summary.streams,
            threads: summary.threads,
            peak_live_bytes: summary.peak_live_bytes,
            live_before_bytes: summary.live_before_bytes,
            device_memory_bytes: report.device.usable,
            results: report.pools.iter().map(Pool::of).collect(),
            recorded: Recorded::of(&report.recorded, &report.gaps),
            verdict: Verdict::of(report),
        }
    }
}

impl<'a> Pool<'a> {
    fn of(report: &'a PoolReport) -> Self {
        Self {
            pool: report.pool.to_string(),
            settings: report.settings.as_deref(),
            peak_reserved_bytes: report.peak_reserved.high,
            peak_reserved_low_bytes: report.peak_reserved.low,
            utilisation: report.utilisation(),
            driver_calls: report.driver_calls,
            ns_per_event: report.warm_ns.map(tenths),
            cold_ns_per_event: report.cold_ns.map(tenths),
            minimum_device_bytes: report.minimum.as_ref().and_then(Minimum::bytes),
            out_of_memory: report.stop.as_ref().map(OutOfMemory::of),
            fallback: report.fallback.as_deref(),
        }
    }
}

impl OutOfMemory {
    fn of(stop: &Stop) -> Self {
        Self {
            event: stop.event,
            requested_bytes: stop.requested,
            live_bytes: stop.live,
            rounding_bytes: stop.rounding,
            cached_bytes: stop.cached,
            pending_bytes: stop.pending,
            largest_cached_block_bytes: stop.largest_cached,
            short_by_bytes: stop.short_by,
            cause: stop.cause.name(),
        }
    }
}

impl<'a> Recorded<'a> {
    fn of(recorded: &'a verdict::Recorded, gaps: &[crate::Gap]) -> Self {
        let gap = |gap: &crate::Gap| Gap { kind: gap.name(), text: gap.to_string() };
        let failed = recorded.failed.iter().map(|request| FailedRequest {
            event: request.event,
            requested_bytes: request.bytes,
            device_free_bytes: request.device_free,
        });
        Self {
            allocator: recorded.allocator,
            settings: recorded.settings.as_deref(),
            peak_reserved_bytes: recorded.peak_reserved,
            memory_at_least_bytes: recorded.limit.map(|limit| limit.least),
            memory_below_bytes: recorded.limit.map(|limit| limit.below),
            failed_requests: failed.collect(),
            gaps: gaps.iter().map(gap).collect(),
        }
    }
}

impl<'a> Verdict<'a> {
    fn of(report: &'a TraceReport) -> Self {
        let verdict = &report.verdict;
        let advice = verdict.recommended.as_ref();
        Self {
            gets_through: verdict.gets_through,
            may_fail: verdict.may_fail,
            at_least: verdict.is_lower_bound,
            checked: verdict.checked.iter().map(ToString::to_string).collect(),
            profile: report.device.profile.as_deref(),
            recommended_pool: advice.map(|advice| advice.pool.as_str()),
            recommended_setting: advice.and_then(|advice| advice.setting.as_deref()),
            enough_bytes: advice.map(|advice| advice.enough),
            needs_bytes: verdict.needs.map(|needs| needs.least),
            takes_bytes: verdict.needs.map(|needs| needs.most),
            failure: verdict.failure.as_ref().map(Failure::of),
            fits: verdict.fits.iter().map(Fit::of).collect(),
            remedies: verdict.remedies.iter().map(Remedy::of).collect(),
        }
    }
}

impl<'a> Failure<'a> {
    fn of(failure: &'a verdict::MemoryAtFailure) -> Self {
        const HOLDERS: usize = 10;
        let holder = |holder: &'a Held| Holder {
            name: &holder.name,
            bytes: holder.bytes,
            blocks: holder.blocks,
        };
        Self {
            pool: failure.pool.as_ref().map(ToString::to_string),
            event: failure.event,
            requested_bytes: failure.requested,
            reserved_bytes: failure.reserved,
            device_free_bytes: failure.device_free,
            cause: failure.cause.map(|cause| cause.name()),
            causes: Causes {
                live_bytes: failure.live,
                rounding_bytes: failure.rounding,
                free_in_pieces_bytes: failure.free,
                pending_bytes: failure.pending,
                other_streams_bytes: failure.other_streams,
            },
            pieces: failure.pieces,
            largest_piece_bytes: failure.largest,
            held_most: failure.holders.iter().take(HOLDERS).map(holder).collect(),
        }
    }
}

impl<'a> Remedy<'a> {
    fn of(remedy: &'a verdict::Remedy) -> Self {
        Self {
            kind: remedy.kind.name(),
            pool: remedy.pool.as_deref(),
            line: &remedy.line,
            python: remedy.python.as_deref(),
            reserved_bytes: remedy.reserved.map(|range| range.high),
            reserved_low_bytes: remedy.reserved.map(|range| range.low),
            saves_bytes: remedy.saves,
            driver_calls: remedy.driver_calls,
            driver_calls_before: remedy.driver_calls_before,
        }
    }
}

/// Rounds to tenths. Finer digits of a clock that is read twice for 100,000 events are noise.
fn tenths(nanoseconds: f64) -> f64 {
    (nanoseconds * 10.0).round() / 10.0
}
