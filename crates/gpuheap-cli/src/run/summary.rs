//! Summary of the captures of a run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gpuheap_report::Report;
use gpuheap_text::{Amount, count, cut_name, grouped, hanging, shell_word};
use gpuheap_trace::{
    Copies, CopyDirection, CopyMemory, Holder, ReadOptions, RecordingEnd, Trace, hint,
};
use serde_json::{Value, json};

/// Version of the fields of the JSON.
const SCHEMA: u32 = 1;

/// Columns of the text.
const WIDTH: usize = 80;

/// Maximum number of sites in the summary.
const SITES: usize = 3;

pub(super) struct Summary {
    path: PathBuf,
    /// Problem with the capture; `None` if it was read.
    problem: Option<String>,
    process: Option<gpuheap_trace::Recording>,
    devices: Vec<DeviceSummary>,
    /// Copies in each direction, as phrases.
    copies: Vec<String>,
    warnings: Vec<String>,
    /// Frameworks with blocks that `--frameworks` would record.
    pools: BTreeSet<&'static str>,
}

/// Options that the summary may recommend, because the user did not give them.
#[derive(Clone, Copy)]
pub(super) struct Hints {
    pub(super) emulate: bool,
    pub(super) frameworks: bool,
}

/// Summary of a process's memory on one device.
struct DeviceSummary {
    ordinal: u32,
    memory: u64,
    name: String,
    peak: u64,
    peak_ns: u64,
    live: u64,
    live_count: u64,
    allocations: u64,
    frees: u64,
    /// Number of failed requests, including those that succeeded when the program repeated them.
    failures: u64,
    /// Limit by `--limit`; `None` without the option.
    limit: Option<u64>,
    /// Threads that ended with live memory.
    left: Vec<Holder>,
    /// Sites at the peak, largest first.
    sites: Vec<Holder>,
    /// The driver's figure and the recorded bytes at one time. The driver's figure is the growth,
    /// in bytes, of the device's memory in use since before the first allocation.
    driver: Option<(u64, u64)>,
}

/// Reads captures. The process with the largest peak is first.
pub(super) fn read(paths: &[PathBuf]) -> Vec<Summary> {
    let mut all: Vec<_> = paths.iter().map(|path| Summary::new(path)).collect();
    all.sort_by_key(|summary| std::cmp::Reverse(summary.peak_bytes()));
    all
}

impl Summary {
    fn new(path: &Path) -> Summary {
        let traces = gpuheap_trace::read(path, &ReadOptions::default().pools(false));
        let problem = traces.as_ref().err().map(ToString::to_string);
        let traces = traces.unwrap_or_default();
        let warnings = traces.first().into_iter().flat_map(Trace::warnings);
        Summary {
            path: path.to_owned(),
            problem,
            pools: traces.iter().flat_map(Trace::unrecorded_pools).collect(),
            process: traces.first().and_then(Trace::recording).cloned(),
            warnings: warnings.map(ToString::to_string).collect(),
            devices: traces.iter().map(DeviceSummary::new).collect(),
            copies: traces.first().map(copies).unwrap_or_default(),
        }
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.peak).max().unwrap_or(0)
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.live).sum()
    }

    /// Returns an error line if the capture is incomplete, because `--max-peak` and `--max-leak`
    /// then cannot be checked to the end; `None` if the capture is complete.
    pub(super) fn incomplete(&self) -> Option<String> {
        let end = self.process.as_ref().map(|process| &process.end);
        let reason = match (&self.problem, end) {
            (Some(problem), _) => problem.clone(),
            (None, Some(RecordingEnd::Stopped(reason))) => format!("recording stopped: {reason}"),
            _ => return None,
        };
        Some(format!("{}: the gates were not checked to the end: {reason}", self.shown()))
    }

    /// Returns the error line for a process that exceeded `--max-peak` or `--max-leak`.
    pub(super) fn gate(&self, option: &str, figure: &str, bytes: u64, most: u64) -> String {
        format!(
            "{option}: {figure} is {} ({bytes} bytes), more than {} ({most} bytes); see gpuheap report {}",
            Amount(bytes),
            Amount(most),
            self.shown()
        )
    }

    /// Returns the path as a user types it: relative, if the file is below the working directory.
    fn shown(&self) -> String {
        let here = std::env::current_dir().unwrap_or_default();
        let path = self.path.strip_prefix(here).unwrap_or(&self.path);
        shell_word(&path.to_string_lossy())
    }

    fn title(&self) -> String {
        let Some(process) = &self.process else { return self.shown() };
        let words: Vec<_> = process.arguments.iter().map(|word| shell_word(word)).collect();
        format!("{} (process {})", words.join(" "), process.pid)
    }

    fn render(&self, text: &mut String, hints: Hints) {
        hanging(text, "gpuheap: ", "  ", &cut_name(&self.title(), 2 * WIDTH), WIDTH);
        if let Some(problem) = &self.problem {
            hanging(text, "  ", "  ", problem, WIDTH);
            return;
        }
        let mut row = |label: &str, value: &str| {
            hanging(text, &format!("  {label:<13} "), &" ".repeat(16), value, WIDTH);
        };
        for device in &self.devices {
            device.rows(&mut row);
        }
        self.copies.iter().for_each(|copies| row("copies", copies));
        match self.process.as_ref().map(|process| &process.end) {
            Some(RecordingEnd::Stopped(reason)) => {
                row("stopped", &format!("recording stopped early: {reason}"))
            }
            Some(RecordingEnd::Unknown) => {
                row("end", "ended without exit handlers: a signal, _exit, exec, or it still runs");
            }
            _ => {}
        }
        for warning in &self.warnings {
            row("note", warning);
        }
        for pool in self.pools.iter().filter(|_| hints.frameworks) {
            let way = hint(pool).unwrap_or_default();
            row("note", &format!("segments of {pool}'s pool; for the blocks in them, {way}"));
        }
        // A command is not wrapped, so that it can be copied.
        let _ = writeln!(text, "  {:<13} gpuheap report {}", "next", self.shown());
    }

    fn to_json(&self) -> Value {
        let process = self.process.as_ref();
        json!({
            "capture": self.path.to_string_lossy(),
            "problem": self.problem,
            "pid": process.map(|process| process.pid),
            "program": process.map(|process| &*process.program),
            "end": process.map(|process| match process.end {
                RecordingEnd::Exit => "exit",
                RecordingEnd::Stopped(_) => "stopped",
                RecordingEnd::Unknown => "unknown",
            }),
            "devices": self.devices.iter().map(DeviceSummary::to_json).collect::<Vec<_>>(),
        })
    }
}

impl DeviceSummary {
    fn new(trace: &Trace) -> DeviceSummary {
        let report = Report::at_peak(trace);
        let summary = report.summary;
        let recording = report.recording.unwrap_or_default();
        let ordinal = trace.device().unwrap_or(0);
        let device = recording.device(ordinal);
        let driver = device.and_then(|device| {
            let coverage = device.coverage?;
            let before = device.used_before?;
            (coverage.recorded > 0)
                .then(|| (coverage.used.saturating_sub(before), coverage.recorded))
        });
        let peak = summary.peak_event.and_then(|event| trace.events().get(event));
        DeviceSummary {
            ordinal,
            memory: device.map_or(0, |device| device.bytes),
            name: device.map(|device| device.name.to_string()).unwrap_or_default(),
            peak: summary.peak_live_bytes,
            peak_ns: peak.map_or(0, |event| event.time_ns),
            live: summary.left_live_bytes,
            live_count: summary.left_live,
            allocations: summary.allocations,
            frees: summary.frees,
            failures: summary.failures + summary.retries,
            limit: device.and_then(|device| device.limit),
            left: report.left_by_ended_threads.unwrap_or_default(),
            sites: report.held,
            driver,
        }
    }

    fn rows(&self, row: &mut impl FnMut(&str, &str)) {
        let seconds = self.peak_ns as f64 / 1e9;
        let of = match self.memory {
            0 => String::new(),
            memory => format!(", of {}", Amount(memory)),
        };
        let name = format!("cuda:{} {}", self.ordinal, self.name);
        row("peak", &format!("{} after {seconds:.1} s{of} on {name}", Amount(self.peak)));
        if let Some(limit) = self.limit {
            row("limit", &format!("{} by --limit", Amount(limit)));
        }
        let live = match self.live_count {
            0 => "none".to_owned(),
            number => format!("{} in {}", Amount(self.live), count(number, "allocation")),
        };
        row("live at exit", &live);
        let left: u64 = self.left.iter().map(|holder| holder.bytes).sum();
        let names: Vec<_> = self.left.iter().take(3).map(thread).collect();
        row(
            "left behind",
            &match self.left.len() {
                0 => "none by threads that ended".to_owned(),
                number => format!(
                    "{} by {} that ended: {}",
                    Amount(left),
                    count(number as u64, "thread"),
                    names.join(", ")
                ),
            },
        );
        let (allocations, frees) = (grouped(self.allocations), grouped(self.frees));
        row(
            "allocations",
            &format!("{allocations}, {frees} freed, {} failed", grouped(self.failures)),
        );
        let sites = self.sites.iter().take(SITES);
        let sites: Vec<_> =
            sites.map(|site| format!("{} {}", Amount(site.bytes), site.name)).collect();
        row("most at peak", &sites.join("; "));
        if let Some((used, recorded)) = self.driver {
            let rest = match used.checked_sub(recorded) {
                Some(rest) => {
                    format!("{} more: modules, other processes or not seen", Amount(rest))
                }
                None => format!("{} less: freed by others", Amount(recorded - used)),
            };
            row(
                "driver says",
                &format!("{} taken; recorded {}; {rest}", Amount(used), Amount(recorded)),
            );
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "device": self.ordinal,
            "name": self.name,
            "memory_bytes": self.memory,
            "limit_bytes": self.limit,
            "peak_bytes": self.peak,
            "peak_ns": self.peak_ns,
            "live_bytes": self.live,
            "live_allocations": self.live_count,
            "allocations": self.allocations,
            "frees": self.frees,
            "failures": self.failures,
            "left_by_threads": self.left.iter().map(|holder| json!({"thread": thread(holder), "bytes": holder.bytes})).collect::<Vec<_>>(),
            "sites_at_peak": self.sites.iter().take(SITES).map(|site| json!({"site": site.name, "bytes": site.bytes})).collect::<Vec<_>>(),
            "driver_bytes": self.driver.map(|(used, _)| used),
            "recorded_bytes": self.driver.map(|(_, recorded)| recorded),
        })
    }
}

/// Returns a phrase about the process's copies for each direction that has copies.
fn copies(trace: &Trace) -> Vec<String> {
    let recorded = trace.recording().map(|recording| &*recording.copies).unwrap_or_default();
    let phrase = |direction: CopyDirection| {
        let rows = || recorded.iter().filter(|row| row.direction == direction);
        let sum = |figure: fn(&Copies) -> u64| rows().map(figure).fold(0, u64::saturating_add);
        let bytes = sum(|row| row.bytes);
        let pageable = sum(|row| if row.memory == CopyMemory::Pageable { row.bytes } else { 0 });
        let again = sum(|row| row.repeated_bytes);
        let mut text = format!("{} {}", Amount(bytes), direction.as_str());
        if pageable > 0 {
            let _ = write!(text, ", {} pageable", Amount(pageable));
        }
        if again > 0 {
            let _ = write!(text, ", {} again", Amount(again));
        }
        let _ = write!(text, ", {:.3} s in calls", sum(|row| row.call_ns) as f64 / 1e9);
        (bytes > 0).then_some(text)
    };
    CopyDirection::ALL.iter().copied().filter_map(phrase).collect()
}

/// Returns the name of a thread without the note that it ended.
fn thread(holder: &Holder) -> &str {
    holder.name.trim_end_matches(", ended")
}

/// Returns the text for people.
pub(super) fn render(summaries: &[Summary], hints: Hints) -> String {
    let Some((first, others)) = summaries.split_first() else {
        let line = "gpuheap: no process allocated GPU memory, so nothing was recorded\n";
        let hint = "  without a GPU: gpuheap run --emulate -- ...\n";
        return line.to_owned() + if hints.emulate { hint } else { "" };
    };
    let mut text = String::new();
    first.render(&mut text, hints);
    for other in others {
        let peak = Amount(other.peak_bytes());
        let _ = writeln!(text, "  {:<13} peak {peak}: gpuheap report {}", "also", other.shown());
    }
    text
}

pub(super) fn json(summaries: &[Summary], exit_code: u8) -> String {
    let processes: Vec<_> = summaries.iter().map(Summary::to_json).collect();
    format!("{:#}\n", json!({"schema": SCHEMA, "exit_code": exit_code, "processes": processes}))
}
