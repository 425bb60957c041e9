//! Remedies that would let a program through, or through with less.

use gpuheap::PoolKind;
use gpuheap_trace::Format;

use super::{Recorded, best_pool, exactly};
use crate::models::torch::Settings;
use crate::replay::minimum::{self, LARGEST};
use crate::replay::{
    Bench, Memory, Minimum, Pool, PoolReport, ReplayError, Silent, attempt, run, run_torch,
    unlimited,
};
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
        remedies.extend(torch.settings(gets_through));
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
        let of_rmm = resources(bench)?;
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

/// RMM's resources that get through, least memory first, each with the smallest device.
fn resources(bench: &Bench<'_>) -> Result<Vec<Remedy>, ReplayError> {
    let set = |text: &str| format!("rmm.mr.set_current_device_resource({text})");
    let lines = [
        ("rmm:async", set("rmm.mr.CudaAsyncMemoryResource()")),
        (
            "rmm:pool:initial_pool_size:1MiB",
            "rmm.reinitialize(pool_allocator=True, initial_pool_size=2**20)".to_owned(),
        ),
        ("rmm:arena", set("rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource())")),
        ("rmm:binning", set("rmm.mr.BinningMemoryResource(rmm.mr.CudaMemoryResource(), 18, 22)")),
        ("cuda", set("rmm.mr.CudaMemoryResource()")),
    ];
    // A size to compare resources by need not be exact: 2 %.
    let step = (bench.peak_live() / 50).max(1).next_multiple_of(minimum::STEP);
    let mut found = Vec::new();
    for (name, line) in lines {
        let memory = bench.memory();
        if attempt(bench, name, memory)?.is_err() {
            continue;
        }
        let on = |bytes| attempt(bench, name, Memory::of(bytes));
        let found_on = minimum::find(step, bench.peak_live(), None, &Silent, on)?;
        let Minimum::Bytes(enough) = found_on else {
            continue;
        };
        // What it took where nothing stopped it is enough too, and exact.
        let figures = run(bench, name, memory)?.outcome.figures;
        let enough = enough.min(figures.peak_reserved);
        let pool = Pool::Model(name.to_owned());
        found.push(Remedy {
            kind: RemedyKind::Policy,
            pool: Some(name.to_owned()),
            line,
            reserved: Some(exactly(enough)),
            saves: None,
            driver_calls: Some(figures.driver_calls),
            driver_calls_before: None,
            is_own_heap: false,
            is_closed_driver: pool.is_closed_driver(true),
        });
    }
    // A resource that calls the driver for every block is slow: it comes last.
    let is_slow = |remedy: &Remedy| remedy.pool.as_deref() == Some("cuda");
    found.sort_by_key(|remedy| {
        (is_slow(remedy), remedy.reserved.map(|range| range.high), remedy.driver_calls)
    });
    found.truncate(SHOWN);
    Ok(found)
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
    fn settings(&self, gets_through: bool) -> Vec<Remedy> {
        let before = self.before_peak().unwrap_or(u64::MAX);
        let mut passed = Vec::new();
        for settings in self.candidates() {
            let ran = run_torch(self.bench, &settings, self.bench.memory());
            let figures = ran.outcome.figures;
            let is_less = figures.peak_reserved < before - before / 50;
            if ran.outcome.failure.is_none() && (is_less || !gets_through) {
                passed.push((settings, figures));
            }
        }
        passed.sort_by_key(|(_, figures)| (figures.peak_reserved, figures.driver_calls));
        let mut fewest_calls = u64::MAX;
        passed.retain(|(_, figures)| {
            let is_fewer = figures.driver_calls < fewest_calls;
            fewest_calls = fewest_calls.min(figures.driver_calls);
            is_fewer
        });
        passed.truncate(SHOWN);
        let remedy = |(settings, figures): (Settings, crate::Figures)| {
            let range = self.bench.torch_peak(&settings);
            Remedy {
                kind: RemedyKind::Setting,
                pool: Some(format!("torch:{settings}")),
                line: format!("PYTORCH_CUDA_ALLOC_CONF={}", settings.to_alloc_conf()),
                reserved: Some(range),
                saves: self.before_peak().map(|before| before.saturating_sub(range.high)),
                driver_calls: Some(figures.driver_calls),
                driver_calls_before: Some(self.before.figures.driver_calls),
                is_own_heap: false,
                is_closed_driver: false,
            }
        };
        passed.into_iter().map(remedy).collect()
    }

    /// Settings that differ from the present ones in one.
    fn candidates(&self) -> Vec<Settings> {
        let now = &self.settings;
        let mut found = Vec::new();
        let mut add = |settings: Settings| {
            if settings != *now && !found.contains(&settings) {
                found.push(settings);
            }
        };
        let change = |how: &dyn Fn(&mut Settings)| {
            let mut settings = now.clone();
            how(&mut settings);
            settings
        };
        add(change(&|settings| settings.set_expandable_segments(true)));
        for mib in [128, 512] {
            add(change(&|settings| settings.set_max_split_size(Some(mib << 20))));
        }
        add(change(&|settings| settings.set_max_split_size(None)));
        add(change(&|settings| {
            for power in 0..16 {
                // Zero is a number of divisions for every power.
                let _ = settings.set_divisions(1 << power, 0);
            }
        }));
        if now.memory_fraction().is_some() {
            // Both thresholds lie between 0 and 1.
            add(change(&|settings| {
                let _ = settings.set_garbage_collection_threshold(0.8);
            }));
        }
        found
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
