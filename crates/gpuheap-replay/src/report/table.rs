//! The table of pools.

use std::collections::BTreeSet;

use crate::replay::{Cause, Minimum, PoolReport, Stop};
use crate::run::TraceReport;
use crate::text::{Amount, WIDTH, add_line, grouped, paragraph, wrap};
use crate::{Gap, PeakRange};

/// Width of the column of names. A longer name has a separate line.
const NAME: usize = 12;

pub(super) fn add(text: &mut String, report: &TraceReport) {
    let has_minimum = report.pools.iter().any(|pool| pool.minimum.is_some());
    let minimum = |cell: &str| match has_minimum {
        true => format!("  {cell:>15}"),
        false => String::new(),
    };
    add_line!(
        text,
        "{:<NAME$} {:>15}  {:>5}  {:>12}  {:>8}{}",
        "pool",
        "peak reserved",
        "used",
        "driver calls",
        "ns/event",
        minimum("smallest device")
    );
    for pool in &report.pools {
        let is_model = pool.pool.is_closed_driver(report.device.is_emulated);
        let mark = match () {
            () if is_model => "*",
            () if pool.fallback.is_some() => "+",
            () => "",
        };
        let mut name = format!("{}{mark}", pool.pool);
        if name.chars().count() > NAME {
            wrap(text, "", "  ", name.split_inclusive(','), WIDTH);
            name.clear();
        }
        let smallest = minimum(&match &pool.minimum {
            Some(Minimum::Bytes(bytes)) => format!("{:#}", Amount(*bytes)),
            Some(Minimum::Never(_)) | None => "-".to_owned(),
        });
        match &pool.stop {
            Some(stop) => {
                add_line!(text, "{name:<NAME$} {:<46}{smallest}", stopped(stop));
            }
            None => add_line!(
                text,
                "{name:<NAME$} {:>15}  {:>5}  {:>12}  {:>8}{smallest}",
                range(pool.peak_reserved),
                used(pool),
                grouped(pool.driver_calls),
                pool.warm_ns.map_or("-".to_owned(), |ns| grouped(ns.round() as u64))
            ),
        }
    }
    notes(text, report);
}

fn notes(text: &mut String, report: &TraceReport) {
    if let Some(used) = report.recorded.used() {
        paragraph(text, &used);
    }
    if report.pools.iter().any(|pool| pool.pool.is_closed_driver(report.device.is_emulated)) {
        paragraph(text, &closed_driver(report));
    }
    if report.pools.iter().any(|pool| pool.peak_reserved.low != pool.peak_reserved.high) {
        paragraph(text, &why_range(report));
    }
    let is_bare = |pool: &PoolReport| {
        matches!(pool.pool.to_string().as_str(), "rmm:pool" | "rmm:arena") && pool.stop.is_none()
    };
    if report.pools.iter().any(is_bare) {
        let why =
            "rmm:pool and rmm:arena take half of the device at the start, unless told a size.";
        add_line!(text, "{why}");
    }
    let fallbacks: BTreeSet<&str> =
        report.pools.iter().filter_map(|pool| pool.fallback.as_deref()).collect();
    for fallback in fallbacks {
        paragraph(text, &format!("+ {fallback}"));
    }
    let reasons = report.pools.iter().filter_map(|pool| match &pool.minimum {
        Some(Minimum::Never(reason)) => Some(reason.as_str()),
        _ => None,
    });
    for reason in reasons.collect::<BTreeSet<_>>() {
        paragraph(text, &format!("- no smallest device: {reason}"));
    }
}

/// Returns the note that the driver's pools are only modelled, with the error of each model. The
/// errors were measured with random programs on an H200 (driver 580, 2026-11-22). `tests/pools`
/// checks bounds of the errors.
fn closed_driver(report: &TraceReport) -> String {
    const ERRORS: [(&str, &str); 3] =
        [("cuda", "2 %"), ("cuda:async", "10 %"), ("rmm:async", "10 %")];
    let is_shown = |name: &str| report.pools.iter().any(|pool| pool.pool.base() == name);
    let shown = ERRORS.iter().filter(|(name, _)| is_shown(name));
    let errors: Vec<String> = shown.map(|(name, error)| format!("{error} ({name})")).collect();
    let closed = "* a model of NVIDIA's driver, whose source is closed";
    match errors.is_empty() {
        true => closed.to_owned(),
        false => format!("{closed}; on an H200 it was off by up to {}", errors.join(", ")),
    }
}

/// Returns the note that says why the peak of some pools is a range, from a lower to an upper end.
fn why_range(report: &TraceReport) -> String {
    let error = report.gaps.iter().find_map(|gap| match gap {
        Gap::Inexact(found) => Some(100.0 * found.error()),
        _ => None,
    });
    let speed = "which blocks of other streams are free depends on the program's speed";
    match (error, report.recorded.waits) {
        (None, _) => format!("A range: {speed}."),
        (Some(error), false) => {
            format!("A range: the model is {error:+.1} % off under the recorded settings.")
        }
        (Some(error), true) => format!(
            "A range: {speed}, and the model is {error:+.1} % off under the recorded settings."
        ),
    }
}

fn range(peak: PeakRange) -> String {
    let PeakRange { low, high } = peak;
    let (from, to) = (Amount(low).to_string(), Amount(high).to_string());
    match (from.split_once(' '), to.split_once(' ')) {
        _ if low == high => to,
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number}-{to}"),
        _ => format!("{from}-{to}"),
    }
}

fn used(pool: &PoolReport) -> String {
    pool.utilisation().map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn stopped(stop: &Stop) -> String {
    format!("fails at {}: {}", place(stop.event, stop.pass), reason(stop))
}

/// Returns the text that names an event. The text includes the pass, unless it is the first pass.
pub(super) fn place(event: u64, pass: u32) -> String {
    let event = match event {
        0 => "the start".to_owned(),
        event => format!("event {}", grouped(event)),
    };
    match pass {
        1 => event,
        _ => format!("{event}, repeated"),
    }
}

fn reason(stop: &Stop) -> String {
    match stop.cause {
        Cause::LargerThanDevice | Cause::LargerThanLimit => "the request is too large".to_owned(),
        Cause::Limit => "the limit is too low".to_owned(),
        Cause::DeviceFull => "the device is full".to_owned(),
        Cause::Rounding => format!("{} of rounding", Amount(stop.rounding)),
        Cause::Fragmentation => {
            let free = stop.cached.saturating_sub(stop.pending);
            format!("{} free in pieces", Amount(free))
        }
        Cause::Pending => format!("{} pending", Amount(stop.pending)),
        Cause::OtherStreams => {
            format!("{} of other streams", Amount(stop.other_streams.unwrap_or(0)))
        }
        Cause::Other(name) => name.replace('_', " "),
    }
}
