//! Runs a program on each card, as often as the options require.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::batch::{FindBatch, bound, combinations};
use crate::card::Device;
use crate::error::not_written;
use crate::explain::Recording;
use crate::judge::{Results, judge};
use crate::program::{self, Change, Output, Run};
use crate::signals::Signals;
use crate::stand_ins::StandIns;
use crate::verdict::{
    Batch, CardResult, Counts, Found, LineRange, Outcome, RangeEnd, ResultRange, Verdict,
};
use crate::{Error, Options, Progress, benchmark, explain, outcome, trial};

/// Maximum number of program lines that are examined one by one: in a run for the line, operators
/// such as `nonzero` find few elements there. Each line takes 1 or 2 runs.
const LINES: usize = 8;
/// Device memory, in bytes, that is larger than any card's. If the program fits on no card, it runs
/// once more with this memory.
const ROOM: u64 = 2 << 40;

/// Runs the program as `options` specify, and judges the memory that the program took.
///
/// Only the first run shows the program's output; the output of further runs is dropped. Blocks
/// until all runs have ended.
///
/// # Errors
///
/// Returns an error if the program cannot be started, or a file cannot be written.
pub fn dry_run(options: &Options, progress: &dyn Progress) -> Result<Verdict, Error> {
    let stand_ins = StandIns::find(options.stand_ins.as_deref())?;
    if let Some(file) = &options.trace {
        check_writable(file)?;
    }
    let signals = Signals::new();
    let runner = Runner { options, stand_ins: &stand_ins, signals: &signals, progress };
    let device = |card| Device::new(card, options.memory).with_margin(options.margin);
    let devices: Vec<Device> = options.cards.iter().map(|card| device(card)).collect();
    let mut results = match options.find_batch.split_first() {
        Some((range, others)) => runner.search(&devices, range, others)?,
        None => runner.run_cards(&devices)?,
    };
    let fits_nowhere = results.cards.iter().all(|card| card.outcome == Outcome::DoesNotFit);
    if fits_nowhere && results.batch.is_none() && !signals.is_interrupted() {
        results.with_room = runner.run_with_room(&devices)?;
    }
    let furthest = results.with_room.as_ref().or(results.runs.first());
    let remedies = furthest.map(|run| trial::choose(options, &results.cards, run));
    let remedies = remedies.unwrap_or_default();
    if !signals.is_interrupted() && !remedies.is_empty() {
        results.trials = runner.run_trials(&devices, remedies, &results)?;
        let furthest = results.with_room.as_ref().or(results.runs.first());
        let on_card = |device: &Device| runner.run(device, &Change::default(), Output::Dropped);
        results.benchmark = match furthest {
            Some(run) => benchmark::search(options, run, on_card)?,
            None => None,
        };
    }
    if options.read_range && !signals.is_interrupted() {
        results.range = runner.run_range(&devices, &results)?;
    }
    judge(options, &stand_ins, &results, signals.is_interrupted())
}

/// Returns an error if the file cannot be written. Called before the first run, so that no run is
/// wasted.
fn check_writable(file: &Path) -> Result<(), Error> {
    let opened = fs::OpenOptions::new().create(true).append(true).open(file);
    opened.map(drop).map_err(|error| not_written(file, &error))
}

struct Runner<'r> {
    options: &'r Options,
    stand_ins: &'r StandIns,
    signals: &'r Signals,
    progress: &'r dyn Progress,
}

impl Runner<'_> {
    fn run(&self, device: &Device, change: &Change<'_>, output: Output) -> Result<Run, Error> {
        let Self { options, stand_ins, signals, progress } = *self;
        program::run(options, stand_ins, device, change, output, signals, progress)
    }

    /// Runs the program on each card. The first run shows the program's output, and determines how
    /// much host memory a run takes. The other cards' runs are in parallel.
    fn run_cards(&self, devices: &[Device]) -> Result<Results, Error> {
        let mut results = Results::default();
        let Some((first, others)) = devices.split_first() else { return Ok(results) };
        let run = self.run(first, &Change::default(), Output::Passed)?;
        results.cards.push(outcome::from_run(&run));
        if self.signals.is_interrupted() {
            results.runs.push(run);
            return Ok(results);
        }
        let recording = self.options.quick.then(|| explain::read_recording(&run)).flatten();
        let replayed: Vec<Option<CardResult>> =
            others.iter().map(|device| replay_result(&run, recording.as_ref(), device)).collect();
        let left = others.iter().zip(&replayed).filter(|(_, known)| known.is_none());
        let left: Vec<_> = left.map(|(device, _)| (device.clone(), Change::default())).collect();
        let further = self.run_side_by_side(&left, run.host_bytes)?;
        let mut of_runs = further.iter().map(outcome::from_run);
        results
            .cards
            .extend(replayed.into_iter().filter_map(|known| known.or_else(|| of_runs.next())));
        results.runs.push(run);
        results.runs.extend(further);
        Ok(results)
    }

    /// Runs the program once for each entry of `devices`, with its [`Change`]. Runs as many in
    /// parallel as cores and host memory allow. `host_bytes` is the host memory of one run.
    fn run_side_by_side(
        &self,
        devices: &[(Device, Change<'_>)],
        host_bytes: u64,
    ) -> Result<Vec<Run>, Error> {
        let workers = parallel_runs(host_bytes).min(devices.len());
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<Option<Result<Run, Error>>>> =
            Mutex::new(devices.iter().map(|_| None).collect());
        let put = |at: usize, run| {
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(slot) = results.get_mut(at) {
                *slot = Some(run);
            }
        };
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                match devices.get(at) {
                    Some((device, change)) if !self.signals.is_interrupted() => {
                        put(at, self.run(device, change, Output::Dropped));
                    }
                    _ => return,
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(work);
            }
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_iter().flatten().collect()
    }

    /// Searches for the largest value that fits. Repeats the search for each card and each
    /// combination of the other variables' values.
    fn search(
        &self,
        devices: &[Device],
        range: &FindBatch,
        others: &[FindBatch],
    ) -> Result<Results, Error> {
        let mut results = Results::default();
        let mut batch = Batch::new(range, others, self.options.margin);
        let combinations = combinations(others).map_err(Error::WrongUse)?;
        for device in devices {
            let mut kept = None;
            let mut found = Vec::new();
            for with in &combinations {
                let most = bound(&found, with).unwrap_or(Some(range.most));
                let names: Vec<_> =
                    others.iter().map(|range| &*range.variable).zip(with.iter().copied()).collect();
                let largest = match most {
                    Some(most) => {
                        self.search_one(device, range, most, &names, (&mut batch, &mut kept))
                    }
                    None => Ok(None),
                };
                let largest = match largest {
                    Ok(largest) => largest,
                    Err(Stop::NoVerdict) => break,
                    Err(Stop::Error(error)) => return Err(error),
                };
                found.push((with.clone(), largest));
                batch.found.push(Found {
                    card: device.card.name.to_owned(),
                    with: names.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
                    margin: device.margin_bytes,
                    largest,
                });
            }
            if let Some(run) = kept {
                results.cards.push(outcome::from_run(&run));
                results.runs.push(run);
            }
            if self.signals.is_interrupted() {
                break;
            }
        }
        results.batch = Some(batch);
        Ok(results)
    }

    /// Searches for the largest value up to `most` that fits. `with` sets the other variables.
    /// Counts the runs, and keeps the last run that fits. If no run fits, keeps the first run.
    fn search_one(
        &self,
        device: &Device,
        range: &FindBatch,
        most: u64,
        with: &[(&str, u64)],
        (batch, kept): (&mut Batch, &mut Option<Run>),
    ) -> Result<Option<u64>, Stop> {
        range.search(most, |value| {
            let output = if batch.runs == 0 { Output::Passed } else { Output::Dropped };
            batch.runs += 1;
            let values = [&[(&*range.variable, value)], with].concat();
            let run = self.run(device, &Change { values, ..Change::default() }, output);
            let run = run.map_err(Stop::Error)?;
            let outcome = outcome::from_run(&run).outcome;
            // After a value that fits, the search tries only larger values. So the last run that
            // fits has the largest value, and this run is kept.
            let is_too_large = matches!(outcome, Outcome::DoesNotFit | Outcome::Oversubscribed);
            if kept.is_none() || !is_too_large {
                *kept = Some(run);
            }
            match outcome {
                _ if self.signals.is_interrupted() => Err(Stop::NoVerdict),
                Outcome::NoVerdict(_) => Err(Stop::NoVerdict),
                outcome => Ok(outcome.is_fit()),
            }
        })
    }

    /// Measures peaks on the first card in runs in which operators such as `nonzero` find as few
    /// elements as possible. In one run, they find few elements at all lines. In each further run,
    /// they do so at one line. Leaves out lines at which no size depended on a result. Returns
    /// `None` if no line is left.
    fn run_range(
        &self,
        devices: &[Device],
        results: &Results,
    ) -> Result<Option<ResultRange>, Error> {
        let (Some(device), Some(largest)) = (devices.first(), results.runs.first()) else {
            return Ok(None);
        };
        let torch = largest.processes.iter().filter_map(|process| process.torch.as_ref());
        let mut lines: Vec<&str> = Vec::new();
        for read in torch.flat_map(|torch| &torch.sizes) {
            if !lines.contains(&&*read.line) {
                lines.push(&read.line);
            }
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let Some(smallest) = self.run_smallest(device, &[None], largest.host_bytes)?.pop() else {
            return Ok(None);
        };
        let lines_left = lines.len().saturating_sub(LINES) as u64;
        lines.truncate(LINES);
        let ends = match lines.len() {
            1 => vec![smallest.clone()],
            count => {
                self.progress.note(&format!("running the program for each of {count} lines"));
                let alone: Vec<_> = lines.iter().copied().map(Some).collect();
                self.run_smallest(device, &alone, largest.host_bytes)?
            }
        };
        let names = lines.iter().map(|&line| line.to_owned());
        let lines = names.zip(ends).map(|(line, end)| LineRange { line, end }).collect();
        let largest = range_end(largest, self.options.counts);
        Ok(Some(ResultRange { largest, smallest, lines, lines_left }))
    }

    /// Runs the program once for each of `lines`. In that run, operators such as `nonzero` find 0
    /// elements at the line, or at all lines if the entry is `None`. If a run fails, repeats it
    /// with 1 element. Returns an empty list after a signal.
    fn run_smallest(
        &self,
        device: &Device,
        lines: &[Option<&str>],
        host_bytes: u64,
    ) -> Result<Vec<RangeEnd>, Error> {
        let mut ends: Vec<Option<RangeEnd>> = vec![None; lines.len()];
        for count in [0, 1] {
            let counts = Counts::AtMost(count);
            let options = &Options { counts, ..self.options.clone() };
            // Repeats a run that failed with 0 elements: many programs fail if `nonzero` finds
            // none, but complete if it finds 1.
            let is_left = |end: &Option<RangeEnd>| {
                end.as_ref().is_none_or(|end| matches!(end.outcome, Outcome::NoVerdict(_)))
            };
            let left: Vec<usize> = (0..lines.len()).filter(|&at| is_left(&ends[at])).collect();
            let changes: Vec<_> = left
                .iter()
                .map(|&at| (device.clone(), Change { line: lines[at], ..Change::default() }))
                .collect();
            let runs = Runner { options, ..*self }.run_side_by_side(&changes, host_bytes)?;
            if runs.len() != left.len() || self.signals.is_interrupted() {
                break;
            }
            for (at, run) in left.into_iter().zip(&runs) {
                ends[at] = Some(range_end(run, counts));
            }
        }
        Ok(ends.into_iter().collect::<Option<_>>().unwrap_or_default())
    }

    /// Runs the program once more, on the first card with its memory raised to [`ROOM`].
    fn run_with_room(&self, devices: &[Device]) -> Result<Option<Run>, Error> {
        let Some(first) = devices.first() else { return Ok(None) };
        let device = Device::new(first.card, Some(ROOM));
        let run = self.run(&device, &Change::default(), Output::Dropped)?;
        Ok(outcome::from_run(&run).outcome.is_fit().then_some(run))
    }

    /// Runs the program with each remedy, on the first card with its memory raised to [`ROOM`].
    fn run_trials(
        &self,
        devices: &[Device],
        remedies: Vec<trial::Planned>,
        results: &Results,
    ) -> Result<Vec<(trial::Planned, Run)>, Error> {
        let Some(first) = devices.first() else { return Ok(Vec::new()) };
        let device = Device::new(first.card, Some(ROOM));
        self.progress.note(&format!("running the program with {} remedies", remedies.len()));
        let runs: Vec<_> = remedies
            .iter()
            .map(|planned| Change { remedy: &planned.names, ..Change::default() })
            .map(|change| (device.clone(), change))
            .collect();
        let host_bytes = results.runs.first().map_or(0, |run| run.host_bytes);
        let done = self.run_side_by_side(&runs, host_bytes)?;
        // After a signal, runs are missing.
        Ok(match done.len() == runs.len() {
            true => remedies.iter().cloned().zip(done).collect(),
            false => Vec::new(),
        })
    }
}

/// Returns the outcome and the peaks of `run`. `counts` is the number of elements that operators
/// such as `nonzero` found in this run.
fn range_end(run: &Run, counts: Counts) -> RangeEnd {
    let result = outcome::from_run(run);
    let devices = || result.processes.iter().flat_map(|process| &process.devices);
    RangeEnd {
        counts,
        outcome: result.outcome,
        allocated: devices().filter_map(|device| device.allocated).max(),
        reserved: devices().filter_map(|device| device.reserved).max(),
        in_use: devices().filter_map(|device| device.in_use).max(),
    }
}

/// Replays `run`'s trace on `device`, and returns the result. Returns `None` if a replay proves
/// nothing, because the program failed, would run other kernels on this card, read the free memory,
/// or allocated managed memory.
fn replay_result(run: &Run, recording: Option<&Recording>, device: &Device) -> Option<CardResult> {
    let recording = recording?;
    let is_open =
        run.processes.iter().filter_map(|process| process.driver.as_ref()).any(|driver| {
            let has_managed = driver.devices.iter().any(|device| device.peak_managed > 0);
            driver.asked_for_free_memory > 0 || has_managed
        });
    let of_run = outcome::from_run(run).outcome;
    if is_open || !of_run.is_fit() || !run.device.is_alike(device) {
        return None;
    }
    let outcome = match explain::replay_on(recording, device)?.verdict.gets_through {
        true => of_run,
        false => Outcome::DoesNotFit,
    };
    Some(CardResult { is_replayed: true, ..outcome::without_run(device, outcome) })
}

/// Reason for the end of a search.
enum Stop {
    /// A run has no verdict, or was interrupted.
    NoVerdict,
    Error(Error),
}

/// Returns the number of runs that this machine can do in parallel. `host_bytes` is the host memory
/// that a run takes.
fn parallel_runs(host_bytes: u64) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    // Doubles the memory of a run, because a program may need more host memory on a larger card.
    let room = kib.unwrap_or(0).saturating_mul(1024) / host_bytes.saturating_mul(2).max(1);
    cores.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}
