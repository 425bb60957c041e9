//! Renders a verdict as text, with the outcome, its reason, and the remedies.

use super::table::place;
use crate::replay::{Cause, PoolReport};
use crate::run::TraceReport;
use crate::text::{Amount, add_line, count, exported, grouped, hanging, paragraph, typed};
use crate::verdict::{Advice, MemoryAtFailure, Remedy, RemedyKind};
use crate::{Gap, PeakRange};

/// Number of remedies that fit on a screen.
const SHOWN: usize = 3;

/// Length of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// At most one screen of 24 lines.
    #[default]
    Screen,
    /// All remedies, cards and holders.
    Full,
}

pub(super) fn add(text: &mut String, report: &TraceReport, detail: Detail) {
    let verdict = &report.verdict;
    let cut = match report.is_cut_off {
        true => " The log is cut off: figures are at least.",
        false => "",
    };
    let label = match Outcomes::from_report(report) {
        Outcomes::BothFirstReplayed => "As replayed: ",
        Outcomes::One | Outcomes::BothFirstRecorded => "",
    };
    let indent = if label.is_empty() { "" } else { "  " };
    hanging(text, label, indent, &format!("{}{cut}", sentence(report)));
    if let Some(failure) = &verdict.failure {
        add_failure(text, report, failure, detail);
    }
    add_other_outcome(text, report);
    let hidden = add_remedies(text, report, detail);
    if !verdict.fits.is_empty() {
        let first = verdict.remedies.first().and_then(|remedy| remedy.pool.as_deref());
        super::cards::add(text, &verdict.fits, first, detail == Detail::Full);
    }
    add_gaps(text, report);
    if detail == Detail::Screen {
        add_options(text, report, &hidden);
    }
}

/// Outcomes that a verdict reports. They are from the recorded run, from its replay, or from both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcomes {
    /// Only one outcome: the recorded failure if the verdict is about it, or else the replay's.
    One,
    /// Both outcomes. The recorded failure is first, because the recording does not name its
    /// device, and so the device of the replay is only a guess.
    BothFirstRecorded,
    /// Both outcomes. The replay's is first: the recorded run does not decide, or failed later.
    BothFirstReplayed,
}

impl Outcomes {
    fn from_report(report: &TraceReport) -> Self {
        let verdict = &report.verdict;
        let is_replayed = verdict.failure.as_ref().is_none_or(|failure| failure.pool.is_some());
        match report.recorded.failed.is_empty() {
            true => Self::One,
            false if verdict.gets_through || verdict.may_fail => Self::BothFirstReplayed,
            false if report.gaps.contains(&Gap::Device) => Self::BothFirstRecorded,
            false if is_replayed => Self::BothFirstReplayed,
            false => Self::One,
        }
    }
}

/// Returns one sentence on the outcome, and on the memory that is enough.
fn sentence(report: &TraceReport) -> String {
    let verdict = &report.verdict;
    let at_least = if verdict.is_lower_bound { "at least " } else { "" };
    if verdict.may_fail {
        return may_fail(report);
    }
    let is_checked = |pool: &&PoolReport| verdict.checked.contains(&pool.pool);
    if !verdict.gets_through {
        let who = match &verdict.failure {
            Some(MemoryAtFailure { pool: None, device_free, .. }) => ran_out(report, *device_free),
            Some(MemoryAtFailure { pool: Some(pool), .. }) if verdict.checked.len() == 1 => {
                format!("{pool} runs out of memory.")
            }
            _ => {
                let failing = report.pools.iter().filter(|pool| pool.stop.is_some());
                let failing = failing.filter(is_checked).count();
                match failing == verdict.checked.len() {
                    true if Outcomes::from_report(report) == Outcomes::One => {
                        "No pool gets through.".to_owned()
                    }
                    true => "no pool gets through.".to_owned(),
                    false => format!(
                        "{failing} of {} run out of memory.",
                        count(verdict.checked.len() as u64, "pool")
                    ),
                }
            }
        };
        return match verdict.is_lower_bound {
            true if report.gaps.contains(&Gap::Device) => format!(
                "{who} The log names neither its device nor its RMM resource: give the device, as in \
                 --card \"T4 16GB\", to see what gets through there."
            ),
            // No "at least" here: the title above the remedies calls all figures lower bounds.
            true if Outcomes::from_report(report) == Outcomes::One => {
                format!("{who} What would have followed is not known.")
            }
            _ => who,
        };
    }
    let best = report.recorded.allocator.and_then(|_| report.pools.iter().find(is_checked));
    let is_labelled = !report.recorded.failed.is_empty();
    let (with_, it, then) = match is_labelled {
        true => ("with", "it", ";"),
        false => ("With", "It", ":"),
    };
    match (best, &verdict.recommended) {
        (Some(pool), _) => {
            let name = pool_text(report, &pool.pool.to_string());
            let needs = needs(report, pool.peak_reserved.high);
            format!("{with_} {name} it gets through{then} {needs}.")
        }
        (None, Some(advice)) => format!(
            "{it} gets through{then} {at_least}{:#} of usable memory is {}{}.{}",
            Amount(advice.enough),
            if verdict.is_lower_bound { "needed" } else { "enough" },
            advice_text(advice),
            // If the user named pools that succeed, the verdict is about these pools, and lists no
            // cards. The RMM resource of the recorded run is then irrelevant.
            match verdict.fits.is_empty() || !report.recorded.is_rmm {
                true => "",
                false => " The log does not say which RMM resource it ran under.",
            }
        ),
        (None, None) => format!("{it} gets through."),
    }
}

/// If the report has two outcomes, adds the second one, unless `add_failure` has added it.
fn add_other_outcome(text: &mut String, report: &TraceReport) {
    let verdict = &report.verdict;
    let is_reported = verdict.failure.as_ref().is_some_and(|failure| failure.pool.is_none());
    match (Outcomes::from_report(report), report.recorded.failed.first()) {
        (Outcomes::BothFirstRecorded, _) => {
            if let Some(advice) = &verdict.recommended {
                let enough = Amount(advice.enough);
                let needed = format!("at least {enough:#} is needed{}.", advice_text(advice));
                hanging(text, "As replayed: ", "  ", &needed);
            }
        }
        (Outcomes::BothFirstReplayed, Some(first)) if !is_reported => {
            // Does not call figures lower bounds: the first outcome or the remedies' title does.
            let words = format!(
                "it failed at {}; what would have followed is not known.",
                place(first.event, 1)
            );
            hanging(text, "As recorded: ", "  ", &words);
        }
        _ => {}
    }
}

/// Returns the sentence on pools with which the program's speed decides whether memory runs out.
fn may_fail(report: &TraceReport) -> String {
    let verdict = &report.verdict;
    let is_meant = |pool: &&PoolReport| pool.may_fail && verdict.checked.contains(&pool.pool);
    let names: Vec<String> =
        report.pools.iter().filter(is_meant).map(|pool| pool.pool.to_string()).collect();
    let enough = match verdict.needs {
        Some(needs) => format!(" {:#} of usable memory is enough.", Amount(needs.least)),
        None => String::new(),
    };
    let lower = if verdict.is_lower_bound { " Figures are lower bounds." } else { "" };
    format!(
        "{} may run out of memory here, or get through: which blocks of other streams are free \
         depends on the program's speed.{enough}{lower}",
        names.join(", ")
    )
}

/// Returns the text "with POOL" for the advised pool. If that pool needs a setting, the text refers
/// to the first line of the list of remedies instead.
fn advice_text(advice: &Advice) -> String {
    match &advice.setting {
        Some(_) => " with the first of the lines below".to_owned(),
        None => format!(" with {}", advice.pool),
    }
}

/// Returns a text that states the least memory that the checked pool needs, and the memory that the
/// pool takes from a larger device. `here` is the memory that the pool took in the replay.
fn needs(report: &TraceReport, here: u64) -> String {
    let verdict = &report.verdict;
    let lower = if verdict.is_lower_bound { " (figures are lower bounds)" } else { "" };
    let Some(needs) = verdict.needs else {
        let at_least = if verdict.is_lower_bound { "at least " } else { "" };
        return format!(
            "it takes {at_least}{:#} here; --find-minimum finds the smallest device",
            Amount(here)
        );
    };
    let (least, most) = (Amount(needs.least), Amount(needs.most));
    // If the peak depends on the program's speed, less than `needs.least` may be enough.
    let (least, subject) = match needs.is_exact {
        true => (format!("it needs at least {least:#} of usable memory"), ""),
        false => (format!("{least:#} of usable memory is enough"), "it "),
    };
    match needs.most > needs.least {
        true => format!("{least}, and {subject}takes up to {most:#} where there is room{lower}"),
        false => format!("{least}{lower}"),
    }
}

/// Returns the sentence for a recorded failure. If the program's own limit caused the failure, the
/// sentence includes the limit.
fn ran_out(report: &TraceReport, free: Option<u64>) -> String {
    match (report.recorded.limit, free) {
        (Some(limit), Some(free)) if limit.is_own_limit => format!(
            "Memory ran out: your own limit of about {} stopped it (a memory fraction); {} were \
             free.",
            Amount(limit.least),
            Amount(free)
        ),
        _ => match report.recorded.run_limit() {
            Some(limit) => {
                format!("Memory ran out: the run was limited to {} (--limit).", Amount(limit))
            }
            None => "Memory ran out.".to_owned(),
        },
    }
}

/// Returns the name of the pool. For plain `torch`, adds the settings.
fn pool_text(report: &TraceReport, pool: &str) -> String {
    let recorded = report.recorded.settings.as_deref();
    match (pool, recorded) {
        ("torch", Some("")) => "PyTorch's default settings, as recorded,".to_owned(),
        ("torch", Some(settings)) => format!("PyTorch's settings as recorded ({settings})"),
        ("torch", None) if report.recorded.allocator.is_some() => {
            "PyTorch's default settings, assumed,".to_owned()
        }
        (pool, _) if report.recorded.allocator == Some(pool) => {
            format!("{}, as recorded,", report.recorded.allocator_name().unwrap_or(pool))
        }
        _ => pool.to_owned(),
    }
}

fn add_failure(text: &mut String, report: &TraceReport, failure: &MemoryAtFailure, detail: Detail) {
    let recorded =
        report.recorded.allocator_name().map_or("RMM", |name| name.trim_end_matches("'s pool"));
    let pool = failure.pool.as_ref().map_or(recorded.to_owned(), ToString::to_string);
    let reserved = failure.reserved.map(|bytes| format!(" {pool} had reserved {}.", Amount(bytes)));
    let reserved = reserved.unwrap_or_default();
    let which = match report.recorded.failed.len() {
        0 | 1 => String::new(),
        _ if failure.pool.is_some() => String::new(),
        failed => format!(", the first of {} that failed", grouped(failed as u64)),
    };
    let what = format!(
        "{} was requested at {} of {}, {:.3} s in{which}.{reserved}{}",
        Amount(failure.requested),
        place(failure.event, 1),
        grouped(report.summary.events),
        failure.time_ns as f64 / 1e9,
        reason(report, failure),
    );
    let (title, unknown) = match (Outcomes::from_report(report), failure.pool.is_some()) {
        (Outcomes::One, _) | (_, true) => ("What happened: ", ""),
        (Outcomes::BothFirstReplayed, false) => {
            ("As recorded: ", " What would have followed is not known.")
        }
        (Outcomes::BothFirstRecorded, false) => ("As recorded: ", ""),
    };
    hanging(text, title, "  ", &format!("{what}{unknown}"));
    // If the replay succeeds, the screen leaves out these details, so that the remedies have room.
    if report.verdict.gets_through && detail == Detail::Screen {
        return;
    }
    let mut cells = vec![(failure.live, "live, as requested".to_owned())];
    cells.extend(failure.rounding.map(|bytes| (bytes, "lost to rounding".to_owned())));
    if let Some(free) = failure.free {
        let pieces = match failure.pieces {
            Some(pieces) => format!("free in {}", count(pieces, "piece")),
            None => "free in pieces".to_owned(),
        };
        cells.push((free, pieces));
        cells.push((failure.largest.unwrap_or(0), "in the largest piece".to_owned()));
    }
    let of_streams = [
        (failure.pending, "pending on other streams"),
        (failure.other_streams, "held for other streams"),
    ];
    let of_streams = of_streams.map(|(bytes, what)| (bytes.unwrap_or(0), what.to_owned()));
    cells.extend(of_streams.into_iter().filter(|(bytes, _)| *bytes > 0));
    for pair in cells.chunks(2) {
        let cell = |(bytes, what): &(u64, String)| {
            format!("  {:>11}  {what:<26}", Amount(*bytes).to_string())
        };
        let row: String = pair.iter().map(cell).collect();
        add_line!(text, "{row}");
    }
    let most = match detail {
        Detail::Screen => 3,
        Detail::Full => 10,
    };
    let held: Vec<String> = failure.holders[..failure.holders.len().min(most)]
        .iter()
        .map(|holder| match failure.has_stacks {
            true => format!("{} {} ({})", Amount(holder.bytes), holder.name, holder.blocks),
            false => {
                let blocks = count(holder.blocks, "block");
                format!("{} in {blocks} of {}", Amount(holder.bytes), holder.name)
            }
        })
        .collect();
    if !held.is_empty() {
        hanging(text, "  Held the most: ", "    ", &held.join("; "));
    }
}

/// Returns the sentences on the device and the main reason. Each sentence begins with a blank.
fn reason(report: &TraceReport, failure: &MemoryAtFailure) -> String {
    let own_limit = report.recorded.limit.is_some_and(|limit| limit.is_own_limit);
    let recorded = failure.pool.is_none();
    let device = match failure.device_free {
        // The report's first sentence already states the device's free memory.
        Some(_) if recorded && own_limit && !report.verdict.gets_through => String::new(),
        Some(free) if recorded && own_limit => {
            format!(" CUDA had {} free: a memory fraction was set.", Amount(free))
        }
        Some(free) => format!(" CUDA had {} free.", Amount(free)),
        None => String::new(),
    };
    let text = match failure.cause {
        None => return device,
        Some(Cause::LargerThanDevice) => "the request is larger than the device",
        Some(Cause::LargerThanLimit) => "the request is larger than the limit",
        Some(Cause::Limit) => "live memory and the request are more than the limit",
        Some(Cause::DeviceFull) => "live memory and the request are more than the device has",
        Some(Cause::Rounding) => "rounding takes the room",
        Some(Cause::Fragmentation) => "what is free is in pieces, each too small",
        Some(Cause::Pending) => "what is freed is still used by other streams",
        Some(Cause::OtherStreams) => "what is free is held for other streams",
        Some(Cause::Other(name)) => {
            return format!("{device} Main reason: {}.", name.replace('_', " "));
        }
    };
    format!("{device} Main reason: {text}.")
}

/// Adds the remedies that the report has room for. Returns the remedies that were left out.
fn add_remedies<'r>(text: &mut String, report: &'r TraceReport, detail: Detail) -> Vec<&'r Remedy> {
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
        text.push('\n');
        return Vec::new();
    }
    text.push('\n');
    let is_known = !report.gaps.contains(&Gap::Device);
    let title = match (verdict.gets_through, verdict.is_lower_bound) {
        (false, true) if is_known => "What would have let it through (figures are lower bounds):",
        (false, true) => {
            "RMM resources that take little, set before cudf allocates (lower bounds):"
        }
        (false, false) => "What lets it through:",
        (true, _) if !report.recorded.is_rmm => "What takes less:",
        (true, true) => "RMM resources that take little, set before cudf allocates (lower bounds):",
        (true, false) => "RMM resources that take little, set before cudf allocates:",
    };
    add_line!(text, "{title}");
    let shown = match detail {
        Detail::Screen => on_screen(report),
        Detail::Full => verdict.remedies.iter().collect(),
    };
    for (number, remedy) in (1..).zip(&shown) {
        let number = format!("  {number}. ");
        if remedy.kind == RemedyKind::Limit {
            let needed = remedy.reserved.map_or(0, |range| range.high);
            let what = format!("{}: {:#} needed", remedy.line, Amount(needed));
            hanging(text, &number, "     ", &what);
            continue;
        }
        let is_variable = |remedy: &Remedy| remedy.line.starts_with("PYTORCH_");
        match is_variable(remedy) {
            true => exported(text, &number, "     ", &remedy.line),
            false => typed(text, &number, "     ", &remedy.line),
        }
        if let Some(python) = &remedy.python {
            typed(text, "     and in Python: ", "     ", python);
        }
        let first_variable = shown.iter().find(|remedy| is_variable(remedy));
        let when = match first_variable.is_some_and(|first| first.line == remedy.line) {
            true => "; in the shell, before python starts",
            false => "",
        };
        hanging(text, "     ", "     ", &format!("{}{when}", costs(report, remedy)));
    }
    let is_shown = |remedy: &Remedy| shown.iter().any(|shown| std::ptr::eq(*shown, remedy));
    verdict.remedies.iter().filter(|remedy| !is_shown(remedy)).collect()
}

/// Returns the remedies that fit on a screen, in the order of the verdict. The first remedy of each
/// kind has priority. If the program uses RMM, leaves out the remedy with gpuheap's own heap,
/// because that remedy requires new code.
fn on_screen(report: &TraceReport) -> Vec<&Remedy> {
    let remedies = &report.verdict.remedies;
    let is_meant = |remedy: &Remedy| !report.recorded.is_rmm || !remedy.is_own_heap;
    let is_first =
        |index: usize| remedies[..index].iter().all(|earlier| earlier.kind != remedies[index].kind);
    let mut order: Vec<usize> =
        (0..remedies.len()).filter(|&index| is_meant(&remedies[index])).collect();
    order.sort_by_key(|&index| !is_first(index));
    let is_reported = report.verdict.gets_through && report.verdict.failure.is_some();
    order.truncate(if is_reported { SHOWN - 1 } else { SHOWN });
    order.sort_unstable();
    order.into_iter().map(|index| &remedies[index]).collect()
}

fn costs(report: &TraceReport, remedy: &Remedy) -> String {
    let mut parts = Vec::new();
    let is_rmm = report.recorded.is_rmm;
    let is_default = remedy.pool.as_deref() == Some("cuda");
    if is_rmm && is_default {
        parts.push("RMM's default".to_owned());
    }
    match remedy.reserved {
        Some(PeakRange { low, high }) if low != high => {
            parts.push(format!("takes {} to {}", Amount(low), Amount(high)));
        }
        Some(PeakRange { high, .. }) => parts.push(format!("takes {}", Amount(high))),
        None => {}
    }
    if let Some(saves) = remedy.saves.filter(|saves| *saves > 0) {
        let is_run = report.verdict.checked.iter().any(|pool| pool.to_string() == "torch");
        let than = if is_run { "the run" } else { "as asked" };
        parts.push(format!("{} less than {than}", Amount(saves)));
    }
    match (remedy.driver_calls, remedy.driver_calls_before) {
        (Some(calls), _) if is_default => parts.push(format!(
            "{} of cudaMalloc and cudaFree ({:.2} an event)",
            count(calls, "call"),
            calls as f64 / report.summary.events.max(1) as f64
        )),
        (Some(calls), Some(before)) => {
            parts.push(format!("{} instead of {}", count(calls, "driver call"), grouped(before)))
        }
        (Some(calls), None) => parts.push(count(calls, "driver call")),
        _ => {}
    }
    if remedy.is_closed_driver {
        parts.push("by a model of NVIDIA's driver".to_owned());
    }
    if is_rmm && remedy.pool.as_deref() == Some("rmm:async") {
        parts.push("RMM 25.12 or newer (older ones take half of the device at the start)".into());
    }
    if remedy.is_own_heap && is_rmm {
        parts.push("for programs in Rust or C".to_owned());
    }
    parts.join(", ")
}

fn add_gaps(text: &mut String, report: &TraceReport) {
    // The report's first sentence already says that the device is missing.
    let gaps: Vec<&Gap> = report.gaps.iter().filter(|gap| **gap != Gap::Device).collect();
    if gaps.is_empty() {
        return;
    }
    add_line!(text, "Not in the recording:");
    for gap in gaps {
        hanging(text, "  - ", "    ", &gap.to_string());
    }
}

/// Adds one line that names the options for more output, `-v` and `--at`.
fn add_options(text: &mut String, report: &TraceReport, hidden: &[&Remedy]) {
    let mut parts = Vec::new();
    let own = hidden.iter().filter(|remedy| remedy.is_own_heap).count();
    let mut all = Vec::new();
    if hidden.len() > own {
        all.push(count((hidden.len() - own) as u64, "other way"));
    }
    if own > 0 {
        all.push("gpuheap's own heap".to_owned());
    }
    match report.verdict.fits.len() {
        0 => {}
        cards => all.push(format!("all {cards} cards")),
    }
    if let Some((last, others)) = all.split_last() {
        parts.push(match others {
            [] => format!("-v for {last}"),
            others => format!("-v for {} and {last}", others.join(", ")),
        });
    }
    if let Some(MemoryAtFailure { pool: None, event, .. }) = report.verdict.failure {
        parts.push(format!("--at {event} for the heap then"));
    }
    if !parts.is_empty() {
        hanging(text, "More: ", "  ", &(parts.join(", ") + "."));
    }
}
