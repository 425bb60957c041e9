//! The verdict: what happened, and what would help.

use super::table::place;
use super::words::{Amount, count, hanging, line, paragraph};
use crate::PeakRange;
use crate::replay::{Cause, TraceReport};
use crate::verdict::{MemoryAtFailure, Remedy, RemedyKind};

/// Lines of the program that are shown.
const HOLDERS: usize = 3;

pub(super) fn add(text: &mut String, report: &TraceReport) {
    paragraph(text, &sentence(report));
    if let Some(failure) = &report.verdict.failure {
        text.push('\n');
        happened(text, report, failure);
    }
    remedies(text, report);
    if !report.verdict.fits.is_empty() {
        text.push('\n');
        super::cards::add(text, &report.verdict.fits);
    }
}

/// One sentence: whether the trace gets through, and how much memory is enough.
fn sentence(report: &TraceReport) -> String {
    let verdict = &report.verdict;
    let at_least = if verdict.is_lower_bound { "at least " } else { "" };
    let failed = &report.recorded.failed;
    let recorded_failure = match failed.len() {
        0 => String::new(),
        _ => format!(
            "{} failed when this was recorded. What would have followed is not known, so every \
             figure is a lower bound. ",
            count(failed.len() as u64, "request")
        ),
    };
    if !verdict.gets_through {
        let who = match &verdict.failure {
            Some(MemoryAtFailure { pool: None, .. }) => "Memory ran out. ".to_owned(),
            Some(MemoryAtFailure { pool: Some(pool), .. }) if verdict.checked.len() == 1 => {
                format!("{pool} runs out of memory. ")
            }
            _ => {
                let failing = |pool: &&crate::replay::PoolReport| {
                    pool.stop.is_some() && verdict.checked.contains(&pool.pool)
                };
                let failing = report.pools.iter().filter(failing).count();
                match failing == verdict.checked.len() {
                    true => "No pool gets through. ".to_owned(),
                    false => format!(
                        "{failing} of {} run out of memory. ",
                        count(verdict.checked.len() as u64, "pool")
                    ),
                }
            }
        };
        return format!("{who}{recorded_failure}").trim_end().to_owned();
    }
    let best = match report.recorded.allocator {
        Some(_) => report.pools.iter().find(|pool| verdict.checked.contains(&pool.pool)),
        None => None,
    };
    let enough = match (best, &verdict.recommended) {
        (Some(pool), _) => {
            let smallest = pool.minimum.as_ref().and_then(|minimum| minimum.bytes());
            let enough = smallest.unwrap_or(pool.peak_reserved.high);
            format!(
                "With {} it gets through: {at_least}{:#} of usable memory {}.",
                name(report, &pool.pool.to_string()),
                Amount(enough),
                if verdict.is_lower_bound { "is needed" } else { "is enough" }
            )
        }
        (None, Some(advice)) => format!(
            "It gets through. With {} {at_least}{:#} of usable memory is {}.",
            advice.pool,
            Amount(advice.enough),
            if verdict.is_lower_bound { "needed" } else { "enough" }
        ),
        (None, None) => "It gets through.".to_owned(),
    };
    format!("{recorded_failure}{enough}")
}

/// The pool, with the settings that `torch` alone stands for.
fn name(report: &TraceReport, pool: &str) -> String {
    let recorded = report.recorded.settings.as_deref();
    match (pool, recorded) {
        ("torch", Some("")) => "PyTorch's default settings, as recorded,".to_owned(),
        ("torch", Some(settings)) => format!("PyTorch's settings as recorded ({settings})"),
        _ => pool.to_owned(),
    }
}

fn happened(text: &mut String, report: &TraceReport, failure: &MemoryAtFailure) {
    let events = super::words::grouped(report.summary.events);
    let reserved = match failure.reserved {
        Some(reserved) => format!(
            " {} had reserved {}.",
            failure.pool.as_ref().map_or("PyTorch".to_owned(), ToString::to_string),
            Amount(reserved)
        ),
        None => String::new(),
    };
    let free = match failure.device_free {
        Some(free) => format!(" CUDA had {} free.", Amount(free)),
        None => String::new(),
    };
    let what = format!(
        "At {} of {events}, {:.3} s in, {} was requested.{reserved}{free}{}",
        place(failure.event, 1),
        failure.time_ns as f64 / 1e9,
        Amount(failure.requested),
        reason(report, failure),
    );
    hanging(text, "What happened: ", "  ", &what);
    let mut row = |bytes: u64, what: &str| {
        line(text, format_args!("  {:>12}  {what}", Amount(bytes).to_string()));
    };
    row(failure.live, "live, as requested");
    if let Some(rounding) = failure.rounding {
        row(rounding, "lost to rounding");
    }
    if let Some(free) = failure.free {
        let largest = failure.largest.unwrap_or(0);
        let pieces = match failure.pieces {
            Some(pieces) => format!("free in {}", count(pieces, "piece")),
            None => "free in pieces".to_owned(),
        };
        row(free, &format!("{pieces}, the largest {}", Amount(largest)));
    }
    if let Some(pending) = failure.pending {
        row(pending, "freed, but pending on other streams");
    }
    if let Some(other) = failure.other_streams {
        row(other, "free, but held for other streams");
    }
    let held: Vec<String> = failure.holders[..failure.holders.len().min(HOLDERS)]
        .iter()
        .map(|holder| match failure.has_stacks {
            true => format!("{} {} ({})", Amount(holder.bytes), holder.name, holder.blocks),
            false => {
                format!("{} in {} of {}", Amount(holder.bytes), blocks(holder.blocks), holder.name)
            }
        })
        .collect();
    if !held.is_empty() {
        hanging(text, "  Held the most: ", "    ", &held.join("; "));
    }
}

fn blocks(number: u64) -> String {
    count(number, "block")
}

/// A sentence on the main reason, with a blank before it.
fn reason(report: &TraceReport, failure: &MemoryAtFailure) -> String {
    let own_limit = report.recorded.limit.is_some_and(|limit| limit.is_own_limit);
    let recorded = failure.pool.is_none();
    let limit = match failure.device_free {
        Some(free) if recorded && own_limit && free > failure.requested => {
            " PyTorch's own memory fraction was in the way, and within it: "
        }
        _ => " Main reason: ",
    };
    let text = match failure.cause {
        None => return String::new(),
        Some(Cause::LargerThanDevice) => "the request is larger than the device",
        Some(Cause::LargerThanLimit) => "the request is larger than the limit",
        Some(Cause::Limit) => "live memory and the request are more than the limit",
        Some(Cause::DeviceFull) => "live memory and the request are more than the device has",
        Some(Cause::Rounding) => "rounding takes the room",
        Some(Cause::Fragmentation) => "what is free is in pieces that are too small",
        Some(Cause::Pending) => "what is freed is still used by other streams",
        Some(Cause::OtherStreams) => "what is free is held for other streams",
        Some(Cause::Other(name)) => return format!("{limit}{}.", name.replace('_', " ")),
    };
    format!("{limit}{text}.")
}

fn remedies(text: &mut String, report: &TraceReport) {
    let verdict = &report.verdict;
    if verdict.remedies.is_empty() {
        if !verdict.gets_through {
            text.push('\n');
            let limit = report.pools.iter().filter_map(|pool| pool.stop.as_ref()?.limit).min();
            let within = match limit {
                Some(limit) => format!("within {}", Amount(limit)),
                None => "on this device".to_owned(),
            };
            let minima = report.pools.iter().filter_map(|pool| {
                let bytes = pool.minimum.as_ref()?.bytes()?;
                (!verdict.is_lower_bound).then_some((bytes, &pool.pool))
            });
            let how = match minima.min_by_key(|(bytes, _)| *bytes) {
                Some((bytes, pool)) => {
                    format!("; {:#} of usable memory is enough with {pool}", Amount(bytes))
                }
                None if report.device.is_emulated
                    && report.pools.iter().all(|pool| pool.minimum.is_none()) =>
                {
                    "; --find-minimum finds a device that is enough".to_owned()
                }
                None => String::new(),
            };
            paragraph(text, &format!("None of these pools lets it through {within}{how}."));
        }
        return;
    }
    text.push('\n');
    let title = match (verdict.gets_through, verdict.is_lower_bound) {
        (false, true) => "What would have let it through, cheapest first (at least):",
        (false, false) => "What lets it through, cheapest first:",
        (true, _) if report.recorded.allocator.is_some() => "What takes less:",
        (true, _) => "What takes the least:",
    };
    line(text, format_args!("{title}"));
    for (number, remedy) in (1..).zip(&verdict.remedies) {
        hanging(text, &format!("  {number}. "), "     ", &typed(report, remedy));
        hanging(text, "     ", "     ", &costs(report, remedy));
    }
}

fn typed(report: &TraceReport, remedy: &Remedy) -> String {
    match remedy.kind {
        RemedyKind::Limit if report.device.is_recorded => {
            format!("a higher limit, {}", remedy.line)
        }
        _ => remedy.line.clone(),
    }
}

fn costs(report: &TraceReport, remedy: &Remedy) -> String {
    let at_least = if report.verdict.is_lower_bound { "at least " } else { "" };
    let mut parts = Vec::new();
    match (remedy.kind, remedy.reserved) {
        (RemedyKind::Limit, Some(PeakRange { high, .. })) => {
            parts.push(format!("{at_least}{:#} are needed", Amount(high)));
        }
        (_, Some(PeakRange { low, high })) if low != high => {
            parts.push(format!("reserves {at_least}{} to {}", Amount(low), Amount(high)));
        }
        (_, Some(PeakRange { high, .. })) => {
            parts.push(format!("reserves {at_least}{}", Amount(high)));
        }
        (_, None) => {}
    }
    if let Some(saves) = remedy.saves.filter(|saves| *saves > 0) {
        parts.push(format!("{} less", Amount(saves)));
    }
    match (remedy.driver_calls, remedy.driver_calls_before) {
        (Some(calls), Some(before)) => parts.push(format!(
            "{} instead of {}",
            count(calls, "driver call"),
            super::words::grouped(before)
        )),
        (Some(calls), None) => parts.push(count(calls, "driver call")),
        _ => {}
    }
    if remedy.is_own_heap && report.recorded.allocator.is_some() {
        parts.push("through crates/gpuheap-capi/examples/torch_allocator.cpp".to_owned());
    }
    if remedy.is_closed_driver {
        parts.push("by a model of NVIDIA's driver".to_owned());
    }
    parts.join(", ")
}
