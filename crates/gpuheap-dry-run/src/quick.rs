//! Outcomes of cards by a replay of another card's trace.

use crate::card::Device;
use crate::explain::{self, Recorded};
use crate::outcome;
use crate::program::Run;
use crate::verdict::{CardResult, Outcome};

/// Returns the result of a card by a replay of `run`'s trace. Returns `None` if that proves
/// nothing: the program failed, its kernels are others on this card, it asked for free memory, or
/// it has managed memory.
pub(crate) fn of(run: &Run, recorded: Option<&Recorded>, device: &Device) -> Option<CardResult> {
    let recorded = recorded?;
    let is_open =
        run.processes.iter().filter_map(|process| process.driver.as_ref()).any(|driver| {
            let has_managed = driver.devices.iter().any(|device| device.peak_managed > 0);
            driver.asked_for_free_memory > 0 || has_managed
        });
    let of_run = outcome::of(run).outcome;
    if is_open || !of_run.is_fit() || !run.device.is_alike(device) {
        return None;
    }
    let outcome = match explain::replayed(recorded, device)?.verdict.gets_through {
        true => of_run,
        false => Outcome::DoesNotFit,
    };
    Some(CardResult { is_replayed: true, ..outcome::without_run(device, outcome) })
}
