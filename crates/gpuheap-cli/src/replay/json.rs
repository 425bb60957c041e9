//! The output of `gpuheap replay --json`. Its names are stable: fields may be added, none goes.

use serde::Serialize;

use super::engine::{Outcome, Stop};
use super::minimum::Minimum;
use super::{PoolReport, TraceReport};

/// All traces as one JSON array.
pub(crate) fn render(reports: &[TraceReport]) -> Result<String, serde_json::Error> {
    let traces: Vec<Trace<'_>> = reports.iter().map(Trace::of).collect();
    Ok(serde_json::to_string_pretty(&traces)? + "\n")
}

/// One trace; a snapshot has one for each device that it saw.
#[derive(Serialize)]
struct Trace<'a> {
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
}

/// One policy.
#[derive(Serialize)]
struct Pool<'a> {
    pool: &'static str,
    peak_reserved_bytes: u64,
    utilisation: Option<f64>,
    driver_calls: u64,
    ns_per_event: Option<f64>,
    cold_ns_per_event: Option<f64>,
    minimum_device_bytes: Option<u64>,
    out_of_memory: Option<OutOfMemory<'a>>,
    fallback: Option<&'a str>,
}

/// Where a policy stopped.
#[derive(Serialize)]
struct OutOfMemory<'a> {
    event: u64,
    requested_bytes: u64,
    live_bytes: u64,
    cached_bytes: u64,
    largest_cached_block_bytes: u64,
    short_by_bytes: Option<u64>,
    cause: &'a str,
}

impl<'a> Trace<'a> {
    fn of(report: &'a TraceReport) -> Trace<'a> {
        let summary = &report.summary;
        Trace {
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
            device_memory_bytes: report.device_memory,
            results: report.pools.iter().map(Pool::of).collect(),
        }
    }
}

impl<'a> Pool<'a> {
    fn of(report: &'a PoolReport) -> Pool<'a> {
        let outcome = &report.outcome;
        Pool {
            pool: report.pool.name(),
            peak_reserved_bytes: outcome.peak_reserved,
            utilisation: outcome.utilisation(),
            driver_calls: outcome.driver_calls,
            ns_per_event: outcome.warm_ns.map(tenths),
            cold_ns_per_event: outcome.cold_ns.map(tenths),
            minimum_device_bytes: match report.minimum {
                Some(Minimum::Bytes(bytes)) => Some(bytes),
                Some(Minimum::Never(_)) | None => None,
            },
            out_of_memory: outcome.stop.as_ref().map(OutOfMemory::of),
            fallback: outcome.fallback.as_deref(),
        }
    }
}

impl<'a> OutOfMemory<'a> {
    fn of(stop: &'a Stop) -> OutOfMemory<'a> {
        let evidence = &stop.evidence;
        OutOfMemory {
            event: stop.event,
            requested_bytes: evidence.requested,
            live_bytes: evidence.live,
            cached_bytes: evidence.cached,
            largest_cached_block_bytes: evidence.largest_cached_block,
            short_by_bytes: evidence.short_by,
            cause: evidence.cause.name(),
        }
    }
}

impl Outcome {
    /// Peak live ÷ peak reserved; `None` where nothing was ever reserved.
    pub(crate) fn utilisation(&self) -> Option<f64> {
        (self.peak_reserved != 0).then(|| self.peak_live as f64 / self.peak_reserved as f64)
    }
}

/// A clock that is read twice for a hundred thousand events says no more.
fn tenths(nanoseconds: f64) -> f64 {
    (nanoseconds * 10.0).round() / 10.0
}
