//! Renders reports as text for a terminal of 80 columns.

use gpuheap_text::{Amount, add_line, count, cut_name, grouped, hanging, printable};
use gpuheap_trace::{CopyMemory, Coverage, Holder, RecordingEnd};

use crate::growth::{Growth, PARTS, WARM_UP};
use crate::ledger::SiteKind;
use crate::moment::At;
use crate::pools::Segment;
use crate::report::Report;

/// Width of a terminal, in columns.
pub(crate) const WIDTH: usize = 80;
/// Number of rows of a long table. One more row sums up the other rows.
const ROWS: usize = 8;
/// Maximum number of stacks shown.
const STACKS: usize = 3;
/// Maximum number of frames shown of a stack.
const FRAMES: usize = 4;
/// Maximum number of rows in the table of growing sites, if no site grows steadily. Sites with
/// unsteady growth are rarely a leak.
const UNSTEADY_ROWS: usize = 3;

/// Renders a report.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    add_summary(&mut text, report);
    add_recording(&mut text, report);
    add_held(&mut text, report);
    add_pools(&mut text, report);
    add_ranges(&mut text, report);
    add_growth(&mut text, report);
    add_left(&mut text, report);
    add_temporary(&mut text, report);
    add_copies(&mut text, report);
    text
}

fn add_summary(text: &mut String, report: &Report) {
    let Report { summary, .. } = report;
    let device = match report.device {
        Some(device) => format!(", device {device}"),
        None if report.is_host => ", host memory".to_owned(),
        None => String::new(),
    };
    paragraph(text, &format!("{} ({}{device})", printable(&report.name), report.format));
    let threads = summary
        .threads
        .map_or_else(String::new, |threads| format!(", {}", count(threads as u64, "thread")));
    let events = format!(
        "{} in {}: {}, {}, {}{threads}.",
        count(summary.events, "event"),
        seconds(summary.duration_ns),
        count(summary.allocations, "allocation"),
        count(summary.frees, "free"),
        count(summary.streams as u64, "stream"),
    );
    paragraph(text, &events);
    let before = match summary.live_before {
        0 => String::new(),
        blocks => format!(
            " Before the recording: {} in {}.",
            Amount(summary.live_before_bytes),
            count(blocks, "block")
        ),
    };
    let failed = match summary.failures {
        0 => String::new(),
        failures => format!(" {} for memory failed.", count(failures, "request")),
    };
    let peak = format!(
        "Live at the peak: {}; at the end: {} in {}.{before}{failed}",
        Amount(summary.peak_live_bytes),
        Amount(summary.left_live_bytes),
        count(summary.left_live, "block"),
    );
    paragraph(text, &peak);
}

/// Adds the program, the end of the recording, and the bytes in use that the driver reported.
fn add_recording(text: &mut String, report: &Report) {
    let Some(recording) = &report.recording else { return };
    let end = match &recording.end {
        RecordingEnd::Exit => "it ended by itself".to_owned(),
        RecordingEnd::Stopped(reason) => format!("the recording stopped before its end: {reason}"),
        RecordingEnd::Unknown => "it ended by a signal, _exit or exec".to_owned(),
    };
    let program = recording.arguments.join(" ");
    let program = if program.is_empty() { &recording.program } else { &*program };
    let program = cut_name(program, 2 * WIDTH);
    paragraph(text, &format!("Program: {program} (process {}); {end}.", recording.pid));
    if let Some(note) = report.note() {
        paragraph(text, &note);
    }
    let device = report.device.and_then(|device| recording.device(device));
    if let Some(limit) = report.limit() {
        let refused = match report.summary.failures {
            0 => "no request failed".to_owned(),
            failures => count(failures, "request") + " failed",
        };
        paragraph(text, &format!("Limit of the run: {} (--limit); {refused}.", Amount(limit)));
    }
    if let Some(Coverage { used, recorded: recorded @ 1.. }) =
        device.and_then(|device| device.coverage)
    {
        let before = device.and_then(|device| device.used_before).unwrap_or_default();
        let beyond = used.saturating_sub(recorded);
        let others = [
            (
                before.min(beyond),
                "before the first allocation (contexts, modules, other processes)",
            ),
            (
                beyond.saturating_sub(before),
                "not recorded (modules, other processes, memory that the driver's pools keep)",
            ),
        ];
        let others = others.into_iter().filter(|(bytes, _)| *bytes > 0);
        let others: String =
            others.map(|(bytes, of)| format!(", {} {of}", Amount(bytes))).collect();
        let (used, recorded) = (Amount(used), Amount(recorded));
        let words = format!("The driver counted {used} in use: {recorded} recorded{others}.");
        paragraph(text, &words);
    }
}

fn add_held(text: &mut String, report: &Report) {
    let total = report.held_bytes();
    let moment = match report.at {
        At::Peak => "Who held memory at the peak",
        At::End => "Who held memory at the end",
        At::Event(_) => "Who held memory then",
    };
    add_line!(
        text,
        "\n{moment}: event {} of {}, {} in",
        grouped(report.event),
        grouped(report.last_event),
        seconds(report.time_ns)
    );
    add_holders(text, &report.held, total, site_heading(report));
    if report.summary.threads > Some(1) && !report.held_by_thread.is_empty() {
        add_holders(text, &report.held_by_thread, total, "thread that allocated");
    }
    if report.held_by_kind.len() > 1 {
        add_holders(text, &report.held_by_kind, total, "kind of memory");
    }
}

/// Adds the segments of pools with the blocks in them, and the memory that belongs to no framework.
fn add_pools(text: &mut String, report: &Report) {
    let Some(pools) = &report.pools else { return };
    add_line!(text, "\nWhich memory of the driver holds these blocks?");
    let frameworks = pools.frameworks.iter().map(|framework| {
        let blocks = count(framework.blocks, "block");
        format!("{} {} in {blocks}", framework.name, Amount(framework.bytes))
    });
    let (bytes, used) = (pools.segment_bytes(), pools.used_bytes());
    let words = format!(
        "Pools hold {} in {}: {}, and {} unused. Of no framework: {}.",
        Amount(bytes),
        count(pools.segments.len() as u64, "segment"),
        frameworks.collect::<Vec<_>>().join(", "),
        Amount(bytes.saturating_sub(used)),
        Amount(pools.outside_bytes()),
    );
    hanging(text, "  ", "  ", &words, WIDTH);
    add_gap(text);
    add_line!(text, "{:>12}  {:>12}  {:>9}  most in it", "segment", "in use", "blocks");
    let mut row = |bytes: u64, used: u64, blocks: u64, name: &str| {
        let (bytes, used, blocks) = (Amount(bytes), Amount(used), grouped(blocks));
        add_line!(text, "{bytes:>12}  {used:>12}  {blocks:>9}  {}", cut_name(name, WIDTH - 39));
    };
    let shown = rows(pools.segments.len());
    for segment in &pools.segments[..shown] {
        let most = segment.sites.first().map_or("", |site| &site.name);
        row(segment.bytes, segment.used, segment.blocks, most);
    }
    let rest = &pools.segments[shown..];
    if !rest.is_empty() {
        let sum = |of: fn(&Segment) -> u64| rest.iter().map(of).fold(0, u64::saturating_add);
        let others = others(rest.len());
        let used = sum(|segment| segment.used);
        row(sum(|segment| segment.bytes), used, sum(|segment| segment.blocks), &others);
    }
    if !pools.outside.is_empty() {
        add_line!(text, "  Of no framework:");
        add_holders(text, &pools.outside, pools.outside_bytes(), site_heading(report));
    }
}

fn add_left(text: &mut String, report: &Report) {
    let total = report.summary.left_live_bytes;
    let noun = if report.kind == SiteKind::Line { "Which line" } else { "Which size" };
    let is_several = report.left_by_thread.len() > 1;
    let who = if is_several { format!("{noun}, and which thread,") } else { noun.to_owned() };
    add_line!(text, "\n{who} left memory live at the end?");
    match (&report.left[..], &report.left_by_library[..]) {
        ([], []) => {
            add_line!(text, "  None: every block was freed.");
            return;
        }
        ([], _) => add_line!(text, "  None of the program's own allocations."),
        _ if report.at == At::End => {}
        (left, _) => add_holders(text, left, total, site_heading(report)),
    }
    if !report.left_by_library.is_empty() {
        let words = "NVIDIA's libraries keep memory until the program ends, or destroys their handles \
                     and plans:";
        hanging(text, "  ", "  ", words, WIDTH);
        add_holders(text, &report.left_by_library, total, "library");
    }
    let ended = report.left_by_ended_threads.as_deref().unwrap_or_default();
    if !ended.is_empty() {
        let words = format!(
            "Threads that ended left {} in {}: the end of a thread frees nothing.",
            Amount(ended.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add)),
            count(ended.iter().map(|holder| holder.blocks).sum(), "block")
        );
        hanging(text, "  ", "  ", &words, WIDTH);
    }
    if report.summary.threads > Some(1) && !report.left_by_thread.is_empty() {
        add_holders(text, &report.left_by_thread, total, "thread that allocated");
    }
    add_stacks(text, report);
}

/// Adds the stacks that left the most memory. A stack of one frame says no more than its site.
fn add_stacks(text: &mut String, report: &Report) {
    if report.left_by_stack.iter().all(|stack| stack.frames.len() < 2) {
        return;
    }
    add_line!(text, "  From these calls, the innermost first:");
    for stack in report.left_by_stack.iter().take(STACKS) {
        let blocks = count(stack.blocks, "block");
        let thread = stack.thread.as_ref().filter(|_| report.summary.threads > Some(1));
        let thread = thread.map_or_else(String::new, |thread| format!(", {thread}"));
        let bytes = Amount(stack.bytes);
        add_line!(text, "{bytes:>12}  {}", cut_name(&format!("{blocks}{thread}"), WIDTH - 14));
        add_frames(text, &stack.frames);
    }
}

fn add_frames(text: &mut String, frames: &[String]) {
    for frame in frames.iter().take(FRAMES) {
        add_line!(text, "{:>12}    {}", "", cut_name(frame, WIDTH - 16));
    }
    if frames.len() > FRAMES {
        let more = (frames.len() - FRAMES) as u64;
        add_line!(text, "{:>12}    and {}", "", count(more, "caller"));
    }
}

fn add_holders(text: &mut String, holders: &[Holder], total: u64, heading: &str) {
    add_gap(text);
    add_line!(text, "{:>12}  {:>5}  {:>9}  {heading}", "live", "share", "blocks");
    let mut row = |bytes: u64, blocks: u64, name: &str| {
        add_line!(
            text,
            "{:>12}  {:>5}  {:>9}  {}",
            Amount(bytes),
            percent(bytes, total),
            grouped(blocks),
            cut_name(name, WIDTH - 32)
        );
    };
    let shown = rows(holders.len());
    for holder in &holders[..shown] {
        row(holder.bytes, holder.blocks, &holder.name);
    }
    let rest = &holders[shown..];
    if !rest.is_empty() {
        let bytes = rest.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add);
        let blocks = rest.iter().map(|holder| holder.blocks).sum();
        row(bytes, blocks, &others(rest.len()));
    }
}

/// Adds the ranges that the program named.
fn add_ranges(text: &mut String, report: &Report) {
    if report.ranges.is_empty() {
        return;
    }
    add_line!(text, "\nWhich range of the program had the peak?");
    add_line!(text, "{:>12}  {:>11}  {:>11}  {:>7}  range", "peak", "allocated", "left", "times");
    let shown = rows(report.ranges.len());
    for range in &report.ranges[..shown] {
        add_line!(
            text,
            "{:>12}  {:>11}  {:>11}  {:>7}  {}",
            Amount(range.peak_bytes),
            Amount(range.allocated_bytes),
            Amount(range.left_bytes),
            grouped(range.ranges),
            cut_name(&range.name, WIDTH - 49)
        );
    }
    let rest = report.ranges.len() - shown;
    if rest > 0 {
        let others = others(rest);
        add_line!(text, "{:>12}  {:>11}  {:>11}  {:>7}  {others}", "", "", "", "");
    }
}

fn add_growth(text: &mut String, report: &Report) {
    let noun = if report.kind == SiteKind::Line { "line" } else { "size" };
    add_line!(text, "\nWhich {noun} grows?");
    let steady = report.growing.iter().filter(|growth| growth.is_steady).count();
    let parts = PARTS - WARM_UP;
    let (words, shown) = match (&report.growing[..], steady) {
        ([], _) => {
            let words = format!("None: after a quarter of the events, no {noun} kept more memory.");
            (words, 0)
        }
        ([first, ..], 1..) => {
            let (place, events) = match &first.thread {
                Some(thread) => (format!(" in {thread}"), "the thread's events"),
                None => (String::new(), "the events"),
            };
            let words = format!(
                "{}: it grows steadily{place}, by {} since the first quarter of {events}.",
                first.site,
                Amount(first.bytes())
            );
            (words, steady)
        }
        (growing, 0) if !report.unrecorded_pools.is_empty() => {
            let words = "Not known without the pool's blocks: see the note above. Since the first \
                         quarter of the events, these took more segments:";
            (words.to_owned(), growing.len().min(UNSTEADY_ROWS))
        }
        (growing, 0) => {
            let words = format!(
                "None steadily. Since the first quarter of the events these grew, but not in most \
                 of the {parts} parts that followed:"
            );
            (words, growing.len().min(UNSTEADY_ROWS))
        }
    };
    hanging(text, "  ", "  ", &words, WIDTH);
    if shown == 0 {
        return;
    }
    let heading = site_heading(report);
    add_gap(text);
    add_line!(text, "{:>12}  {:>11}  {:>11}  {:>6}  {heading}", "grew by", "from", "to", "rises");
    for growth in &report.growing[..rows(shown)] {
        add_line!(
            text,
            "{:>12}  {:>11}  {:>11}  {:>6}  {}",
            Amount(growth.bytes()),
            Amount(growth.first()),
            Amount(growth.last()),
            format!("{} of {parts}", growth.rises()),
            cut_name(&growth.site, WIDTH - 48)
        );
    }
    let rest = &report.growing[rows(shown)..];
    if !rest.is_empty() {
        let bytes = rest.iter().map(Growth::bytes).fold(0, u64::saturating_add);
        let others = others(rest.len());
        let bytes = Amount(bytes);
        add_line!(text, "{bytes:>12}  {:>11}  {:>11}  {:>6}  {others}", "", "", "");
    }
    // A stack of one frame says no more than its site.
    if let Some(first) = report.growing.first().filter(|growth| growth.frames.len() > 1) {
        let words = match report.growing.len() {
            1 => "The call that grew most, the innermost first:".to_owned(),
            _ => format!("The call of {} that grew most:", first.site),
        };
        hanging(text, "  ", "  ", &words, WIDTH);
        add_frames(text, &first.frames);
    }
}

fn add_temporary(text: &mut String, report: &Report) {
    let sites = report.temporary.iter().map(|site| site.allocations);
    let all = sites.fold(0, u64::saturating_add);
    let allocations = report.summary.allocations;
    let noun = if report.kind == SiteKind::Line { "Which line" } else { "Which size" };
    add_line!(text, "\n{noun} allocates and frees at once?");
    if all == 0 {
        add_line!(text, "  None.");
        return;
    }
    let words = format!(
        "{} of {} were freed before the thread had allocated twice more. A buffer that is kept \
         would save them.",
        grouped(all),
        count(allocations, "allocation"),
    );
    hanging(text, "  ", "  ", &words, WIDTH);
    add_gap(text);
    add_line!(text, "{:>12}  {:>12}  {}", "allocations", "largest", site_heading(report));
    let shown = rows(report.temporary.len());
    for site in &report.temporary[..shown] {
        let caller = site.caller.as_ref().map(|caller| format!(" ← {caller}"));
        let name = site.site.clone() + &caller.unwrap_or_default();
        add_line!(
            text,
            "{:>12}  {:>12}  {}",
            grouped(site.allocations),
            Amount(site.largest_bytes),
            cut_name(&name, WIDTH - 28)
        );
    }
    let rest = &report.temporary[shown..];
    if !rest.is_empty() {
        let sum = rest.iter().map(|site| site.allocations).fold(0, u64::saturating_add);
        let largest = rest.iter().map(|site| site.largest_bytes).max().unwrap_or_default();
        let others = others(rest.len());
        add_line!(text, "{:>12}  {:>12}  {others}", grouped(sum), Amount(largest));
    }
}

/// Adds the table of the process's memory copies, but only to the report of its first device.
fn add_copies(text: &mut String, report: &Report) {
    let first = report.recording.as_ref().and_then(|recording| recording.devices.first());
    let is_first = first.is_some_and(|first| Some(first.ordinal) == report.device);
    if report.copies.is_empty() || !is_first {
        return;
    }
    add_line!(text, "\nWhich line copies?");
    let heading = ("copies", "bytes", "in calls", "again");
    add_line!(
        text,
        "{:>9}  {:>11}  {:>9}  {:>11}  kind, and line of the program",
        heading.0,
        heading.1,
        heading.2,
        heading.3
    );
    for copies in &report.copies[..rows(report.copies.len())] {
        let memory = match copies.memory {
            CopyMemory::None => String::new(),
            memory => format!(", {}", memory.as_str()),
        };
        add_line!(
            text,
            "{:>9}  {:>11}  {:>9}  {:>11}  {}{memory}",
            grouped(copies.count),
            Amount(copies.bytes),
            seconds(copies.call_ns),
            Amount(copies.repeated_bytes),
            copies.direction.as_str()
        );
        add_line!(text, "{:>48}{}", "", cut_name(&copies.site, WIDTH - 48));
    }
    let rest = &report.copies[rows(report.copies.len())..];
    if !rest.is_empty() {
        let bytes = rest.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
        let count = rest.iter().map(|row| row.count).fold(0, u64::saturating_add);
        let others = others(rest.len());
        add_line!(text, "{:>9}  {:>11}  {others}", grouped(count), Amount(bytes));
    }
    let again = report.copies.iter().map(|row| row.repeated_bytes).fold(0, u64::saturating_add);
    if again > 0 {
        let words = format!(
            "{} were uploaded again by a line that had uploaded the same data. Keep that data on the \
             device.",
            Amount(again)
        );
        hanging(text, "  ", "  ", &words, WIDTH);
    }
}

/// Adds a blank line before a table, unless the section's title (a question) is directly above it.
fn add_gap(text: &mut String) {
    let section = text.rfind("\n\n").map_or(&**text, |at| &text[at + 2..]);
    if section.trim_end().contains('\n') {
        text.push('\n');
    }
}

fn site_heading(report: &Report) -> &'static str {
    match report.kind {
        SiteKind::Line => "line of the program",
        SiteKind::Size => "size (no stacks recorded)",
    }
}

/// Returns how many of `all` rows to show. Shows all rows if only one would be left out, because
/// the row with the sum would take the same space.
fn rows(all: usize) -> usize {
    if all <= ROWS + 1 { all } else { ROWS }
}

/// Returns the name of the row that sums up `rows` others.
pub(crate) fn others(rows: usize) -> String {
    count(rows as u64, "other")
}

fn paragraph(text: &mut String, words: &str) {
    hanging(text, "", "  ", words, WIDTH);
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.0} %", part as f64 / whole as f64 * 100.0),
    }
}

fn seconds(nanoseconds: u64) -> String {
    format!("{:.3} s", nanoseconds as f64 / 1e9)
}
