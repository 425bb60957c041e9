//! Renders reports as JSON. Names are stable: fields are added, and no field is removed.

#![allow(non_camel_case_types, reason = "each field of an object has a type parameter of its name")]

use serde::Serialize;

use crate::Gap;
use crate::recorded::Recorded;
use crate::replay::{Minimum, PoolReport};
use crate::run::TraceReport;
use crate::tune::TraceSearch;
use crate::verdict::{MemoryAtFailure, Way};

/// Version of the fields.
const SCHEMA: u32 = 1;

/// Makes a value that serializes as a JSON object with these fields, in this order.
macro_rules! object {
    ($($name:ident: $value:expr,)*) => {{
        #[derive(Serialize)]
        struct Object<$($name),*> {
            $($name: $name,)*
        }
        Object { $($name: $value,)* }
    }};
}

/// Renders reports as one JSON array with one object for each trace. `docs/replay.schema.json` is
/// its schema.
///
/// # Errors
/// Returns the error of the JSON serializer. No report is known to cause such an error.
pub fn render(reports: &[TraceReport]) -> Result<String, serde_json::Error> {
    array(reports.iter().map(trace))
}

/// Renders searches for settings as one JSON array with one object for each trace.
/// `docs/replay.schema.json` is its schema.
///
/// # Errors
/// Returns the error of the JSON serializer. No search is known to cause such an error.
pub fn render_searches(searches: &[TraceSearch]) -> Result<String, serde_json::Error> {
    array(searches.iter().map(search))
}

fn array(objects: impl Iterator<Item = impl Serialize>) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&objects.collect::<Vec<_>>())? + "\n")
}

fn search(search: &TraceSearch) -> impl Serialize {
    let settings = search.candidates.iter().map(|candidate| {
        object! {
            line: &candidate.setting,
            python: &candidate.python,
            pool: &candidate.model,
            peak_reserved_bytes: candidate.reserved_peak,
            driver_calls: candidate.driver_calls,
            fails: candidate.fails,
        }
    });
    object! {
        schema: SCHEMA,
        trace: &search.name,
        format: search.format.as_str(),
        device: search.recorded_on,
        device_memory_bytes: search.device.usable,
        profile: &search.device.profile,
        framework: search.family.name(),
        tried: search.tried,
        gets_through: search.gets_through(),
        at_least: !search.recorded.failed.is_empty(),
        settings: settings.collect::<Vec<_>>(),
    }
}

/// Converts the report of one trace. A snapshot has one trace for each device that the program
/// used.
fn trace(report: &TraceReport) -> impl Serialize {
    let summary = &report.summary;
    object! {
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
        results: report.pools.iter().map(pool).collect::<Vec<_>>(),
        recorded: recorded(&report.recorded, &report.gaps),
        verdict: verdict(report),
    }
}

fn pool(report: &PoolReport) -> impl Serialize {
    let out_of_memory = report.stop.as_ref().map(|stop| {
        object! {
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
    });
    object! {
        pool: report.pool.to_string(),
        settings: &report.settings,
        peak_reserved_bytes: report.peak_reserved.high,
        peak_reserved_low_bytes: report.peak_reserved.low,
        utilisation: report.utilisation(),
        driver_calls: report.driver_calls,
        ns_per_event: report.warm_ns.map(tenths),
        cold_ns_per_event: report.cold_ns.map(tenths),
        minimum_device_bytes: report.minimum.as_ref().and_then(Minimum::bytes),
        out_of_memory: out_of_memory,
        fallback: &report.fallback,
    }
}

fn recorded(recorded: &Recorded, gaps: &[Gap]) -> impl Serialize {
    let failed = recorded.failed.iter().map(|request| {
        object! {
            event: request.event,
            requested_bytes: request.bytes,
            device_free_bytes: request.device_free,
        }
    });
    let gaps = gaps.iter().map(|gap| object! { kind: gap.name(), text: gap.to_string(), });
    object! {
        allocator: recorded.allocator,
        settings: &recorded.settings,
        peak_reserved_bytes: recorded.peak_reserved,
        memory_at_least_bytes: recorded.limit.map(|limit| limit.least),
        memory_below_bytes: recorded.limit.map(|limit| limit.below),
        failed_requests: failed.collect::<Vec<_>>(),
        gaps: gaps.collect::<Vec<_>>(),
    }
}

fn verdict(report: &TraceReport) -> impl Serialize {
    let verdict = &report.verdict;
    let advice = verdict.recommended.as_ref();
    let fits = verdict.fits.iter().map(|fit| {
        object! {
            card: fit.card.name,
            usable_bytes: fit.card.usable_bytes,
            usable_is_measured: fit.card.usable_is_measured,
            fits: fit.way.is_some(),
            // Null if no other pool is needed, or if no pool is enough.
            with_pool: match &fit.way {
                Some(Way::With(pool)) => Some(pool),
                _ => None,
            },
        }
    });
    let remedies = verdict.remedies.iter().map(|remedy| {
        object! {
            kind: remedy.kind.name(),
            pool: &remedy.pool,
            line: &remedy.line,
            python: &remedy.python,
            reserved_bytes: remedy.reserved.map(|range| range.high),
            reserved_low_bytes: remedy.reserved.map(|range| range.low),
            saves_bytes: remedy.saves,
            driver_calls: remedy.driver_calls,
            driver_calls_before: remedy.driver_calls_before,
        }
    });
    object! {
        gets_through: verdict.gets_through,
        may_fail: verdict.may_fail,
        at_least: verdict.is_lower_bound,
        checked: verdict.checked.iter().map(ToString::to_string).collect::<Vec<_>>(),
        profile: &report.device.profile,
        recommended_pool: advice.map(|advice| &advice.pool),
        recommended_setting: advice.map(|advice| &advice.setting),
        enough_bytes: advice.map(|advice| advice.enough),
        needs_bytes: verdict.needs.map(|needs| needs.least),
        takes_bytes: verdict.needs.map(|needs| needs.most),
        failure: verdict.failure.as_ref().map(failure),
        fits: fits.collect::<Vec<_>>(),
        remedies: remedies.collect::<Vec<_>>(),
    }
}

fn failure(failure: &MemoryAtFailure) -> impl Serialize {
    const HOLDERS: usize = 10;
    let holders = failure.holders.iter().take(HOLDERS).map(|holder| {
        object! { name: &holder.name, bytes: holder.bytes, blocks: holder.blocks, }
    });
    let causes = object! {
        live_bytes: failure.live,
        rounding_bytes: failure.rounding,
        free_in_pieces_bytes: failure.free,
        pending_bytes: failure.pending,
        other_streams_bytes: failure.other_streams,
    };
    object! {
        pool: failure.pool.as_ref().map(ToString::to_string),
        event: failure.event,
        requested_bytes: failure.requested,
        reserved_bytes: failure.reserved,
        device_free_bytes: failure.device_free,
        cause: failure.cause.map(|cause| cause.name()),
        causes: causes,
        pieces: failure.pieces,
        largest_piece_bytes: failure.largest,
        held_most: holders.collect::<Vec<_>>(),
    }
}

/// Rounds to tenths. The clock is read twice for 100,000 events, so finer digits are noise.
fn tenths(nanoseconds: f64) -> f64 {
    (nanoseconds * 10.0).round() / 10.0
}
