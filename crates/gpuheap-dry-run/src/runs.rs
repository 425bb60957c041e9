//! Runs of a program, as many as the question takes.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::batch::FindBatch;
use crate::card::Device;
use crate::done::Done;
use crate::error::not_written;
use crate::judge::judge;
use crate::program::{self, Output, Run, Value};
use crate::signals::Signals;
use crate::stand_ins::StandIns;
use crate::verdict::{Batch, CardResult, Found, Outcome, Verdict};
use crate::{Error, Options, Progress, explain, outcome, quick};

/// Memory of the device on which a program is run once more, if it fits on no card that was asked
/// for: more than any card has.
const ROOM: u64 = 2 << 40;

/// Runs the program as the options say, and judges what it took.
///
/// The output of the first run passes; that of further runs is dropped. Blocks until all runs have
/// ended.
///
/// # Errors
///
/// Returns an error if the program cannot be started, or a file cannot be written.
pub fn dry_run(options: &Options, progress: &dyn Progress) -> Result<Verdict, Error> {
    let stand_ins = StandIns::find(options.stand_ins.as_deref())?;
    if let Some(file) = &options.trace {
        writable(file)?;
    }
    let signals = Signals::new();
    let runner = Runner { options, stand_ins: &stand_ins, signals: &signals, progress };
    let devices: Vec<Device> =
        options.cards.iter().map(|card| Device::new(card, options.memory)).collect();
    let mut done = match &options.find_batch {
        Some(range) => runner.search(&devices, range)?,
        None => runner.cards(&devices)?,
    };
    let fits_nowhere = done.cards.iter().all(|card| card.outcome == Outcome::DoesNotFit);
    if fits_nowhere && done.batch.is_none() && !signals.is_interrupted() {
        done.with_room = runner.with_room(&devices)?;
    }
    judge(options, &stand_ins, &done, signals.is_interrupted())
}

/// Fails if the file cannot be written, before the program is run for it.
fn writable(file: &Path) -> Result<(), Error> {
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
    fn run(&self, device: &Device, value: Value<'_>, output: Output) -> Result<Run, Error> {
        let Self { options, stand_ins, signals, progress } = *self;
        program::run(options, stand_ins, device, value, output, signals, progress)
    }

    /// Runs the program on each card. The first run shows its output, and how much host memory each
    /// run takes; the others run side by side.
    fn cards(&self, devices: &[Device]) -> Result<Done, Error> {
        let mut done = Done::default();
        let Some((first, others)) = devices.split_first() else { return Ok(done) };
        let run = self.run(first, None, Output::Passed)?;
        done.cards.push(outcome::of(&run));
        if self.signals.is_interrupted() {
            done.runs.push(run);
            return Ok(done);
        }
        let recorded = self.options.quick.then(|| explain::recorded(&run)).flatten();
        let replayed: Vec<Option<CardResult>> =
            others.iter().map(|device| quick::of(&run, recorded.as_ref(), device)).collect();
        let left = others.iter().zip(&replayed).filter(|(_, known)| known.is_none());
        let left: Vec<&Device> = left.map(|(device, _)| device).collect();
        let further = self.side_by_side(&left, run.host_bytes)?;
        let mut results = further.iter().map(outcome::of);
        done.cards
            .extend(replayed.into_iter().filter_map(|known| known.or_else(|| results.next())));
        drop(results);
        done.runs.push(run);
        done.runs.extend(further);
        Ok(done)
    }

    /// Runs the program on each device, as many at a time as cores and host memory allow. Each run
    /// takes `host_bytes`.
    fn side_by_side(&self, devices: &[&Device], host_bytes: u64) -> Result<Vec<Run>, Error> {
        let workers = at_a_time(host_bytes).min(devices.len());
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
                    Some(device) if !self.signals.is_interrupted() => {
                        put(at, self.run(device, None, Output::Dropped));
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

    /// Searches the largest value for each card.
    fn search(&self, devices: &[Device], range: &FindBatch) -> Result<Done, Error> {
        let mut done = Done::default();
        let mut batch = Batch::of(range);
        for device in devices {
            let mut kept: Option<Run> = None;
            let largest = range.search(|value| {
                let output = if batch.runs == 0 { Output::Passed } else { Output::Dropped };
                batch.runs += 1;
                let run = self.run(device, Some((&range.variable, value)), output);
                let run = run.map_err(Stop::Error)?;
                let outcome = outcome::of(&run).outcome;
                // Of the runs that fit, the last one has the largest value.
                let is_too_large = matches!(outcome, Outcome::DoesNotFit | Outcome::Oversubscribed);
                if kept.is_none() || !is_too_large {
                    kept = Some(run);
                }
                match outcome {
                    _ if self.signals.is_interrupted() => Err(Stop::NoVerdict),
                    Outcome::NoVerdict(_) => Err(Stop::NoVerdict),
                    outcome => Ok(outcome.is_fit()),
                }
            });
            match largest {
                Ok(largest) => {
                    batch.found.push(Found { card: device.card.name.to_owned(), largest });
                }
                Err(Stop::NoVerdict) => {}
                Err(Stop::Error(error)) => return Err(error),
            }
            if let Some(run) = kept {
                done.cards.push(outcome::of(&run));
                done.runs.push(run);
            }
            if self.signals.is_interrupted() {
                break;
            }
        }
        done.batch = Some(batch);
        Ok(done)
    }

    /// Runs the program once more, on the first device with memory to spare.
    fn with_room(&self, devices: &[Device]) -> Result<Option<Run>, Error> {
        let Some(first) = devices.first() else { return Ok(None) };
        let device = Device::new(first.card, Some(ROOM));
        let run = self.run(&device, None, Output::Dropped)?;
        Ok(outcome::of(&run).outcome.is_fit().then_some(run))
    }
}

/// Reason for the end of a search.
enum Stop {
    /// A run has no verdict, or was interrupted.
    NoVerdict,
    Error(Error),
}

/// Returns the number of runs that the machine has room for at a time.
fn at_a_time(host_bytes: u64) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    // A program may need more on a larger card.
    let room = kib.unwrap_or(0).saturating_mul(1024) / host_bytes.saturating_mul(2).max(1);
    cores.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}
