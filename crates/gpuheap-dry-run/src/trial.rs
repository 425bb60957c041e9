//! Chooses remedies for a lack of memory, and judges the runs with them. The Python hook switches a
//! remedy on in the program.

use std::collections::BTreeMap;

use crate::card::Device;
use crate::explain::{self, Recording};
use crate::outcome::{self, most_in_use};
use crate::program::Run;
use crate::verdict::{CardResult, Outcome, Peak, Trial};
use crate::{Options, Remedies};

/// By default, remedies are tried only if a run takes at most this long, in seconds.
const LONGEST: f64 = 60.0;
/// Name of the remedy that keeps cuDNN's benchmark mode off.
pub(crate) const BENCHMARK_OFF: &str = "benchmark_off";
/// Names of the remedies that the hook switches on, in the order of a report. If an entry has
/// several names, one run uses all of them.
const REMEDIES: [&str; 13] = [
    "expandable_segments",
    BENCHMARK_OFF,
    "autocast",
    "checkpoint",
    "autocast,checkpoint",
    "half_batch",
    "adam_8bit",
    "no_state",
    "offload_activations",
    "offload_parameters",
    "fsdp_2",
    "fsdp_4",
    "fsdp_8",
];
/// Numbers of cards in an FSDP group. If a group's run fails, the group's memory is estimated.
const RANKS: [u64; 3] = [2, 4, 8];
/// Name of the remedy FSDP in the Python hook's report. [`REMEDIES`] adds the number of cards.
const FSDP: &str = "fsdp";
/// Maximum number of cards that a report lists for a remedy.
const CARDS: usize = 2;

/// A remedy to run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    /// Names for the hook, separated by commas.
    pub(crate) names: String,
    /// Details that the Python hook reported for each of `names`, such as the optimiser's class.
    details: Vec<String>,
}

/// Returns the remedies to try after the program ran on all cards. `run` is the run that got
/// furthest.
pub(crate) fn choose(options: &Options, cards: &[CardResult], run: &Run) -> Vec<Planned> {
    let fails = |outcome| matches!(outcome, Outcome::DoesNotFit | Outcome::Oversubscribed);
    let is_wanted = match options.remedies {
        Remedies::Never => false,
        Remedies::Auto => run.seconds <= LONGEST && cards.iter().any(|card| fails(card.outcome)),
        Remedies::Always => !cards.iter().any(|card| matches!(card.outcome, Outcome::NoVerdict(_))),
    };
    if !is_wanted || !options.find_batch.is_empty() {
        return Vec::new();
    }
    let reported = run.processes.iter().filter_map(|process| process.torch.as_ref());
    let found: BTreeMap<&str, &str> = reported
        .flat_map(|torch| &torch.remedies)
        .map(|(name, detail)| (name.as_str(), detail.as_str()))
        .collect();
    let planned = |names: &&str| {
        let reported = |name: &str| if name.starts_with(FSDP) { FSDP } else { name }.to_owned();
        let details = names.split(',').map(reported);
        let details = details.map(|name| found.get(&*name).map(|&text| text.to_owned()));
        Some(Planned { names: (*names).to_owned(), details: details.collect::<Option<_>>()? })
    };
    REMEDIES.iter().filter_map(planned).collect()
}

/// Returns the result of each remedy that was run, judged for `device`.
pub(crate) fn judge(trials: &[(Planned, Run)], device: &Device) -> Vec<Trial> {
    trials.iter().map(|(planned, run)| judge_one(planned, run, device)).collect()
}

fn judge_one(planned: &Planned, run: &Run, device: &Device) -> Trial {
    let words =
        planned.names.split(',').zip(&planned.details).map(|(name, text)| words(name, text));
    let (titles, lines): (Vec<String>, Vec<String>) = words.unzip();
    let mut trial = Trial {
        remedy: planned.names.clone(),
        title: titles.join(" and "),
        line: lines.join("; "),
        allocated: None,
        reserved: None,
        in_use: None,
        fits: None,
        cards: Vec::new(),
        is_estimate: false,
        seconds: run.seconds,
        error: String::new(),
    };
    let result = outcome::from_run(run);
    if !result.outcome.is_fit() {
        trial.error = error_line(&run.errors).unwrap_or("it does not get through").to_owned();
        return trial;
    }
    let devices = || result.processes.iter().flat_map(|process| &process.devices);
    trial.allocated = devices().filter_map(|device| device.allocated).max();
    trial.reserved = devices().filter_map(|device| device.reserved).max();
    trial.in_use = most_in_use(run);
    let recording = explain::read_recording(run);
    let report = recording.as_ref().and_then(|recording| explain::replay_on(recording, device));
    trial.fits = match &report {
        Some(report) => Some(report.verdict.gets_through),
        None => trial.in_use.map(|bytes| bytes <= device.total_bytes - device.margin_bytes),
    };
    if let (Some(recording), Some(report)) = (&recording, &report) {
        let needs = explain::find_needs(report, recording, run).or_else(|| {
            let report = explain::replay_on(recording, &run.device)?;
            explain::find_needs(&report, recording, run)
        });
        trial.cards = needs.map(|needs| needs.cards).unwrap_or_default();
        trial.cards.truncate(CARDS);
    }
    trial
}

/// Returns the line of a program's errors that names a Python exception, or else the last line.
fn error_line(errors: &str) -> Option<&str> {
    let is_exception = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        (name.ends_with("Error") || name.ends_with("Exception"))
            && name.chars().all(|one| one.is_ascii_alphanumeric() || "._".contains(one))
    };
    errors.lines().rev().find(is_exception).or(errors.lines().last())
}

/// Returns the description of a remedy, and the text that the user types to apply it.
fn words(name: &str, detail: &str) -> (String, String) {
    let around = |context: &str| format!("with {context}:  # around the forward pass");
    let (title, line) = match name {
        "expandable_segments" => (
            "expandable segments".to_owned(),
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned(),
        ),
        BENCHMARK_OFF => (
            "cuDNN without benchmark mode".to_owned(),
            "torch.backends.cudnn.benchmark = False".to_owned(),
        ),
        "autocast" => (
            format!("{detail} by autocast"),
            around(&format!("torch.autocast(\"cuda\", torch.{detail})")),
        ),
        "checkpoint" => ("gradient checkpoints".to_owned(), detail.to_owned()),
        "half_batch" => {
            let half = detail.parse().unwrap_or(2_u64) / 2;
            let line = format!("batch_size={half}, and optimizer.step() after each second batch");
            (format!("batch of {half}, accumulated twice"), line)
        }
        "adam_8bit" => (
            format!("{detail} in 8 bits"),
            format!("bitsandbytes.optim.{detail}8bit(model.parameters(), ...)"),
        ),
        "no_state" => (
            "no optimiser state on the GPU".to_owned(),
            "torch.optim.SGD(model.parameters(), ...), or DeepSpeed's offload_optimizer".to_owned(),
        ),
        "offload_activations" => (
            "activations in host memory".to_owned(),
            around("torch.autograd.graph.save_on_cpu(pin_memory=True)"),
        ),
        "offload_parameters" => (
            "parameters and state in host memory".to_owned(),
            "torchrun, with fully_shard(model, offload_policy=CPUOffloadPolicy())".to_owned(),
        ),
        name => fsdp_words(name.rsplit('_').next().unwrap_or_default()),
    };
    (title, line)
}

/// Returns the description of FSDP over several cards, and the text that the user types to apply
/// it.
fn fsdp_words(ranks: &str) -> (String, String) {
    (
        format!("FSDP over {ranks} cards"),
        format!(
            "torchrun --nproc-per-node {ranks}, with torch.distributed.fsdp.fully_shard(model)"
        ),
    )
}

/// Estimates the memory with FSDP over several cards. An estimate is used if the run with FSDP over
/// as many cards failed or was not made. Assumes that each card holds two whole blocks of layers,
/// and its part of parameters, gradients and optimiser state. Returns no estimates if the program
/// does not train, or already uses several devices.
pub(crate) fn estimate_fsdp(
    run: &Run,
    recording: &Recording,
    peak: &Peak,
    device: &Device,
) -> Vec<Trial> {
    let of = |wanted: &str| {
        let kinds = peak.kinds.iter().filter(|kind| kind.kind == wanted);
        kinds.map(|kind| kind.bytes).sum::<u64>()
    };
    let parameters = of("parameters");
    let sharded = parameters + of("gradients") + of("optimiser_state");
    let users = run.processes.iter().filter(|process| process.torch.is_some());
    let (Some(in_use), true) = (most_in_use(run), users.count() == 1) else { return Vec::new() };
    if sharded == parameters || run.device_count > 1 {
        return Vec::new();
    }
    let whole = match recording.largest_block() {
        0 => parameters,
        block => (2 * block).min(parameters),
    };
    let estimate = |ranks: &u64| {
        let (title, line) = fsdp_words(&ranks.to_string());
        let least = in_use.saturating_sub(sharded - sharded / ranks) + whole;
        let mut smallest: Vec<_> =
            explain::cards_like(device.card).filter(|card| card.total_bytes >= least).collect();
        smallest.sort_by_key(|card| card.total_bytes);
        Trial {
            remedy: format!("{FSDP}_{ranks}"),
            title,
            line,
            allocated: None,
            reserved: None,
            in_use: Some(least),
            fits: Some(least <= device.total_bytes - device.margin_bytes),
            cards: smallest.iter().take(CARDS).map(|card| card.name.to_owned()).collect(),
            is_estimate: true,
            seconds: 0.0,
            error: String::new(),
        }
    };
    RANKS.iter().map(estimate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_the_exceptions_line() {
        let errors =
            "  File \"a.py\", line 3\n    x = f(y)\nRuntimeError: unsafe\nMany models\nuse it.";
        assert_eq!(error_line(errors), Some("RuntimeError: unsafe"));
        assert_eq!(error_line("a: Error b\nno module"), Some("no module"));
        assert_eq!(error_line(""), None);
    }

    #[test]
    fn remedies_have_lines_to_type() {
        for name in REMEDIES.iter().filter(|name| !name.contains(',')) {
            let (title, line) = words(name, "16");
            assert!(!title.is_empty() && !line.is_empty(), "{name}");
        }
        assert!(words("half_batch", "16").1.starts_with("batch_size=8,"));
    }
}
