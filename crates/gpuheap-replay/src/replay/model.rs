//! Runs a trace through models of other allocators.

use super::{Bench, Cause, Memory, Pool, PoolReport, ReplayError, Stop};
use crate::models::build;
use crate::models::torch::{Settings, Torch};
use crate::{Failure, Outcome, PeakRange};

/// Runs a model. Reports its peak of reserved bytes, or its failure.
pub(super) fn measure(
    bench: &Bench<'_>,
    text: &str,
    memory: Memory,
) -> Result<PoolReport, ReplayError> {
    let report = PoolReport::new(Pool::Model(text.to_owned()));
    let ran = match run(bench, text, memory) {
        Ok(ran) => ran,
        // The settings were already checked without regard to the device. So the error means that
        // this device has no room for the pool's initial size.
        Err(ReplayError::Setting(_)) => {
            let cause = Cause::Other("no_room_for_the_pool_itself");
            let stop = Some(Stop { pass: 1, cause, ..Stop::default() });
            return Ok(PoolReport { stop, ..report });
        }
        Err(error) => return Err(error),
    };
    let may_fail = ran.outcome.failure.is_none() && ran.peak_if_sure(bench, memory).is_none();
    let Ran { outcome, settings } = ran;
    let peak_reserved = match &settings {
        Some(settings) if outcome.failure.is_none() => bench.torch_peak(settings),
        _ => PeakRange::exact(outcome.figures.peak_reserved),
    };
    Ok(PoolReport {
        settings: settings.filter(|_| text == "torch").map(|settings| settings.to_string()),
        peak_live: match outcome.failure {
            None => bench.peak_live,
            Some(failure) => failure.refusal.figures.requested,
        },
        peak_reserved,
        driver_calls: outcome.figures.driver_calls,
        stop: outcome.failure.map(|failure| describe_failure(bench, failure, memory)),
        may_fail,
        ..report
    })
}

/// Runs a model. Returns its peak of reserved bytes, or why it failed.
pub(crate) fn attempt(
    bench: &Bench<'_>,
    text: &str,
    memory: Memory,
) -> Result<Result<u64, String>, ReplayError> {
    match run(bench, text, memory) {
        Ok(ran) => Ok(ran.peak_if_sure(bench, memory).ok_or_else(|| memory.shortage())),
        // An initial pool of 1 GiB, for example, is an invalid setting on a device of 512 MiB.
        Err(ReplayError::Setting(error)) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Returns the peak of bytes that PyTorch's allocator reserves. Returns `None` if memory runs out
/// at some speed of host and device. The speed decides when freed blocks can be used again.
pub(crate) fn attempt_torch(bench: &Bench<'_>, settings: &Settings, memory: Memory) -> Option<u64> {
    run_torch(bench, settings, memory).peak_if_sure(bench, memory)
}

/// A finished run.
pub(crate) struct Ran {
    pub(crate) outcome: Outcome,
    /// Settings of PyTorch's allocator; `None` for other models.
    settings: Option<Settings>,
}

impl Ran {
    /// Returns the peak of reserved bytes. Returns `None` if memory ran out, or may run out if host
    /// or device are faster or slower.
    fn peak_if_sure(&self, bench: &Bench<'_>, memory: Memory) -> Option<u64> {
        let is_sure = |settings: &Settings| {
            bench.program.is_sure_to_fit(settings, memory.total, memory.capacity())
        };
        let is_met = self.outcome.failure.is_none() && self.settings.as_ref().is_none_or(is_sure);
        is_met.then_some(self.outcome.figures.peak_reserved)
    }
}

pub(crate) fn run(bench: &Bench<'_>, text: &str, memory: Memory) -> Result<Ran, ReplayError> {
    if let Some(settings) = torch_settings(bench, text)? {
        return Ok(run_torch(bench, &settings, memory));
    }
    let mut model = build(text, memory.capacity())?;
    let outcome = bench.program.run(&mut *model);
    Ok(Ran { outcome, settings: None })
}

/// Runs PyTorch's allocator. Under the recorded settings, begins with the recorded segments.
pub(crate) fn run_torch(bench: &Bench<'_>, settings: &Settings, memory: Memory) -> Ran {
    let program = &bench.program;
    let mut model = Torch::new(settings.clone(), memory.total);
    model.set_capacity(memory.capacity());
    let recorded = program.recorded_settings();
    let is_recorded = recorded.is_some_and(|recorded| recorded.is_but_for_limit(settings));
    let outcome = match is_recorded {
        true => program.run_as_recorded(&mut model),
        false => program.run(&mut model),
    };
    Ran { outcome, settings: Some(settings.clone()) }
}

/// Returns PyTorch's settings in `text`; `None` if `text` names the model of another allocator.
pub(crate) fn torch_settings(
    bench: &Bench<'_>,
    text: &str,
) -> Result<Option<Settings>, ReplayError> {
    if text == "torch" {
        return Ok(Some(bench.program.recorded_settings().unwrap_or_default()));
    }
    Ok(match text.strip_prefix("torch:") {
        Some(settings) => Some(settings.parse()?),
        None => None,
    })
}

fn describe_failure(bench: &Bench<'_>, failure: Failure, memory: Memory) -> Stop {
    let refusal = failure.refusal;
    let figures = refusal.figures;
    let requested = refusal.request.bytes;
    let rounding = figures.allocated.saturating_sub(figures.requested);
    let cached = figures.reserved.saturating_sub(figures.allocated);
    let is_limit = refusal.allowed < memory.usable;
    let pieces = cached.saturating_sub(refusal.pending);
    let unused = [rounding, refusal.pending, 0, pieces];
    let cause = Cause::find(requested, figures.requested, refusal.allowed, is_limit, unused);
    let left = refusal.allowed.saturating_sub(figures.reserved);
    Stop {
        event: failure.event.into(),
        time_ns: bench.time_of(failure.event),
        pass: 1,
        requested,
        reserved: figures.reserved,
        live: figures.requested,
        rounding,
        cached,
        pending: refusal.pending,
        other_streams: None,
        largest_cached: refusal.largest_free,
        short_by: Some(refusal.needed.saturating_sub(left)),
        limit: is_limit.then_some(refusal.allowed),
        cause,
    }
}
