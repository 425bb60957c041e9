//! Remedies that would let a program through, or through with less.

use gpuheap::PoolKind;
use gpuheap_trace::Format;

use super::{Recorded, best_pool, exactly};
use crate::models::torch::Settings;
use crate::replay::minimum::{self, LARGEST};
use crate::replay::{
    Bench, Memory, Minimum, Pool, PoolReport, ReplayError, Silent, attempt, run_torch, unlimited,
};
use crate::tune::{Candidate, Family, search};
use crate::{Outcome, PeakRange};

/// Something to do. Sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Remedy {
    /// Kind of remedy.
    pub kind: RemedyKind,
    /// The pool, as `--pool` takes it; `None` for a limit.
    pub pool: Option<String>,
    /// The line to type.
    pub line: String,
    /// The most that is taken from the driver then; `None` if it stays as it is.
    pub reserved: Option<PeakRange>,
    /// How much less that is than with the settings that were recorded.
    pub saves: Option<u64>,
    /// Calls of the driver then.
    pub driver_calls: Option<u64>,
    /// Calls of the driver with the settings that were recorded.
    pub driver_calls_before: Option<u64>,
    /// `true` if the pool is one of gpuheap's own.
    pub is_own_heap: bool,
    /// `true` if the figures are those of a model of a closed driver.
    pub is_closed_driver: bool,
}

/// Kind of remedy, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RemedyKind {
    /// A setting of the framework that the program used.
    Setting,
    /// Another pool.
    Policy,
    /// A higher limit.
    Limit,
}

impl RemedyKind {
    /// Returns one word for it, as in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Policy => "policy",
            Self::Limit => "limit",
        }
    }
}

/// Remedies shown of each kind.
const SHOWN: usize = 2;

pub(super) fn find(
    bench: &Bench<'_>,
    recorded: &Recorded,
    results: &[PoolReport],
    checked: &[Pool],
    is_named: bool,
    gets_through: bool,
) -> Result<Vec<Remedy>, ReplayError> {
    let torch = checked.iter().find(|pool| pool.base() == "torch");
    let mut remedies = Vec::new();
    if let Some(Pool::Model(text)) = torch {
        let settings = crate::replay::torch_settings(bench, text)?.unwrap_or_default();
        let torch = OfTorch::new(bench, settings);
        remedies.extend(torch.settings(recorded, gets_through));
        if !gets_through {
            remedies.extend(torch.asynchronous()?);
        }
        if let Some(own) = own_heap(bench, results, torch.before_peak(), gets_through) {
            remedies.push(own);
        }
        if !gets_through {
            remedies.extend(torch.limit(recorded)?);
        }
    } else if bench.trace.format() != Format::PytorchSnapshot && !(is_named && gets_through) {
        let of_rmm = resources(bench);
        let before = of_rmm.first().and_then(|remedy| remedy.reserved).map(|range| range.high);
        remedies.extend(of_rmm);
        if let Some(own) = own_heap(bench, results, before, gets_through) {
            remedies.push(own);
        }
    }
    remedies.sort_by_key(|remedy| remedy.kind);
    Ok(remedies)
}

fn peak(result: &PoolReport) -> u64 {
    result.peak_reserved.high
}

/// The figures of one of gpuheap's own pools.
fn of_own(bench: &Bench<'_>, result: &PoolReport, before: Option<u64>) -> Remedy {
    Remedy {
        kind: RemedyKind::Policy,
        pool: Some(result.pool.to_string()),
        line: String::new(),
        reserved: Some(result.peak_reserved),
        saves: before.map(|before| before.saturating_sub(peak(result))),
        driver_calls: Some(result.driver_calls),
        driver_calls_before: None,
        is_own_heap: true,
        is_closed_driver: result.pool.is_closed_driver(bench.device.is_emulated),
    }
}

/// The best of gpuheap's own pools, if it takes less than what else there is.
fn own_heap(
    bench: &Bench<'_>,
    results: &[PoolReport],
    before: Option<u64>,
    gets_through: bool,
) -> Option<Remedy> {
    let is_own =
        |result: &PoolReport| matches!(result.pool, Pool::Own(kind) if kind != PoolKind::Driver);
    let best = best_pool(bench, results, is_own)?;
    let is_less = before.is_none_or(|before| peak(best) < before - before / 20);
    if !is_less && gets_through || !best.pool.is_caching() {
        return None;
    }
    let line = match bench.trace.format() {
        Format::PytorchSnapshot => {
            let example = "crates/gpuheap-capi/examples/torch_allocator.cpp";
            format!("pool {} of gpuheap: {example}", best.pool)
        }
        _ => format!("gpuheap's own heap, pool {}", best.pool),
    };
    Some(Remedy { line, ..of_own(bench, best, before) })
}

/// Resources of RMM that get through, least memory first.
fn resources(bench: &Bench<'_>) -> Vec<Remedy> {
    let found = search(&bench.program, Family::Rmm, &bench.budget(), |_, _| {});
    let mut found: Vec<Candidate> = found.into_iter().filter(|one| !one.fails).collect();
    // A resource that calls the driver for every large block is slow: it is advised if no other is.
    let is_slow = |one: &Candidate| one.model == "cuda" || one.model.starts_with("rmm:binning");
    if !found.iter().all(is_slow) {
        found.retain(|one| !is_slow(one));
    }
    found.truncate(SHOWN);
    let remedy = |one: Candidate| Remedy {
        kind: RemedyKind::Policy,
        is_closed_driver: Pool::Model(one.model.clone()).is_closed_driver(true),
        pool: Some(one.model),
        line: one.setting,
        reserved: Some(exactly(one.reserved_peak)),
        saves: None,
        driver_calls: Some(one.driver_calls),
        driver_calls_before: None,
        is_own_heap: false,
    };
    found.into_iter().map(remedy).collect()
}

/// Remedies for a program that uses PyTorch's allocator.
struct OfTorch<'b, 't> {
    bench: &'b Bench<'t>,
    settings: Settings,
    /// The run on a device of any size.
    before: Outcome,
}

impl<'b, 't> OfTorch<'b, 't> {
    fn new(bench: &'b Bench<'t>, settings: Settings) -> Self {
        let before = run_torch(bench, &unlimited(&settings), Memory::of(LARGEST)).outcome;
        Self { bench, settings, before }
    }

    fn before_peak(&self) -> Option<u64> {
        self.before.failure.is_none().then_some(self.before.figures.peak_reserved)
    }

    /// Settings that get through, none of which another beats in bytes and driver calls.
    fn settings(&self, recorded: &Recorded, gets_through: bool) -> Vec<Remedy> {
        let before = self.before_peak().unwrap_or(u64::MAX);
        let mut budget = self.bench.budget();
        // A limit of PyTorch's own that was in the way is all of the run's memory.
        let is_own_limit = recorded.limit.is_some_and(|limit| limit.is_own_limit);
        let of_run = (self.bench.device.is_recorded && is_own_limit).then_some(1.0);
        budget.memory_fraction = self.settings.memory_fraction().or(of_run);
        let found = search(&self.bench.program, Family::Torch, &budget, |_, _| {});
        let helps = |one: &Candidate| {
            let is_less = one.reserved_peak < before - before / 50;
            !one.fails && (is_less || !gets_through)
        };
        let remedy = |one: Candidate| {
            // Every text of the search can be read.
            let settings: Settings = one.model.strip_prefix("torch:")?.parse().ok()?;
            if settings.is_but_for_limit(&self.settings) {
                return None;
            }
            let range = self.bench.torch_peak(&settings);
            Some(Remedy {
                kind: RemedyKind::Setting,
                pool: Some(one.model),
                line: one.setting,
                reserved: Some(range),
                saves: self.before_peak().map(|before| before.saturating_sub(range.high)),
                driver_calls: Some(one.driver_calls),
                driver_calls_before: Some(self.before.figures.driver_calls),
                is_own_heap: false,
                is_closed_driver: false,
            })
        };
        found.into_iter().filter(helps).filter_map(remedy).take(SHOWN).collect()
    }

    /// The driver's own pool behind PyTorch.
    fn asynchronous(&self) -> Result<Option<Remedy>, ReplayError> {
        let ran = attempt(self.bench, "rmm:async", self.bench.memory())?;
        Ok(ran.ok().map(|peak| Remedy {
            kind: RemedyKind::Setting,
            pool: Some("rmm:async".to_owned()),
            line: "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync".to_owned(),
            reserved: Some(exactly(peak)),
            saves: self.before_peak().map(|before| before.saturating_sub(peak)),
            driver_calls: None,
            driver_calls_before: None,
            is_own_heap: false,
            is_closed_driver: true,
        }))
    }

    /// The least memory that PyTorch gets through with under its present settings.
    fn limit(&self, recorded: &Recorded) -> Result<Option<Remedy>, ReplayError> {
        let settings = unlimited(&self.settings);
        let attempt = |bytes| {
            let memory = Memory { total: LARGEST, usable: LARGEST, limit: Some(bytes) };
            let outcome = run_torch(self.bench, &settings, memory).outcome;
            Ok::<_, ReplayError>(match outcome.failure {
                None => Ok(outcome.figures.peak_reserved),
                Some(_) => Err(String::new()),
            })
        };
        let found = minimum::find(
            minimum::STEP,
            self.bench.peak_live(),
            self.before_peak(),
            &Silent,
            attempt,
        )?;
        let Minimum::Bytes(enough) = found else { return Ok(None) };
        let is_own_limit = self.settings.memory_fraction().is_some()
            || recorded.limit.is_some_and(|limit| limit.is_own_limit);
        let device = &self.bench.device;
        let line = match (is_own_limit, device.is_recorded) {
            (false, _) => "more memory".to_owned(),
            (true, false) if enough <= device.total => format!(
                "torch.cuda.set_per_process_memory_fraction({})",
                thousandths_up(enough, device.total)
            ),
            (true, _) => format!(
                "torch.cuda.set_per_process_memory_fraction({} * 2**30 / \
                 torch.cuda.mem_get_info()[1])",
                hundredths_of_gib_up(enough)
            ),
        };
        Ok(Some(Remedy {
            kind: RemedyKind::Limit,
            pool: None,
            line,
            reserved: Some(exactly(enough)),
            saves: None,
            driver_calls: None,
            driver_calls_before: None,
            is_own_heap: false,
            is_closed_driver: false,
        }))
    }
}

/// Bytes as GiB, rounded up to hundredths.
fn hundredths_of_gib_up(bytes: u64) -> f64 {
    const GIB: f64 = 1_073_741_824.0;
    (bytes as f64 / GIB * 100.0).ceil() / 100.0
}

/// `part` of `whole`, rounded up to thousandths.
fn thousandths_up(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 1000.0).ceil() / 1000.0
}
