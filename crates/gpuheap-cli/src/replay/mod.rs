//! `gpuheap replay`: which policy and which device are enough for a recorded program.

mod engine;
mod json;
mod minimum;
mod report;

use std::sync::{Mutex, PoisonError};

use gpuheap::emu::Profile;
use gpuheap::{Device, Error, PoolKind};
use gpuheap_trace::{Format, Op, ReadOptions, Summary, Trace};

use self::engine::{Bounds, Outcome, Program, Target};
use self::minimum::Minimum;
use crate::cli::ReplayArguments;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{Verdict, output};

/// What is known of one trace after its replays.
struct TraceReport {
    name: String,
    format: Format,
    /// The device that the trace was recorded on, as the recorded program counted them.
    recorded_on: Option<u32>,
    summary: Summary,
    /// The first request that failed when the trace was recorded.
    first_failure: Option<RecordedFailure>,
    /// The device of the replay, in words.
    device: String,
    device_memory: u64,
    /// Whether driver pools are a model.
    emulated: bool,
    pools: Vec<PoolReport>,
}

/// A request that the recorded program made in vain.
struct RecordedFailure {
    event: u64,
    bytes: u64,
}

/// What is known of one policy.
struct PoolReport {
    pool: PoolKind,
    outcome: Outcome,
    /// `None` where it was not asked for.
    minimum: Option<Minimum>,
}

/// Replays, finds minima where asked, and prints.
///
/// # Errors
///
/// What cannot be read (every such file, one line each), or a device that cannot be had. Nothing
/// is printed then.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<Verdict, Failure> {
    let traces = read(arguments)?;
    let target = target(arguments)?;
    let reports = replay(&traces, arguments, &target)?;
    let text = if arguments.json {
        json::render(&reports).map_err(Failure::could_not_look)?
    } else {
        report::render(&reports)
    };
    output::print(&text)?;
    let stopped =
        |report: &TraceReport| report.pools.iter().any(|pool| pool.outcome.stop.is_some());
    Ok(if reports.iter().any(stopped) { Verdict::Findings } else { Verdict::Fine })
}

/// Reads all traces before anything is replayed: a bad file is told at once, not after minutes.
fn read(arguments: &ReplayArguments) -> Result<Vec<Trace>, Failure> {
    let options = ReadOptions::default().recorded_only(arguments.recorded_only);
    let mut traces = Vec::new();
    let mut failures: Option<Failure> = None;
    for path in &arguments.traces {
        match gpuheap_trace::read(path, &options) {
            Ok(read) => traces.extend(read),
            Err(error) => {
                let failure = Failure::wrong_use(error);
                failures = Some(match failures {
                    Some(others) => others.and(failure),
                    None => failure,
                });
            }
        }
    }
    match failures {
        Some(failures) => Err(failures),
        None => {
            for trace in &traces {
                for warning in trace.warnings() {
                    output::note(&format!("{}: {warning}", trace.name()));
                }
            }
            Ok(traces)
        }
    }
}

fn target(arguments: &ReplayArguments) -> Result<Target, Failure> {
    if let Some(ordinal) = arguments.device {
        let device = Device::open(&format!("cuda:{ordinal}")).map_err(Failure::could_not_look)?;
        return Ok(Target::Real(device));
    }
    let profile = match (&arguments.profile, arguments.device_memory) {
        (None, None) => beside_context(Profile::h200()),
        (None, Some(bytes)) => Profile::with_memory(bytes),
        (Some(profile), None) => beside_context(profile.clone()),
        (Some(profile), Some(bytes)) => profile.clone().memory_bytes(bytes),
    };
    let profile = profile.without_context();
    Ok(Target::Emulated { profile, delay: arguments.delay })
}

/// What a device of that kind leaves to a program once its context is there.
fn beside_context(profile: Profile) -> Profile {
    let bytes = profile.memory_bytes.saturating_sub(profile.context_bytes);
    profile.memory_bytes(bytes)
}

/// Measures on one core, so that replays do not disturb each other's times; then finds minima on
/// all of them.
fn replay(
    traces: &[Trace],
    arguments: &ReplayArguments,
    target: &Target,
) -> Result<Vec<TraceReport>, Failure> {
    let pools = arguments.pools();
    let bounds = Bounds { limit: arguments.limit, threshold: arguments.release_threshold };
    let programs: Vec<Program> = traces.iter().map(Program::of).collect();
    let progress = Progress::new((traces.len() * pools.len()) as u64);
    let mut reports = Vec::new();
    for (trace, program) in traces.iter().zip(&programs) {
        let mut report = TraceReport::new(trace, target);
        for pool in &pools {
            progress.now(format!("replaying, pool {pool}"));
            let outcome = engine::measure(trace, program, *pool, target, bounds)
                .map_err(|error| failed(trace, *pool, &error))?;
            report.pools.push(PoolReport { pool: *pool, outcome, minimum: None });
            progress.advance(1);
        }
        reports.push(report);
    }
    if arguments.find_minimum {
        progress.now("finding minima");
        let mut tasks = Vec::new();
        for ((trace, program), report) in traces.iter().zip(&programs).zip(&mut reports) {
            tasks.extend(report.pools.iter_mut().map(|pool| (trace, program, pool)));
        }
        on_all_cores(tasks, |(trace, program, report)| {
            let found =
                minimum::find(program, report.pool, target, bounds, &report.outcome, &progress);
            report.minimum = Some(found.map_err(|error| failed(trace, report.pool, &error))?);
            Ok(())
        })?;
    }
    Ok(reports)
}

impl TraceReport {
    fn new(trace: &Trace, target: &Target) -> TraceReport {
        let (device, device_memory, emulated) = match target {
            Target::Emulated { profile, .. } => (profile.name.clone(), profile.memory_bytes, true),
            Target::Real(device) => (device.to_string(), device.total_memory(), false),
        };
        TraceReport {
            name: trace.name().to_owned(),
            format: trace.format(),
            recorded_on: trace.device(),
            summary: trace.summary(),
            first_failure: trace.events().iter().find_map(|event| match event.op {
                Op::Fail { bytes } => Some(RecordedFailure { event: event.number.into(), bytes }),
                _ => None,
            }),
            device,
            device_memory,
            emulated,
            pools: Vec::new(),
        }
    }
}

fn failed(trace: &Trace, pool: PoolKind, error: &Error) -> Failure {
    Failure::could_not_look(format!("{}, pool {pool}: {error}", trace.name()))
}

/// Does all tasks, as many at a time as there are cores. A core stops at its first failure.
fn on_all_cores<T: Send>(
    tasks: Vec<T>,
    work: impl Fn(T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let workers = cores.min(tasks.len());
    let tasks = Mutex::new(tasks.into_iter());
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        while let Some(task) = next() {
            work(task)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
