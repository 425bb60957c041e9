//! Finds remedies: settings with which a program would fit or would take less memory.

use gpuheap::PoolKind;

use super::{Recorded, Remedy, RemedyKind, rmm};
use crate::models::torch::Settings;
use crate::replay::minimum::{self, LARGEST};
use crate::replay::{
    Bench, Memory, Minimum, Pool, PoolReport, ReplayError, Silent, attempt, attempt_torch,
    run_torch,
};
use crate::tune::{Candidate, Family, search};
use crate::{Outcome, PeakRange};

/// Number of remedies of each kind.
const SHOWN: usize = 2;

/// Remedies that were found, and the pools that a program can select by a setting, cheapest first.
pub(super) struct Found {
    pub(super) remedies: Vec<Remedy>,
    pub(super) pools: Vec<String>,
}

pub(super) fn find(
    bench: &Bench<'_>,
    recorded: &Recorded,
    results: &[PoolReport],
    checked: &[Pool],
    is_named: bool,
    gets_through: bool,
) -> Result<Found, ReplayError> {
    let torch = checked.iter().find(|pool| pool.base() == "torch");
    let mut remedies = Vec::new();
    let mut pools = None;
    if let Some(Pool::Model(text)) = torch {
        let settings = crate::replay::torch_settings(bench, text)?.unwrap_or_default();
        let torch = TorchRemedies::new(bench, settings);
        remedies.extend(torch.settings(recorded, gets_through));
        if !gets_through {
            remedies.extend(torch.asynchronous()?);
        }
        let before = torch.before_peak().or(torch.unbounded_peak());
        if let Some(own) = own_heap(bench, recorded, results, before, gets_through) {
            let saves = torch.saves(peak_of(&own));
            remedies.push(Remedy { saves, ..own });
        }
        if !gets_through {
            remedies.extend(torch.limit(recorded)?);
        }
    } else if recorded.is_rmm && !(is_named && gets_through) {
        let of_rmm = rmm::resources(bench);
        let before = of_rmm.iter().map(|resource| resource.candidate.reserved_peak).min();
        remedies.extend(rmm::remedies(&of_rmm));
        if remedies.is_empty() && !is_named {
            remedies.extend(rmm::limit(bench, &of_rmm));
        }
        remedies.extend(own_heap(bench, recorded, results, before, gets_through));
        pools = Some(of_rmm.iter().map(|resource| resource.candidate.model.clone()).collect());
    }
    if !recorded.is_rmm && torch.is_none() && !is_named {
        let used = results.iter().find(|result| Some(result.pool.base()) == recorded.allocator);
        if let Some(used) = used {
            let before = used.stop.is_none().then(|| peak(used));
            remedies.extend(own_heap(bench, recorded, results, before, gets_through));
        }
    }
    // gpuheap's own heap is last, because the program has to call it or preload a library.
    remedies.sort_by_key(|remedy| (remedy.is_own_heap, remedy.kind));
    let pools = pools.unwrap_or_else(|| {
        let settings = remedies.iter().filter(|remedy| !remedy.is_own_heap);
        settings.filter_map(|remedy| remedy.pool.clone()).collect()
    });
    Ok(Found { remedies, pools })
}

/// Returns the pool that takes the least memory without running out of it. Of pools within 5 % of
/// that memory, returns the pool with the fewest driver calls. Pools that call the driver for each
/// block, and models of NVIDIA's closed-source driver, come last.
pub(super) fn best_pool<'r>(
    bench: &Bench<'_>,
    results: &'r [PoolReport],
    is_asked: impl Fn(&PoolReport) -> bool,
) -> Option<&'r PoolReport> {
    let is_emulated = bench.device.is_emulated;
    let rank = |result: &PoolReport| {
        (result.pool.is_closed_driver(is_emulated), !result.pool.is_caching())
    };
    let passed = || results.iter().filter(|result| result.gets_through() && is_asked(result));
    // If the device does not support a pool, the replay used another pool in its place. By default,
    // that other pool also has a result under its own name, so the replacement is left out.
    let passed = || passed().filter(|result| result.fallback.is_none() || results.len() == 1);
    let first = passed().map(rank).min()?;
    let group = || passed().filter(|result| rank(result) == first);
    let least = group().map(|result| result.peak_reserved.high).min()?;
    let margin = least.saturating_add(least / 20);
    group()
        .filter(|result| result.peak_reserved.high <= margin)
        .min_by_key(|result| (result.driver_calls, result.peak_reserved.high))
}

fn peak_of(remedy: &Remedy) -> u64 {
    remedy.reserved.map_or(0, |range| range.high)
}

fn peak(result: &PoolReport) -> u64 {
    result.peak_reserved.high
}

/// Returns the best of gpuheap's own pools, if it takes less memory than the program takes now.
fn own_heap(
    bench: &Bench<'_>,
    recorded: &Recorded,
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
    let line = match recorded.allocator {
        Some("torch") => "with gpuheap's allocator (how: crates/gpuheap-capi/README.md)".to_owned(),
        Some("cuda" | "cuda:async") => {
            "gpuheap's drop-in, without a rebuild (how: crates/gpuheap-malloc/README.md)".to_owned()
        }
        _ => format!("gpuheap's own heap, pool {}", best.pool),
    };
    Some(Remedy {
        reserved: Some(best.peak_reserved),
        driver_calls: Some(best.driver_calls),
        is_own_heap: true,
        is_closed_driver: best.pool.is_closed_driver(bench.device.is_emulated),
        ..Remedy::new(RemedyKind::Policy, Some(best.pool.to_string()), line)
    })
}

/// Bound that a PyTorch program met.
enum Limiting {
    /// The device's memory.
    Device,
    /// The limit in the options of the replay.
    Asked,
    /// PyTorch's memory fraction, on a device with this memory.
    FractionOf(Memory),
    /// The memory fraction of the recorded run. The value is the largest number of bytes that the
    /// run could have used.
    FractionOfRun(u64),
}

/// Remedies for a PyTorch program.
struct TorchRemedies<'b, 't> {
    bench: &'b Bench<'t>,
    settings: Settings,
    before: Outcome,
    /// Outcome of the run without a limit, on a device that is larger than any real one.
    unbounded: Outcome,
}

impl<'b, 't> TorchRemedies<'b, 't> {
    fn new(bench: &'b Bench<'t>, settings: Settings) -> Self {
        let before = run_torch(bench, &settings, bench.memory()).outcome;
        let unbounded = run_torch(bench, &settings.without_limit(), Memory::whole(LARGEST)).outcome;
        Self { bench, settings, before, unbounded }
    }

    /// Returns the peak of reserved bytes on the device. `None` if the program fails on the device.
    fn before_peak(&self) -> Option<u64> {
        self.before.failure.is_none().then(|| self.bench.torch_peak(&self.settings).high)
    }

    fn unbounded_peak(&self) -> Option<u64> {
        self.unbounded.failure.is_none().then_some(self.unbounded.figures.peak_reserved)
    }

    /// Returns the bytes by which `reserved` is below the present peak on the device. `None` if
    /// `reserved` is not less.
    fn saves(&self, reserved: u64) -> Option<u64> {
        self.before_peak()?.checked_sub(reserved)
    }

    /// Returns Pareto-optimal settings with which the program does not run out of memory.
    fn settings(&self, recorded: &Recorded, gets_through: bool) -> Vec<Remedy> {
        let before = self.before_peak().or(self.unbounded_peak()).unwrap_or(u64::MAX);
        let mut budget = self.bench.budget();
        // If PyTorch's own limit made the run fail, the replay's device has that limit as its total
        // memory, so the fraction is 1.
        let is_own_limit = recorded.limit.is_some_and(|limit| limit.is_own_limit);
        let of_run = (self.bench.device.is_recorded && is_own_limit).then_some(1.0);
        budget.memory_fraction = self.settings.memory_fraction().or(of_run);
        let found = search(&self.bench.program, Family::Torch, &budget, |_, _| {});
        let is_less = |peak: u64| peak < before - before / 50;
        let helps = |one: &Candidate| !one.fails && (is_less(one.reserved_peak) || !gets_through);
        let remedy = |one: Candidate| {
            // The search made this text, so the parse succeeds.
            let settings: Settings = one.model.strip_prefix("torch:")?.parse().ok()?;
            if settings.is_but_for_limit(&self.settings)
                || attempt_torch(self.bench, &settings, self.bench.memory()).is_none()
            {
                return None;
            }
            let range = self.bench.torch_peak(&settings);
            if gets_through && !is_less(range.high) {
                return None;
            }
            Some(Remedy {
                python: one.python,
                reserved: Some(range),
                saves: self.saves(range.high),
                driver_calls: Some(one.driver_calls),
                driver_calls_before: self.before_peak().map(|_| self.before.figures.driver_calls),
                ..Remedy::new(RemedyKind::Setting, Some(one.model), one.setting)
            })
        };
        found.into_iter().filter(helps).filter_map(remedy).take(SHOWN).collect()
    }

    /// Returns PyTorch's setting for the driver's own pool as a remedy, if the program does not run
    /// out of memory with that pool.
    fn asynchronous(&self) -> Result<Option<Remedy>, ReplayError> {
        let ran = attempt(self.bench, "rmm:async", self.bench.memory())?;
        let line = "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync";
        Ok(ran.ok().map(|peak| Remedy {
            reserved: Some(PeakRange::exact(peak)),
            saves: self.saves(peak),
            is_closed_driver: true,
            ..Remedy::new(RemedyKind::Setting, Some("rmm:async".to_owned()), line)
        }))
    }

    /// Returns the bound that the program met.
    fn limiting(&self, recorded: &Recorded) -> Limiting {
        let device = &self.bench.device;
        let memory = self.bench.memory();
        if memory.limit.is_some_and(|limit| limit < device.usable) {
            return Limiting::Asked;
        }
        let has_fraction = self.settings.memory_fraction().is_some();
        if !device.is_recorded {
            return if has_fraction { Limiting::FractionOf(memory) } else { Limiting::Device };
        }
        let first = recorded.failed.first().and_then(|request| request.device_free);
        match recorded.limit.zip(first) {
            // With a larger memory fraction, the run could have taken the device's free bytes too.
            Some((limit, free)) if limit.is_own_limit || has_fraction => {
                Limiting::FractionOfRun(limit.least.saturating_add(free))
            }
            _ => Limiting::Device,
        }
    }

    /// Returns a remedy that advises more memory: the least that is enough under these settings.
    fn limit(&self, recorded: &Recorded) -> Result<Option<Remedy>, ReplayError> {
        let settings = self.settings.without_limit();
        let attempt = |bytes| {
            let memory = Memory { total: LARGEST, usable: LARGEST, limit: Some(bytes) };
            let peak = attempt_torch(self.bench, &settings, memory);
            Ok::<_, ReplayError>(peak.ok_or_else(String::new))
        };
        let (least, known) = (self.bench.peak_live, self.unbounded_peak());
        let found = minimum::find(minimum::STEP, least, known, &Silent, attempt)?;
        let Minimum::Bytes(enough) = found else { return Ok(None) };
        let line = match self.limiting(recorded) {
            Limiting::Device => "more memory".to_owned(),
            Limiting::Asked => "a higher limit".to_owned(),
            Limiting::FractionOf(room) if enough <= room.usable => {
                let fraction = thousandths_up(enough, room.total);
                format!("torch.cuda.set_per_process_memory_fraction({fraction})")
            }
            Limiting::FractionOfRun(room) if enough <= room => format!(
                "torch.cuda.set_per_process_memory_fraction({} * 2**30 / \
                 torch.cuda.mem_get_info()[1])",
                hundredths_of_gib_up(enough)
            ),
            Limiting::FractionOf(_) | Limiting::FractionOfRun(_) => "more memory".to_owned(),
        };
        let reserved = Some(PeakRange::exact(enough));
        Ok(Some(Remedy { reserved, ..Remedy::new(RemedyKind::Limit, None, line) }))
    }
}

/// Returns bytes as GiB, rounded up to hundredths.
fn hundredths_of_gib_up(bytes: u64) -> f64 {
    const GIB: f64 = 1_073_741_824.0;
    (bytes as f64 / GIB * 100.0).ceil() / 100.0
}

/// Returns `part` of `whole`, rounded up to thousandths.
fn thousandths_up(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 1000.0).ceil() / 1000.0
}
