//! Replays traces through pools, and judges the results.

use gpuheap::{PoolKind, Size};
use gpuheap_trace::{Format, Summary, Trace, WarningKind};

use crate::cores::on_all_cores;
use crate::recorded::Recorded;
use crate::replay::{
    Bench, DeviceUsed, Options, Pool, PoolReport, Progress, ReplayError, Silent, torch_settings,
};
use crate::verdict::Verdict;
use crate::{Gap, Program};

/// Result of the replays of one trace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TraceReport {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: Format,
    /// Index of the recorded device, as the recorded program counts devices.
    pub recorded_on: Option<u32>,
    /// Counts and peaks of the trace.
    pub summary: Summary,
    /// The device of the replays.
    pub device: DeviceUsed,
    /// Bytes that a pool may take from the driver; `None` for no limit.
    pub limit: Option<u64>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// Facts that the recording contains about the recorded allocator.
    pub recorded: Recorded,
    /// `true` if the file is cut off. Then the figures are lower bounds.
    pub is_cut_off: bool,
    /// Facts that the recording lacks, with their effect on the figures.
    pub gaps: Vec<Gap>,
    /// Results, one for each pool.
    pub pools: Vec<PoolReport>,
    /// Conclusions from the results.
    pub verdict: Verdict,
}

/// Replays all traces through all pools, and judges the results.
///
/// The replays run on one core, so that they do not disturb each other's times. The searches for
/// the smallest devices run on all cores. Blocks until all is done.
///
/// # Errors
/// Returns an error if a setting is not possible on the device, or if the device fails.
pub fn replay(
    traces: &[Trace],
    options: &Options,
    progress: &dyn Progress,
) -> Result<Vec<TraceReport>, ReplayError> {
    let mut benches = Vec::new();
    for trace in traces {
        let program = Program::from_trace(trace);
        let recorded = Recorded::from_trace(trace, &program);
        let bench = Bench::new(trace, program, &recorded, options);
        let pools = pools(&recorded, options);
        progress.expect(pools.len() as u64);
        benches.push((bench, recorded, pools));
    }
    let mut all_results = Vec::new();
    for (bench, _, pools) in &benches {
        let mut results = Vec::new();
        for pool in pools {
            progress.now(&format!("replaying, pool {pool}"));
            results.push(bench.measure(pool)?);
            progress.advance(1);
        }
        all_results.push(results);
    }
    if options.find_minimum {
        progress.now("finding minima");
        let mut tasks = Vec::new();
        for ((bench, ..), results) in benches.iter().zip(&mut all_results) {
            tasks.extend(results.iter_mut().map(|result| (bench, result)));
        }
        let found = on_all_cores(tasks.into_iter(), |(bench, result)| {
            result.minimum = Some(bench.find_minimum(result, progress)?);
            Ok(())
        });
        found.into_iter().collect::<Result<(), ReplayError>>()?;
    }
    let mut reports = Vec::new();
    for ((bench, recorded, _), results) in benches.into_iter().zip(all_results) {
        progress.now("judging");
        let gaps = gaps(&bench, &recorded, options)?;
        let verdict = Verdict::judge(&bench, &recorded, &results, options)?;
        let results = match options.pools.is_empty() {
            true => with_remedies(&bench, results, &verdict, options.find_minimum)?,
            false => results,
        };
        reports.push(TraceReport {
            name: bench.trace.name().to_owned(),
            format: bench.trace.format(),
            recorded_on: bench.trace.device(),
            is_cut_off: bench.trace.warnings().iter().any(|warning| {
                matches!(warning.kind, WarningKind::BrokenOff(_) | WarningKind::LastLineCut)
            }),
            summary: bench.trace.summary(),
            limit: bench.memory().limit,
            limit_typed: options.limit_typed.clone(),
            device: bench.device,
            recorded,
            gaps,
            pools: results,
            verdict,
        });
    }
    Ok(reports)
}

/// Returns the results, with a further result for each pool that the verdict advises. The new
/// results precede the results of gpuheap's own pools.
fn with_remedies(
    bench: &Bench<'_>,
    mut results: Vec<PoolReport>,
    verdict: &Verdict,
    find_minimum: bool,
) -> Result<Vec<PoolReport>, ReplayError> {
    for text in verdict.remedies.iter().filter_map(|remedy| remedy.pool.as_deref()) {
        if results.iter().any(|result| result.pool.to_string() == text) {
            continue;
        }
        let mut result = bench.measure(&Pool::Model(text.to_owned()))?;
        if find_minimum {
            result.minimum = Some(bench.find_minimum(&result, &Silent)?);
        }
        let is_own = |result: &PoolReport| matches!(result.pool, Pool::Own(_));
        let at = results.iter().position(is_own).unwrap_or(results.len());
        results.insert(at, result);
    }
    Ok(results)
}

/// Returns the facts that the recording lacks. PyTorch's memory fraction is known only if the user
/// gave it in the settings of a pool.
fn gaps(
    bench: &Bench<'_>,
    recorded: &Recorded,
    options: &Options,
) -> Result<Vec<Gap>, ReplayError> {
    let mut fraction = None;
    for pool in options.pools.iter().chain(&options.check) {
        if let Pool::Model(text) = pool {
            let settings = torch_settings(bench, text)?;
            fraction = fraction.or(settings.and_then(|settings| settings.memory_fraction()));
        }
    }
    // If the user's memory fraction differs from the fraction of the recorded run, even a correct
    // model takes other segments than the recording has. The recording lacks nothing then. So if
    // the model is inexact with the fraction, a comparison without a fraction decides.
    let is_exact = |gaps: &Vec<Gap>| !gaps.iter().any(|gap| matches!(gap, Gap::Inexact(_)));
    let with = fraction.map(|_| bench.program.gaps(fraction, bench.device.total));
    let memory = recorded.limit.map_or(u64::MAX, |limit| limit.least);
    let without = || bench.program.gaps(None, memory);
    let mut gaps = with.filter(is_exact).unwrap_or_else(without);
    if !recorded.failed.is_empty() && !options.knows_memory(recorded) {
        gaps.push(Gap::Device);
    }
    Ok(gaps)
}

/// Returns the pools to replay, each once, in the order of the options.
fn pools(recorded: &Recorded, options: &Options) -> Vec<Pool> {
    // If the user gave no limit and no device, the limit of the recorded run applies. Leaves out
    // gpuheap's heaps that cannot be built with that limit.
    let of_run = options.limit.is_none().then(|| options.limit_for(recorded)).flatten();
    let least = |kind| if kind == PoolKind::Driver { 32 << 20 } else { 2 << 20 };
    let is_possible = |kind: &PoolKind| match of_run {
        Some(Size::Bytes(limit)) => limit >= least(*kind),
        _ => true,
    };
    let own = PoolKind::ALL.into_iter().filter(is_possible).map(Pool::Own);
    let model = |text: &str| Pool::Model(text.to_owned());
    let asked = match (&options.pools[..], recorded.allocator) {
        ([], Some("torch")) => {
            let mut pools = vec![model("torch")];
            if !recorded.expandable_segments() {
                pools.push(model("torch:expandable_segments:True"));
            }
            pools.extend(own);
            pools
        }
        ([], None) if recorded.is_rmm => {
            let others = ["rmm:async", "rmm:pool", "rmm:arena", "rmm:binning", "cuda", "cupy"];
            others.map(model).into_iter().chain(own).collect()
        }
        ([], used) => {
            let driver = ["cuda", "cuda:async"].map(model);
            used.map(model).into_iter().chain(driver).chain(own).collect()
        }
        (named, _) => named.to_vec(),
    };
    let mut pools = Vec::new();
    for pool in asked.into_iter().chain(options.check.clone()) {
        if !pools.contains(&pool) {
            pools.push(pool);
        }
    }
    pools
}
