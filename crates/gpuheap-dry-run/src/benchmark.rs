//! Finds smaller cards for a program whose peak was raised by cuDNN's benchmark mode.

use std::cmp::Reverse;

use gpuheap_replay::cards::{self, Card, Class};

use crate::card::Device;
use crate::explain;
use crate::outcome;
use crate::program::Run;
use crate::verdict::{Benchmark, BenchmarkRun, Outcome};
use crate::{Error, Options, Remedies};

/// Least compute capability of the cards that are tried. PyTorch for CUDA 13 requires it.
const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// Returns the bytes of the largest workspace that benchmark mode timed; `None` without that mode.
pub(crate) fn timed_workspace(run: &Run) -> Option<u64> {
    let libraries = run.processes.iter().filter_map(|process| process.libraries.as_ref());
    libraries.map(|libraries| libraries.timed_workspace).max().filter(|&bytes| bytes > 0)
}

/// Searches by bisection for the smallest card on which the program fits, with a run on each card
/// tried. Does not replay the trace of `furthest`, the run that got furthest through the program.
/// If memory is short, PyTorch chooses a cuDNN plan that takes less memory than the plan in that
/// trace.
///
/// Returns `None` without benchmark mode, or if remedies are off.
///
/// # Errors
///
/// Returns the error of `run`.
pub(crate) fn search(
    options: &Options,
    furthest: &Run,
    mut run: impl FnMut(&Device) -> Result<Run, Error>,
) -> Result<Option<Benchmark>, Error> {
    let workspace = timed_workspace(furthest).filter(|_| options.remedies != Remedies::Never);
    let (Some(workspace), Some(in_use)) = (workspace, outcome::most_in_use(furthest)) else {
        return Ok(None);
    };
    let cards: Vec<_> = smaller_cards(furthest.device.card, in_use)
        .into_iter()
        .map(|card| Device::new(card, None).with_margin(options.margin))
        .collect();
    let mut found =
        Benchmark { workspace, without: None, with: most_allocated(furthest), tried: Vec::new() };
    // The program fits on no card below index `least`, and on each card from index `most` on.
    let (mut least, mut most) = (0, cards.len());
    while let Some(device) = cards.get(least..most).and_then(|left| left.get(left.len() / 2)) {
        let middle = least + (most - least) / 2;
        let run = run(device)?;
        let result = outcome::from_run(&run);
        // Some programs catch the failure, and go on with a smaller batch.
        let is_caught = result.processes.iter().any(|process| process.failed > 0);
        let outcome = match is_caught && result.outcome.is_fit() {
            true => Outcome::DoesNotFit,
            false => result.outcome,
        };
        found.tried.push(BenchmarkRun {
            card: result.card,
            outcome,
            allocated: most_allocated(&run),
            in_use: outcome::most_in_use(&run),
        });
        match outcome {
            Outcome::NoVerdict(_) => break,
            outcome if outcome.is_fit() => most = middle,
            _ => least = middle + 1,
        }
    }
    Ok(Some(found))
}

/// Returns one card for each memory size below `bytes`, smallest first. Returns only cards with the
/// compute capability of `card`, if any of these is small enough.
fn smaller_cards(card: &Card, bytes: u64) -> Vec<&'static Card> {
    let is_smaller = |card: &&'static Card| card.total_bytes < bytes;
    let mut cards: Vec<_> = explain::cards_like(card).filter(is_smaller).collect();
    if cards.is_empty() {
        let is_served = |card: &&'static Card| {
            card.class != Class::MigSlice && card.capability >= LEAST_CAPABILITY
        };
        cards.extend(cards::all().iter().filter(is_smaller).filter(is_served));
    }
    cards.sort_by_key(|card| (card.vendor_gb, Reverse(card.capability)));
    cards.dedup_by_key(|card| card.vendor_gb);
    cards
}

/// Returns the highest peak of PyTorch's allocated bytes over all devices.
pub(crate) fn most_allocated(run: &Run) -> Option<u64> {
    let torch = run.processes.iter().filter_map(|process| process.torch.as_ref());
    torch.flat_map(|torch| &torch.devices).map(|device| device.allocated).max()
}
