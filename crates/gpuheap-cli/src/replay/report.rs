//! What people read: a table, one sentence that recommends, and why a policy failed.

use std::collections::BTreeSet;
use std::fmt::Write;

use gpuheap::{Bytes, Cause, PoolKind};

use super::engine::Stop;
use super::minimum::Minimum;
use super::{PoolReport, TraceReport};

const WIDTH: usize = 80;
/// Pools that reserve up to a twentieth more than the least are told apart by their speed.
const MARGIN: u64 = 20;
/// How many times faster one of them has to be: less is noise, and the advice would change with it.
const FASTER: f64 = 1.5;
/// How many events there have to be for their time to say anything.
const TIMED_EVENTS: u64 = 1000;

/// One section for each trace.
pub(crate) fn render(reports: &[TraceReport]) -> String {
    let sections: Vec<String> = reports.iter().map(section).collect();
    sections.join("\n")
}

fn section(report: &TraceReport) -> String {
    let mut text = String::new();
    header(&mut text, report);
    table(&mut text, report);
    text.push('\n');
    paragraph(&mut text, &recommendation(report));
    for pool in &report.pools {
        let explanation = match (&pool.outcome.stop, &pool.minimum) {
            (Some(stop), _) => failure(report, pool, stop),
            (None, Some(Minimum::Never(reason))) => {
                format!("No smallest device was found for {}: {reason}.", pool.pool)
            }
            _ => continue,
        };
        text.push('\n');
        paragraph(&mut text, &explanation);
    }
    text
}

fn header(text: &mut String, report: &TraceReport) {
    let summary = &report.summary;
    let device = report.recorded_on.map(|device| format!(", device {device}"));
    line(text, format_args!("{} ({}{})", report.name, report.format, device.unwrap_or_default()));
    line(
        text,
        format_args!(
            "{} on {}, {} live at the peak",
            count(summary.events, "event"),
            count(summary.streams as u64, "stream"),
            Bytes(summary.peak_live_bytes)
        ),
    );
    let (an, beside) = if report.emulated { ("an ", " beside its context") } else { ("", "") };
    let memory = Bytes(report.device_memory);
    paragraph(text, &format!("on {an}{} with {memory}{beside}", report.device));
    if let Some(first) = &report.first_failure {
        let failed = format!(
            "{} failed when this was recorded, the first of {} at event {}. Here each is served at \
             its place and freed at once, since the trace cannot say what would have followed: every \
             figure is a lower bound.",
            count(summary.failures, "request"),
            Bytes(first.bytes),
            grouped(first.event)
        );
        paragraph(text, &failed);
    }
    text.push('\n');
}

fn table(text: &mut String, report: &TraceReport) {
    let with_minimum = report.pools.iter().any(|pool| pool.minimum.is_some());
    let minimum = |cell: &str| match with_minimum {
        true => format!("  {cell:>15}"),
        false => String::new(),
    };
    line(
        text,
        format_args!(
            "{:<9} {:>13}  {:>11}  {:>12}  {:>8}{}",
            "pool",
            "peak reserved",
            "utilisation",
            "driver calls",
            "ns/event",
            minimum("smallest device")
        ),
    );
    for pool in &report.pools {
        let outcome = &pool.outcome;
        let mark = match () {
            () if is_model(report, pool.pool) => "*",
            () if outcome.fallback.is_some() => "+",
            () => "",
        };
        let name = format!("{}{mark}", pool.pool);
        let smallest = minimum(&match pool.minimum {
            Some(Minimum::Bytes(bytes)) => format!("{:#}", Bytes(bytes)),
            Some(Minimum::Never(_)) | None => "-".to_owned(),
        });
        match &outcome.stop {
            Some(stop) => line(
                text,
                format_args!(
                    "{name:<9} {:<50}{smallest}",
                    format!("out of memory at {}", place(stop))
                ),
            ),
            None => line(
                text,
                format_args!(
                    "{name:<9} {:>13}  {:>11}  {:>12}  {:>8}{smallest}",
                    Bytes(outcome.peak_reserved).to_string(),
                    outcome.utilisation().map_or("-".to_owned(), |share| format!("{share:.3}")),
                    grouped(outcome.driver_calls),
                    outcome.warm_ns.map_or("-".to_owned(), |ns| grouped(ns.round() as u64)),
                ),
            ),
        }
    }
    if report.pools.iter().any(|pool| is_model(report, pool.pool)) {
        line(
            text,
            format_args!(
                "* a model of the driver's own pools; never recommended from emulated figures"
            ),
        );
    }
    let fallbacks: BTreeSet<&str> =
        report.pools.iter().filter_map(|pool| pool.outcome.fallback.as_deref()).collect();
    for fallback in fallbacks {
        paragraph(text, &format!("+ {fallback}"));
    }
}

/// Whether a pool's figures are those of the emulator's model of the driver's own pools.
fn is_model(report: &TraceReport, pool: PoolKind) -> bool {
    report.emulated && pool == PoolKind::Driver
}

/// The pools apart from each other: not the one that was asked for and is another of them here.
fn distinct(report: &TraceReport) -> Vec<&PoolReport> {
    let is_there = |wanted| report.pools.iter().any(|pool| pool.pool == wanted);
    let same = |pool: &PoolReport| pool.outcome.fallback.is_some() && is_there(pool.outcome.pool);
    report.pools.iter().filter(|pool| !same(pool)).collect()
}

/// One sentence: which policy, why, and what device is enough for it.
fn recommendation(report: &TraceReport) -> String {
    let pools = distinct(report);
    let passed: Vec<&PoolReport> =
        pools.iter().filter(|pool| pool.outcome.stop.is_none()).copied().collect();
    let advisable: Vec<&PoolReport> =
        passed.iter().filter(|pool| !is_model(report, pool.pool)).copied().collect();
    // `none` takes least and pays a driver call for every event: advice only for want of another.
    let reserved = |pool: &PoolReport| pool.outcome.peak_reserved;
    let keeping = || advisable.iter().filter(|pool| pool.pool != PoolKind::None);
    let least = keeping().map(|pool| reserved(pool)).min().unwrap_or(0);
    // A little more memory is worth a faster pool.
    let margin = least + least / MARGIN;
    let smallest = keeping().min_by_key(|pool| (reserved(pool), rank(pool.outcome.pool)));
    let fastest = keeping()
        .filter(|pool| reserved(pool) <= margin && report.summary.events >= TIMED_EVENTS)
        .min_by(|one, other| time(one).total_cmp(&time(other)));
    let best = match (smallest, fastest) {
        (Some(smallest), Some(fastest)) if time(fastest) * FASTER <= time(smallest) => {
            Some(fastest)
        }
        _ => smallest,
    };
    let Some(pool) = best.or(advisable.first()) else {
        return nothing_to_recommend(report, &pools, &passed);
    };
    // What is set aside may do better, and that must not be denied.
    let aside = passed.iter().filter(|other| !keeping().any(|kept| kept.pool == other.pool));
    let is_least =
        reserved(pool) == least && smallest.is_some_and(|smallest| smallest.pool == pool.pool);
    let outdo = aside.clone().filter(|other| match is_least {
        true => reserved(other) < least,
        false => reserved(other) <= margin && time(other) < time(pool),
    });
    let (models, others): (Vec<&PoolReport>, _) =
        outdo.partition(|other| is_model(report, other.pool));
    let among = match (models.is_empty(), others.is_empty()) {
        (true, true) => "",
        (false, true) => " and are no model",
        (true, false) => " and keep what is freed",
        (false, false) => ", are no model and keep what is freed",
    };
    let why = match (passed.len(), advisable.len()) {
        (1, _) if pools.len() == 1 => "it gets through and reserves".to_owned(),
        (1, _) => match limit(report, &pools) {
            None => "no other gets through on this device. It reserves".to_owned(),
            Some(limit) => format!("no other gets through within {}. It reserves", Bytes(limit)),
        },
        (_, 1) => {
            let models = aside.filter(|other| is_model(report, other.pool));
            format!("{}. It reserves", are_models(models, " too"))
        }
        _ if is_least => format!("of the pools that get through{among} it reserves the least,"),
        _ => format!("it is the fastest of those that reserve little{among},"),
    };
    let memory = Bytes(pool.outcome.peak_reserved);
    // What a program does with memory that it did not get when it was recorded is not in the trace.
    let device = match report.first_failure {
        None => format!("a device with {memory:#} beside its context is enough"),
        Some(_) => format!("at least {memory:#} beside a device's context are needed"),
    };
    let mut sentence = format!(
        "Use {}: {why} {memory} for {} live, so {device}",
        pool.outcome.pool,
        Bytes(pool.outcome.peak_live),
    );
    if let Some(Minimum::Bytes(bytes)) = pool.minimum
        && bytes < pool.outcome.peak_reserved
    {
        let less = format!(", and with {:#} it gets through by giving memory back", Bytes(bytes));
        sentence.push_str(&less);
    }
    sentence.push('.');
    let minima = advisable.iter().filter_map(|other| match other.minimum {
        Some(Minimum::Bytes(bytes)) if other.pool != pool.pool => Some((bytes, other.outcome.pool)),
        _ => None,
    });
    if let (Some(Minimum::Bytes(own)), Some((bytes, other))) =
        (&pool.minimum, minima.min_by_key(|found| found.0))
        && bytes < *own
    {
        let smaller = format!(
            " The smallest device of all, {:#}, is enough for {other}, at the price of giving memory \
             back and taking it again.",
            Bytes(bytes)
        );
        sentence.push_str(&smaller);
    }
    sentence
}

/// `the pool driver gets through too, and here it is a model`.
fn are_models<'a>(pools: impl Iterator<Item = &'a &'a PoolReport>, too: &str) -> String {
    let names: Vec<&str> = pools.map(|pool| pool.pool.name()).collect();
    // The pool called none would be read as no pool.
    let (the, get, are) = match names.len() {
        1 => ("the pool", "gets", "it is"),
        _ => ("the pools", "get", "they are"),
    };
    format!("{the} {} {get} through{too}, and here {are} a model", names.join(" and "))
}

fn nothing_to_recommend(
    report: &TraceReport,
    pools: &[&PoolReport],
    passed: &[&PoolReport],
) -> String {
    let through = match passed {
        [] => match limit(report, pools) {
            Some(limit) => {
                let how =
                    if report.emulated { "; without it --find-minimum says how far" } else { "" };
                return format!(
                    "No pool gets through within {}; raise the limit{how}.",
                    Bytes(limit)
                );
            }
            None => "No pool gets through on this device".to_owned(),
        },
        _ => {
            let only = if passed.len() < pools.len() { "only " } else { "" };
            format!("On this device {only}{}", are_models(passed.iter(), ""))
        }
    };
    if !passed.is_empty() && pools.iter().all(|pool| is_model(report, pool.pool)) {
        let others: Vec<_> =
            PoolKind::ALL.into_iter().filter(|pool| !is_model(report, *pool)).collect();
        return format!("{through}; ask for {} too.", listed(&others));
    }
    let smallest = pools.iter().filter(|pool| !is_model(report, pool.pool)).filter_map(|pool| {
        match pool.minimum {
            Some(Minimum::Bytes(bytes)) => Some((bytes, pool.outcome.pool)),
            _ => None,
        }
    });
    let asked = pools.iter().any(|pool| pool.minimum.is_some());
    match smallest.min_by_key(|(bytes, pool)| (*bytes, rank(*pool))) {
        Some((bytes, pool)) => format!(
            "{through}; use {pool} on one with {:#} beside its context, the smallest that is enough.",
            Bytes(bytes)
        ),
        None if report.emulated && !asked => {
            format!("{through}; --find-minimum finds a device that is enough.")
        }
        None => format!("{through}."),
    }
}

/// The limit that pools stopped at, which is not the device's size.
fn limit(report: &TraceReport, pools: &[&PoolReport]) -> Option<u64> {
    let limits = pools.iter().filter_map(|pool| pool.outcome.stop.as_ref()?.evidence.limit);
    limits.min().filter(|limit| *limit < report.device_memory)
}

/// `one, another or a third`.
fn listed(pools: &[PoolKind]) -> String {
    let names: Vec<&str> = pools.iter().map(|pool| pool.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Which of the pools that are as good comes first: the default ones before the others.
fn rank(pool: PoolKind) -> u32 {
    match pool {
        PoolKind::Stitched => 0,
        PoolKind::Split => 1,
        // It gives everything back at once, at the price of two driver calls for each block.
        PoolKind::None => 3,
        _ => 2,
    }
}

fn time(pool: &PoolReport) -> f64 {
    pool.outcome.warm_ns.unwrap_or(f64::INFINITY)
}

/// The event, the time, the size, the cause, and what would have made it succeed.
fn failure(report: &TraceReport, pool: &PoolReport, stop: &Stop) -> String {
    let evidence = &stop.evidence;
    let cause = evidence.cause;
    // What one request lacked says little of those after it; a minimum that was found says it all.
    let enough = match &pool.minimum {
        Some(Minimum::Bytes(bytes)) => format!("It gets through on {:#}.", Bytes(*bytes)),
        Some(Minimum::Never(reason)) => format!("A larger device does not help: {reason}."),
        None if report.emulated => format!(
            "For this request alone: {}; --find-minimum{} tells what the whole trace needs.",
            evidence.remedy(),
            if limit(report, &[pool]).is_some() { " without a limit" } else { "" }
        ),
        None => format!("For this request alone: {}.", evidence.remedy()),
    };
    let needed = evidence.live.saturating_add(evidence.requested);
    let short = match evidence.short_by {
        Some(short) => format!("{} short, because", Bytes(short)),
        None => "but".to_owned(),
    };
    let hopeless = match cause {
        Cause::DeviceFull if evidence.device.is_some_and(|device| needed > device) => format!(
            "No pool could: the program needs {} at once, and the device has {}. ",
            Bytes(needed),
            Bytes(evidence.device.unwrap_or(0))
        ),
        _ => String::new(),
    };
    format!(
        "{} ran out of memory at {} of {}, {:.3} s into the trace: {} requested, {short} \
         {cause}. It had reserved {}: {} live in blocks of {}, {} cached, of which {} pending. \
         {hopeless}{enough}",
        pool.pool,
        place(stop),
        grouped(report.summary.events),
        stop.time_ns as f64 / 1e9,
        Bytes(evidence.requested),
        Bytes(evidence.reserved),
        Bytes(evidence.live),
        Bytes(evidence.live_blocks),
        Bytes(evidence.cached),
        Bytes(evidence.pending),
    )
}

fn place(stop: &Stop) -> String {
    let event = match stop.event {
        0 => "a block from before the recording".to_owned(),
        event => format!("event {}", grouped(event)),
    };
    match stop.pass {
        1 => event,
        _ => format!("{event} of the second pass"),
    }
}

fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}", line.to_string().trim_end());
}

/// Breaks between words, so that no line is wider than a terminal unless one word is.
fn paragraph(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        let width = word.chars().count();
        if column != 0 && column + 1 + width > WIDTH {
            text.push('\n');
            column = 0;
        }
        if column != 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use gpuheap_trace::{Format, TraceBuilder};

    use super::super::engine::Outcome;
    use super::*;

    /// A pool that gets through, what it reserves, and its time.
    type Passed = (PoolKind, u64, f64);

    fn recommended(emulated: bool, pools: &[Passed]) -> String {
        recommended_after(TIMED_EVENTS, emulated, pools)
    }

    /// The same for a trace of so many events.
    fn recommended_after(events: u64, emulated: bool, pools: &[Passed]) -> String {
        let trace = TraceBuilder::new("made up", Format::RmmCsv).finish();
        let mut summary = trace.summary();
        summary.events = events;
        let pool = |&(pool, peak_reserved, time): &Passed| {
            let (cold_ns, warm_ns) = (Some(time), Some(time));
            let outcome = Outcome {
                pool,
                fallback: None,
                peak_live: 50,
                peak_reserved,
                driver_calls: 1,
                cold_ns,
                warm_ns,
                stop: None,
            };
            PoolReport { pool, outcome, minimum: None }
        };
        let sentence = recommendation(&TraceReport {
            name: trace.name().to_owned(),
            format: trace.format(),
            recorded_on: None,
            first_failure: None,
            summary,
            device: "a device".to_owned(),
            device_memory: 1000,
            emulated,
            pools: pools.iter().map(pool).collect(),
        });
        let told = sentence.split(" for 50 bytes live").next().unwrap_or_default();
        // Which pools there are is not what is tested.
        told.split("; ask for ").next().unwrap_or_default().to_owned()
    }

    #[test]
    fn nothing_is_claimed_over_a_pool_that_does_better() {
        use PoolKind::{Binned, Driver, None, Simple, Split};
        let cases: [(bool, &[Passed], &str); 13] = [
            (true, &[(Split, 60, 1.0)], "Use split: it gets through and reserves 60 bytes"),
            (
                true,
                &[(Split, 60, 1.0), (Driver, 50, 1.0)],
                "Use split: the pool driver gets through too, and here it is a model. It reserves 60 bytes",
            ),
            (
                true,
                &[(None, 70, 1.0), (Split, 60, 1.0), (Driver, 70, 1.0)],
                "Use split: of the pools that get through it reserves the least, 60 bytes",
            ),
            (
                true,
                &[(None, 55, 1.0), (Split, 60, 1.0), (Driver, 70, 1.0)],
                "Use split: of the pools that get through and keep what is freed it reserves \
                 the least, 60 bytes",
            ),
            (
                true,
                &[(None, 55, 1.0), (Split, 60, 1.0), (Driver, 55, 1.0)],
                "Use split: of the pools that get through, are no model and keep what is freed it \
                 reserves the least, 60 bytes",
            ),
            (
                true,
                &[(Simple, 90, 1.0), (Split, 60, 2.0), (Driver, 70, 1.0)],
                "Use split: of the pools that get through it reserves the least, 60 bytes",
            ),
            (
                true,
                &[(Simple, 90, 1.0), (Split, 60, 2.0), (Driver, 55, 1.0)],
                "Use split: of the pools that get through and are no model it reserves the \
                 least, 60 bytes",
            ),
            (
                true,
                &[(Binned, 102, 1.0), (Split, 100, 2.0), (Driver, 101, 3.0)],
                "Use binned: it is the fastest of those that reserve little, 102 bytes",
            ),
            (
                true,
                &[(Binned, 102, 1.0), (Split, 100, 2.0), (Driver, 101, 0.5)],
                "Use binned: it is the fastest of those that reserve little and are no model, \
                 102 bytes",
            ),
            (
                false,
                &[(None, 55, 9.0), (Split, 60, 1.0)],
                "Use split: of the pools that get through and keep what is freed it reserves \
                 the least, 60 bytes",
            ),
            (
                false,
                &[(Split, 60, 1.0), (Driver, 55, 1.0)],
                "Use driver: of the pools that get through it reserves the least, 55 bytes",
            ),
            (
                true,
                &[(Driver, 55, 1.0)],
                "On this device the pool driver gets through, and here it is a model",
            ),
            (
                true,
                &[(None, 55, 1.0), (Driver, 55, 1.0)],
                "Use none: the pool driver gets through too, and here it is a model. It reserves 55 \
                 bytes",
            ),
        ];
        for (emulated, pools, sentence) in cases {
            assert_eq!(recommended(emulated, pools), sentence);
        }
    }

    #[test]
    fn of_pools_that_are_as_good_the_default_is_recommended() {
        use PoolKind::{Binned, Simple, Split, Stitched};
        let same = |pools: &[PoolKind], times: &[f64]| -> Vec<Passed> {
            pools.iter().zip(times).map(|(pool, time)| (*pool, 60, *time)).collect()
        };
        const LEAST: &str = "of the pools that get through it reserves the least, 60 bytes";
        const FASTEST: &str = "it is the fastest of those that reserve little, 60 bytes";
        let four = [Simple, Binned, Split, Stitched];
        for (pools, times, events, best, why) in [
            (&four[..], [1.0, 1.0, 1.0, 1.0], TIMED_EVENTS, Stitched, LEAST),
            (&four[..3], [1.0, 1.0, 1.0, 0.0], TIMED_EVENTS, Split, LEAST),
            (&four[..], [1.0, 5.0, 5.0, 5.0], TIMED_EVENTS, Simple, FASTEST),
            // The time of a few events is noise.
            (&four[..], [1.0, 5.0, 5.0, 5.0], TIMED_EVENTS - 1, Stitched, LEAST),
        ] {
            let told = recommended_after(events, true, &same(pools, &times));
            assert_eq!(told, format!("Use {best}: {why}"));
        }
    }

    #[test]
    fn lists_pools() {
        use PoolKind::{Binned, Driver, Split};
        let lists = [&[][..], &[Split], &[Split, Driver], &[Binned, Split, Driver]].map(listed);
        assert_eq!(lists, ["", "split", "split or driver", "binned, split or driver"]);
    }

    #[test]
    fn groups_digits() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn paragraphs_keep_to_the_width() {
        let mut text = String::new();
        paragraph(&mut text, &"word ".repeat(100));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 100);
    }
}
