//! `gpuheap dry-run`: runs a program on an emulated GPU, and prints the verdict.

mod markdown;
mod text;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpuheap_dry_run::{
    Counts, Error, FindBatch, Options, Outcome, Progress, Remedies, SetResult, dry_run,
};
use gpuheap_replay::cards::{self, Card, UnknownCard};

use crate::exit::{Failure, Verdict};
use crate::output;
use crate::values::{TypedSize, bytes, refuse_option, time};

/// Default of `--card`. It is the largest card that was measured.
const CARD: &str = "H200 141GB";
/// Maximum of `--devices`. The file in which emulated devices count their memory has room for 16.
const MOST_DEVICES: u32 = 16;

/// Version of the fields of the JSON.
const SCHEMA: u32 = 1;

/// Arguments of `gpuheap dry-run`.
#[derive(Args, Debug)]
pub(crate) struct DryRunArguments {
    /// Cards to run on, with commas between them [default: H200 141GB]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    card: Option<String>,

    /// Number of devices; all are equal
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_DEVICES)))]
    devices: u32,

    /// Memory of each device as its driver reports it [default: the card's own]
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    memory: Option<TypedSize>,

    /// End a Python program after this many optimiser steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,

    /// End the program after this time, e.g. 90s or 5min; an optimiser step under way gets 5 s more
    #[arg(long, value_name = "TIME", value_parser = time_limit, allow_hyphen_values = true)]
    time_limit: Option<Duration>,

    /// Find the largest value of an environment variable with which the program fits; {VAR} in ARGS
    /// is replaced too. VAR=128..8192:128 tries multiples of 128. If given several times, the
    /// search is for the first variable, and is repeated for values of the others
    #[arg(long, value_name = "VAR=8..64", value_parser = FindBatch::parse, conflicts_with = "quick")]
    #[arg(visible_alias = "find-length")]
    find_batch: Vec<FindBatch>,

    /// Leave this part of each card free [default: 3% with --find-batch, else 0%]
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_hyphen_values = true)]
    margin: Option<f64>,

    /// Run the program again with each remedy that can be switched on from outside
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "auto", default_missing_value = "always", hide_possible_values = true)]
    remedies: When,

    /// Run once for each compute capability, and replay the trace for the capability's other cards
    #[arg(long)]
    quick: bool,

    /// Count a program as fitting even if it has more managed memory than the device
    #[arg(long)]
    allow_oversubscription: bool,

    /// Set the result that a line of the program reads. VALUE is an expression of Python. In VALUE,
    /// shape is the shape of the tensor that is read, and bound is the largest count that the read
    /// can return
    #[arg(long, value_name = "FILE:LINE=VALUE", value_parser = SetResult::parse)]
    read: Vec<SetResult>,

    /// If sizes depend on counts that the program reads from the GPU (as with nonzero), run again
    /// with the smallest counts: first at all lines that read counts, then at each line alone
    #[arg(long)]
    read_range: bool,

    /// Write the verdict as JSON to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the verdict as tables of Markdown to a file, for a pull request
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Write the recorded trace to a file, for gpuheap replay
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Folder of the emulated libraries [default: this installation's]
    #[arg(long, value_name = "FOLDER", hide = true)]
    stand_ins: Option<PathBuf>,

    /// The program and its arguments, after --
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Values of `--remedies`.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum When {
    /// Run the remedies if the program does not fit and one run takes at most a minute.
    Auto,
    /// Run the remedies even if the program fits or a run takes long. Each card needs a verdict.
    Always,
    /// Do not run the remedies.
    Never,
}

/// A card, with a note if several cards match the given name.
struct ChosenCard {
    card: &'static Card,
    note: Option<String>,
}

/// Returns the card with the least memory among the cards that match `name`.
fn smallest(name: &str, error: &UnknownCard) -> ChosenCard {
    let candidates = error.candidates();
    let fitting = cards::all().iter().filter(|card| candidates.contains(&card.name));
    // At least one card matches the name, so the default is never used.
    let card = fitting.min_by_key(|card| card.total_bytes).unwrap_or(&cards::all()[0]);
    let name = name.trim();
    let note = format!("{name}: taken as {}, the smallest of {}", card.name, candidates.join(", "));
    ChosenCard { card, note: Some(note) }
}

impl DryRunArguments {
    /// Refuses values that contradict each other.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mut names: Vec<&str> = self.find_batch.iter().map(|range| &*range.variable).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let twice = twice[0];
            return Err(Failure::wrong_use(format!(
                "--find-batch: {twice} was given more than once; give each variable one range"
            )));
        }
        self.cards().map(drop)
    }

    /// Returns a card for each name. If several cards match a name, returns the card with the least
    /// memory.
    fn cards(&self) -> Result<Vec<ChosenCard>, Failure> {
        let mut found: Vec<ChosenCard> = Vec::new();
        for name in self.card.as_deref().unwrap_or(CARD).split(',') {
            let failed = |error: String| Failure::wrong_use(format!("--card: {error}"));
            refuse_option(name).map_err(failed)?;
            let asked = match cards::find(name) {
                Ok(card) => ChosenCard { card, note: None },
                Err(error) if error.is_ambiguous() => smallest(name, &error),
                Err(error) => {
                    return Err(failed(format!("{error}; gpuheap replay --card list shows all")));
                }
            };
            if found.iter().any(|other| other.card == asked.card) {
                return Err(failed(format!("{} was given more than once", asked.card.name)));
            }
            found.push(asked);
        }
        Ok(found)
    }

    fn options(&self) -> Result<Options, Failure> {
        let mut words = self.program.iter().cloned();
        let program = words.next().unwrap_or_default();
        Ok(Options {
            program,
            arguments: words.collect(),
            cards: self.cards()?.iter().map(|asked| asked.card).collect(),
            devices: self.devices,
            memory: self.memory.as_ref().map(|memory| memory.bytes),
            steps: self.steps,
            time_limit: self.time_limit,
            find_batch: self.find_batch.clone(),
            margin: self.margin.unwrap_or(if self.find_batch.is_empty() {
                0.0
            } else {
                gpuheap_dry_run::MARGIN
            }),
            remedies: match self.remedies {
                When::Auto => Remedies::Auto,
                When::Always => Remedies::Always,
                When::Never => Remedies::Never,
            },
            quick: self.quick,
            allow_oversubscription: self.allow_oversubscription,
            results: self.read.clone(),
            counts: Counts::Largest,
            read_range: self.read_range,
            trace: self.trace.clone(),
            stand_ins: self.stand_ins.clone(),
        })
    }
}

/// Runs the program, and prints the verdict to stderr.
///
/// # Errors
///
/// Returns a failure if the program cannot be started, or a file cannot be written.
pub(crate) fn run(arguments: &DryRunArguments) -> Result<Verdict, Failure> {
    let options = arguments.options()?;
    let files = [("--json", &arguments.json), ("--markdown", &arguments.markdown)];
    for (option, file) in files {
        // Writes an empty file first, so that a bad path is reported before the program runs.
        file.as_ref().map(|file| write(option, file, "")).transpose()?;
    }
    let mut verdict = dry_run(&options, &Notes).map_err(failed)?;
    verdict.notes.extend(arguments.cards()?.into_iter().filter_map(|asked| asked.note));
    if let Some(file) = &arguments.json {
        write("--json", file, &json(&verdict).map_err(Failure::environment_error)?)?;
    }
    if let Some(file) = &arguments.markdown {
        write("--markdown", file, &markdown::render(&verdict))?;
    }
    output::report(&text::render(&verdict));
    match verdict.outcome() {
        Outcome::Fits => Ok(Verdict::Fine),
        Outcome::FitsAsFarAsKnown => Ok(Verdict::AsFarAsKnown),
        Outcome::Oversubscribed | Outcome::DoesNotFit => Ok(Verdict::Findings),
        Outcome::NoVerdict(_) => Err(Failure::environment_error("no verdict: see above")),
    }
}

/// Returns the verdict as JSON with the schema `docs/dry-run.schema.json`.
fn json(verdict: &gpuheap_dry_run::Verdict) -> serde_json::Result<String> {
    let mut value = serde_json::to_value(verdict)?;
    value["schema"] = SCHEMA.into();
    value["outcome"] = verdict.outcome().name().into();
    Ok(format!("{value:#}\n"))
}

fn write(option: &str, file: &std::path::Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        let file = file.display();
        Failure::wrong_use(format!(
            "{option}: {file} cannot be written: {error}; name a file in a folder that you can write to"
        ))
    })
}

fn failed(error: Error) -> Failure {
    match error {
        Error::WrongUse(line) => Failure::wrong_use(line),
        error => Failure::environment_error(error),
    }
}

/// Writes notes to stderr while the program runs.
struct Notes;

impl Progress for Notes {
    fn note(&self, line: &str) {
        output::note(line);
    }
}

/// Parses a share of a card in percent, and returns it as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim().trim_end_matches('%').trim_end().parse().ok();
    match number {
        Some(number) if (0.0..=50.0).contains(&number) => Ok(number / 100.0),
        _ => Err(format!("'{text}' is not a share of a card from 0 to 50 percent; write 3%")),
    }
}

/// Parses a time limit of at most eleven days.
fn time_limit(text: &str) -> Result<Duration, String> {
    time(text, "ms", Duration::from_secs(1_000_000), "90s, 5min")
}
