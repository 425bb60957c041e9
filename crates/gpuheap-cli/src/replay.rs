//! `gpuheap replay`: reads traces, replays them, and prints the reports.

use std::io::{IsTerminal, stdin};
use std::path::Path;

use gpuheap::Device;
use gpuheap_replay::replay::{DeviceChoice, Options, Progress as _, ReplayError};
use gpuheap_replay::report::Detail;
use gpuheap_replay::run::TraceReport;
use gpuheap_replay::tune::TraceSearch;
use gpuheap_replay::{json, report, run};
use gpuheap_trace::{ReadOptions, Trace};

use crate::cli::{CardOption, ReplayArguments};
use crate::exit::{Failure, Verdict};
use crate::output;
use crate::progress::{Counted, Progress};

/// Name for standard input in place of a trace.
const STANDARD_INPUT: &str = "-";

/// Replays the traces, and prints the reports.
///
/// # Errors
///
/// Returns a failure if files cannot be read (one line each), or if a device cannot be opened. Then
/// nothing is printed.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<Verdict, Failure> {
    if let Some(CardOption::List) = arguments.card {
        return output::print(&report::list_cards()).map(|()| Verdict::Fine);
    }
    let traces = read(arguments)?;
    if arguments.tune.is_some() {
        return tune(arguments, &traces);
    }
    if let Some(event) = arguments.at {
        let moments: Result<Vec<String>, String> =
            traces.iter().map(|trace| report::render_moment(trace, event)).collect();
        let moments = moments.map_err(|error| Failure::wrong_use(format!("--at: {error}")))?;
        return output::print(&moments.join("\n")).map(|()| Verdict::Fine);
    }
    let options = options(arguments)?;
    let progress = Progress::new();
    let reports = run::replay(&traces, &options, &progress).map_err(failed)?;
    drop(progress);
    let text = if arguments.json {
        json::render(&reports).map_err(Failure::environment_error)?
    } else {
        let detail = if arguments.verbose { Detail::Full } else { Detail::Screen };
        report::render(&reports, detail)
    };
    output::print(&text)?;
    let gets_through = |report: &TraceReport| report.verdict.gets_through;
    Ok(if reports.iter().all(gets_through) { Verdict::Fine } else { Verdict::Findings })
}

/// Searches settings for each trace, and prints the best settings.
fn tune(arguments: &ReplayArguments, traces: &[Trace]) -> Result<Verdict, Failure> {
    let device = device(arguments)?;
    let progress = Progress::new();
    let searches: Vec<TraceSearch> = traces
        .iter()
        .map(|trace| TraceSearch::run(trace, arguments.family(), &device, &progress))
        .collect();
    drop(progress);
    let text = if arguments.json {
        json::render_searches(&searches).map_err(Failure::environment_error)?
    } else {
        report::tune(&searches)
    };
    output::print(&text)?;
    let get_through = searches.iter().all(TraceSearch::gets_through);
    Ok(if get_through { Verdict::Fine } else { Verdict::Findings })
}

/// Reads all traces before the first replay, so that a bad file is reported at once.
fn read(arguments: &ReplayArguments) -> Result<Vec<Trace>, Failure> {
    let options = ReadOptions::default().recorded_only(arguments.recorded_only);
    let mut traces = Vec::new();
    let mut failures: Option<Failure> = None;
    let mut is_read = false;
    for path in &arguments.traces {
        let result = if path == Path::new(STANDARD_INPUT) {
            if std::mem::replace(&mut is_read, true) {
                return Err(Failure::wrong_use("- was given more than once; give it once"));
            }
            if stdin().is_terminal() {
                return Err(Failure::wrong_use(
                    "- reads a trace from standard input, which is a terminal; pipe a file into it",
                ));
            }
            gpuheap_trace::read_from("standard input", stdin().lock(), &options)
        } else {
            read_file(path, &options)
        };
        match result {
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

fn read_file(path: &Path, options: &ReadOptions) -> Result<Vec<Trace>, gpuheap_trace::Error> {
    let file = gpuheap_trace::open(path)?;
    let progress = Progress::of_bytes(file.metadata().map_or(0, |about| about.len()));
    let name = path.display().to_string();
    progress.now(&format!("reading {name}"));
    gpuheap_trace::read_from(&name, Counted { reader: file, progress: &progress }, options)
}

fn options(arguments: &ReplayArguments) -> Result<Options, Failure> {
    Ok(Options {
        pools: arguments.pools.clone(),
        check: arguments.check.clone(),
        device: device(arguments)?,
        limit: arguments.limit.as_ref().map(|limit| limit.size),
        limit_typed: arguments.limit.as_ref().map(|limit| limit.typed.clone()),
        release_threshold: arguments.release_threshold,
        delay: arguments.delay,
        find_minimum: arguments.find_minimum,
    })
}

fn device(arguments: &ReplayArguments) -> Result<DeviceChoice, Failure> {
    if let Some(ordinal) = arguments.device {
        let device =
            Device::open(&format!("cuda:{ordinal}")).map_err(Failure::environment_error)?;
        return Ok(DeviceChoice::Real(device));
    }
    if let Some(CardOption::Card(card)) = arguments.card {
        return Ok(DeviceChoice::Card(card));
    }
    let profile = arguments.profile.clone();
    Ok(match (&arguments.device_memory, profile) {
        (Some(memory), profile) => {
            DeviceChoice::Memory { profile, bytes: memory.bytes, typed: memory.typed.clone() }
        }
        (None, Some(profile)) => DeviceChoice::Profile(profile),
        (None, None) => DeviceChoice::Default,
    })
}

fn failed(error: ReplayError) -> Failure {
    match error {
        ReplayError::Setting(error) => Failure::wrong_use(format!("--pool: {error}")),
        error => Failure::environment_error(error),
    }
}
