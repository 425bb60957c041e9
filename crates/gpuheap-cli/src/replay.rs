//! `gpuheap replay`: reads traces, replays them, and prints the reports.

use gpuheap::Device;
use gpuheap_replay::replay::{DeviceChoice, Options, ReplayError};
use gpuheap_replay::report::Detail;
use gpuheap_replay::run::TraceReport;
use gpuheap_replay::tune::TraceSearch;
use gpuheap_replay::{json, report, run};
use gpuheap_trace::{ReadOptions, Trace};

use crate::cli::{CardOption, ReplayArguments};
use crate::exit::{Failure, Verdict};
use crate::progress::Progress;
use crate::{output, traces};

/// Replays the traces, and prints the reports.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<Verdict, Failure> {
    if let Some(CardOption::List) = arguments.card {
        return output::print(&report::list_cards()).map(|()| Verdict::Fine);
    }
    let read = ReadOptions::default().recorded_only(arguments.recorded_only);
    let traces = traces::read(&arguments.traces, &read)?;
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
