//! Replays traces through pools, and judges the results.

mod device;
mod heaps;
pub(crate) mod minimum;
mod model;
mod pool;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gpuheap::{PoolKind, Size};
use gpuheap_trace::{Format, Summary, Trace, WarningKind};

pub use self::device::{DeviceChoice, DeviceUsed};
use self::heaps::{Bounds, Machine, Steps};
pub use self::minimum::Minimum;
pub(crate) use self::model::{
    Memory, attempt, run_torch, torch_gets_through, torch_settings, unlimited,
};
pub use self::pool::Pool;
use crate::models::SettingError;
use crate::models::torch::Settings;
use crate::tune::Budget;
use crate::verdict::{Recorded, Verdict};
use crate::{Gap, PeakRange, Program};

/// How traces are replayed.
#[derive(Debug, Clone)]
pub struct Options {
    /// The pools; if empty, those that fit the trace's format.
    pub pools: Vec<Pool>,
    /// The pool that decides whether the trace gets through; if `None`, the pools that were named,
    /// else the allocator that recorded the trace.
    pub check: Option<Pool>,
    /// The device.
    pub device: DeviceChoice,
    /// The most that a pool may take from the driver.
    pub limit: Option<Size>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// How much gpuheap's pool `driver` keeps of what is freed.
    pub release_threshold: Option<Size>,
    /// How far the streams of an emulated device are behind the host.
    pub delay: Option<Duration>,
    /// `true` if the smallest device is searched for each pool.
    pub find_minimum: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            check: None,
            device: DeviceChoice::Default,
            limit: None,
            limit_typed: None,
            release_threshold: None,
            delay: None,
            find_minimum: false,
        }
    }
}

impl Options {
    /// Returns whether the memory of the run is known: from the user, or from the recording of its
    /// failure.
    pub(crate) fn knows_memory(&self, recorded: &Recorded) -> bool {
        self.device.is_given() || self.limit.is_some() || recorded.limit.is_some()
    }
}

/// Receives what is being done. Called from several threads.
pub trait Progress: Sync {
    /// Names the step that begins.
    fn now(&self, step: &str);
    /// Adds steps to those that are known.
    fn expect(&self, steps: u64);
    /// Reports steps as done.
    fn advance(&self, steps: u64);
}

/// Shows no progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn now(&self, _step: &str) {}
    fn expect(&self, _steps: u64) {}
    fn advance(&self, _steps: u64) {}
}

/// Why a replay could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplayError {
    /// A setting of a model is not possible on the device.
    Setting(SettingError),
    /// The device or its driver failed: trace, pool, and the driver's error.
    Device(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(error) => error.fmt(f),
            Self::Device(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<SettingError> for ReplayError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

/// Result of the replays of one trace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TraceReport {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: Format,
    /// The device that the trace was recorded on, as the recorded program counted them.
    pub recorded_on: Option<u32>,
    /// Counts and peaks of the trace.
    pub summary: Summary,
    /// The device of the replays.
    pub device: DeviceUsed,
    /// The most that a pool could take from the driver, bytes; `None` if no limit was asked for.
    pub limit: Option<u64>,
    /// The limit as the user wrote it.
    pub limit_typed: Option<String>,
    /// Facts that the recording has of its own allocator.
    pub recorded: Recorded,
    /// `true` if the file is cut off: figures are those of the part before.
    pub is_cut_off: bool,
    /// Gaps of the recording.
    pub gaps: Vec<Gap>,
    /// Results, one for each pool.
    pub pools: Vec<PoolReport>,
    /// Conclusions from the results.
    pub verdict: Verdict,
}

/// Result of the replay through one pool. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolReport {
    /// The pool as it was asked for.
    pub pool: Pool,
    /// The settings that `torch` alone stands for, as `PYTORCH_CUDA_ALLOC_CONF` holds them.
    pub settings: Option<String>,
    /// The kind that gpuheap's heap had, if the device cannot have the one that was asked for.
    pub actual: Option<PoolKind>,
    /// Why it was another kind.
    pub fallback: Option<String>,
    /// The most that was live at once, as requested.
    pub peak_live: u64,
    /// The most that was taken from the driver. A range if the speed of the program decides.
    pub peak_reserved: PeakRange,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// Host time of an event in the first pass, nanoseconds; `None` for models.
    pub cold_ns: Option<f64>,
    /// Median host time of an event in later passes, nanoseconds; `None` for models.
    pub warm_ns: Option<f64>,
    /// Where memory ran out.
    pub stop: Option<Stop>,
    /// `true` if the replay got through, but the program may run out of memory: its speed decides
    /// which blocks of other streams are free.
    pub may_fail: bool,
    /// The smallest device, if it was asked for.
    pub minimum: Option<Minimum>,
}

/// Where and why a replay ran out of memory. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stop {
    /// The event's number in the file; 0 for a block that was live before the recording.
    pub event: u64,
    /// Nanoseconds since the first recorded event.
    pub time_ns: u64,
    /// 1 or 2; the second pass finds what the first one left behind.
    pub pass: u32,
    /// The request.
    pub requested: u64,
    /// Taken from the driver.
    pub reserved: u64,
    /// In blocks of the program, as requested.
    pub live: u64,
    /// In blocks of the program beyond what was requested.
    pub rounding: u64,
    /// Free and held by the pool, pending blocks included.
    pub cached: u64,
    /// Freed, but still used by other streams.
    pub pending: u64,
    /// Of `cached`, bytes that only other streams may use; `None` if the pool does not say.
    pub other_streams: Option<u64>,
    /// The largest of `cached` in one piece.
    pub largest_cached: u64,
    /// By how much too little was to be had; `None` if that is not known.
    pub short_by: Option<u64>,
    /// Bytes that the pool was allowed to take, if that was less than the device.
    pub limit: Option<u64>,
    /// Main reason.
    pub cause: Cause,
}

/// Main reason of a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The request alone is larger than the device.
    LargerThanDevice,
    /// The request alone is larger than the limit.
    LargerThanLimit,
    /// Live bytes and the request exceed the limit.
    Limit,
    /// Live bytes and the request exceed the device.
    DeviceFull,
    /// The bytes that the pool adds to requests take the room.
    Rounding,
    /// Enough is free, in pieces that are too small.
    Fragmentation,
    /// Enough is freed, but other streams still use it.
    Pending,
    /// Enough is free, but only other streams may use it.
    OtherStreams,
    /// Another reason, named by the heap.
    Other(&'static str),
}

impl Cause {
    /// Returns one word for it, as in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::LargerThanDevice => "larger_than_device",
            Self::LargerThanLimit => "larger_than_limit",
            Self::Limit => "limit",
            Self::DeviceFull => "device_full",
            Self::Rounding => "rounding",
            Self::Fragmentation => "fragmentation",
            Self::Pending => "pending",
            Self::OtherStreams => "other_streams",
            Self::Other(name) => name,
        }
    }

    /// Returns the main reason of a request of `requested` bytes where `capacity` bytes could be
    /// taken, `live` were in use, and the parts were not to be had.
    pub(crate) fn of(
        requested: u64,
        live: u64,
        capacity: u64,
        is_limit: bool,
        parts: [(u64, Self); 4],
    ) -> Self {
        match is_limit {
            true if requested > capacity => Self::LargerThanLimit,
            false if requested > capacity => Self::LargerThanDevice,
            true if live.saturating_add(requested) > capacity => Self::Limit,
            false if live.saturating_add(requested) > capacity => Self::DeviceFull,
            _ => {
                let largest = parts.into_iter().max_by_key(|(bytes, _)| *bytes);
                largest.map_or(Self::Fragmentation, |(_, cause)| cause)
            }
        }
    }
}

impl PoolReport {
    /// Returns whether the program gets through, whatever its speed.
    pub fn gets_through(&self) -> bool {
        self.stop.is_none() && !self.may_fail
    }

    /// Returns the part of the memory that was used at the peak; `None` if none was taken.
    pub fn utilisation(&self) -> Option<f64> {
        let peak = self.peak_reserved.high;
        (peak != 0).then(|| self.peak_live as f64 / peak as f64)
    }
}

/// One trace, made ready for all pools.
pub(crate) struct Bench<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) program: Program,
    steps: Steps,
    pub(crate) device: DeviceUsed,
    machine: Machine,
    bounds: Bounds,
}

impl<'t> Bench<'t> {
    fn new(trace: &'t Trace, recorded: &Recorded, options: &Options) -> Result<Self, ReplayError> {
        let device = options.device.resolve(recorded, options.limit.is_some());
        let machine = options.device.machine(&device, options.delay);
        let bounds = Bounds { limit: options.limit, threshold: options.release_threshold };
        let program = Program::of(trace);
        Ok(Self { trace, program, steps: Steps::of(trace), device, machine, bounds })
    }

    /// Bytes that a model may take of the device.
    pub(crate) fn memory(&self) -> Memory {
        let DeviceUsed { total, usable, .. } = self.device;
        Memory { total, usable, limit: self.bounds.limit.map(|limit| limit.of(total)) }
    }

    /// Bounds of a search for settings on the device, small enough for every verdict.
    pub(crate) fn budget(&self) -> Budget {
        /// On two cores of 2026 this takes a second or two.
        const STEPS: usize = 12_000_000;
        let memory = self.memory();
        let mut budget = Budget::new(memory.capacity());
        budget.device_memory = memory.total;
        budget.vmm = self.device.has_vmm;
        budget.steps = STEPS;
        // The number of settings must not depend on how busy the machine is.
        budget.time = Duration::MAX;
        budget
    }

    pub(crate) fn peak_live(&self) -> u64 {
        self.steps.peak_live()
    }

    /// The most that PyTorch's allocator reserves on the device, as a range if the speed of the
    /// program decides.
    pub(crate) fn torch_peak(&self, settings: &Settings) -> PeakRange {
        let memory = self.memory();
        let has_fraction = settings.memory_fraction().is_some();
        let device = if has_fraction { memory.total } else { memory.capacity() };
        let PeakRange { low, high } = self.program.torch_peak(settings, device);
        // Memory that is held is in the device, so the range ends there.
        PeakRange { low: low.min(memory.capacity()), high: high.min(memory.capacity()) }
    }

    fn measure(&self, pool: &Pool) -> Result<PoolReport, ReplayError> {
        match pool {
            Pool::Own(kind) => {
                heaps::measure(self.trace, &self.steps, *kind, &self.machine, self.bounds)
                    .map_err(|error| self.failed(pool, &error))
            }
            Pool::Model(text) => {
                let report = model::measure(self, text, self.memory())?;
                Ok(PoolReport { pool: pool.clone(), ..report })
            }
        }
    }

    pub(crate) fn find_minimum(
        &self,
        report: &PoolReport,
        progress: &dyn Progress,
    ) -> Result<Minimum, ReplayError> {
        let known = match &report.stop {
            None => Some(report.peak_reserved.high),
            Some(_) => None,
        };
        let find = |attempt: &dyn Fn(u64) -> Result<Result<u64, String>, ReplayError>| {
            minimum::find(minimum::STEP, self.peak_live(), known, progress, attempt)
        };
        match (&report.pool, &self.machine) {
            (Pool::Own(_), Machine::Real(_)) => {
                Ok(Minimum::Never("a real device has the size that it has".to_owned()))
            }
            (Pool::Own(kind), machine) => find(&|bytes| {
                heaps::attempt(&self.steps, *kind, machine, self.bounds, bytes)
                    .map_err(|error| self.failed(&report.pool, &error))
            }),
            (Pool::Model(text), _) => find(&|bytes| {
                let limit = self.bounds.limit.map(|limit| limit.of(bytes));
                model::attempt(self, text, Memory { total: bytes, usable: bytes, limit })
            }),
        }
    }

    fn failed(&self, pool: &Pool, error: &gpuheap::Error) -> ReplayError {
        ReplayError::Device(format!("{}, pool {pool}: {error}", self.trace.name()))
    }
}

/// Replays all traces: measures on one core, so that replays do not disturb each other's times,
/// then searches the smallest devices on all cores.
///
/// Blocks until all is done.
///
/// # Errors
/// If a setting is not possible on the device, or the device fails.
pub fn replay(
    traces: &[Trace],
    options: &Options,
    progress: &dyn Progress,
) -> Result<Vec<TraceReport>, ReplayError> {
    let mut benches = Vec::new();
    for trace in traces {
        let recorded = Recorded::of(trace);
        let bench = Bench::new(trace, &recorded, options)?;
        let pools = pools(trace, &recorded, options);
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
        on_all_cores(tasks, |(bench, result)| {
            result.minimum = Some(bench.find_minimum(result, progress)?);
            Ok(())
        })?;
    }
    let mut reports = Vec::new();
    for ((bench, recorded, _), results) in benches.into_iter().zip(all_results) {
        progress.now("judging");
        let gaps = gaps(&bench, &recorded, options)?;
        let verdict = Verdict::of(&bench, &recorded, &results, options)?;
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

/// The results, and before those of gpuheap's own pools one for each pool that is advised.
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

/// Gaps of the recording. Of the memory fraction only the user can tell, by a pool's settings.
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
    let memory = recorded.limit.map_or(u64::MAX, |limit| limit.least);
    let without = || bench.program.gaps(None, memory);
    let mut gaps = match fraction {
        Some(_) => bench.program.gaps(fraction, bench.device.total),
        None => without(),
    };
    // Another fraction than the program had is a question, and nothing of the recording.
    if fraction.is_some() && gaps.iter().any(|gap| matches!(gap, Gap::Inexact(_))) {
        gaps = without();
    }
    if !recorded.failed.is_empty() && !options.knows_memory(recorded) {
        gaps.push(Gap::Device);
    }
    Ok(gaps)
}

/// The pools to try, each once, in the order asked for.
fn pools(trace: &Trace, recorded: &Recorded, options: &Options) -> Vec<Pool> {
    let own = PoolKind::ALL.map(Pool::Own);
    let model = |text: &str| Pool::Model(text.to_owned());
    let asked = match (&options.pools[..], trace.format()) {
        ([], Format::PytorchSnapshot) => {
            let mut pools = vec![model("torch")];
            if !recorded.expandable_segments() {
                pools.push(model("torch:expandable_segments:True"));
            }
            pools.extend(own);
            pools
        }
        ([], _) => {
            let others = ["rmm:async", "rmm:pool", "rmm:arena", "rmm:binning", "cuda", "cupy"];
            others.map(model).into_iter().chain(own).collect()
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

/// Does all tasks, as many at a time as there are cores. A core stops at its first error.
fn on_all_cores<T: Send>(
    tasks: Vec<T>,
    work: impl Fn(T) -> Result<(), ReplayError> + Sync,
) -> Result<(), ReplayError> {
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
