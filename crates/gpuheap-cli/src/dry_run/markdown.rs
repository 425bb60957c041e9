//! Renders a verdict as Markdown, for a comment on a pull request.

use gpuheap_dry_run::{CardResult, DeviceResult, Outcome, Peak, Reason, Verdict};
use gpuheap_text::{Amount, line};

use super::text::{benchmark_words, kind_words, sentence, short, trial_figures, users};

/// Maximum number of rows in a table of modules or lines.
const ROWS: usize = 10;

/// Renders the verdict: the outcome, then tables of cards, kinds, modules, lines and remedies.
pub(super) fn render(verdict: &Verdict) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("### gpuheap dry-run: {}", code(&verdict.program)));
    line(&mut text, format_args!("\n{}", sentence(verdict)));
    cards(&mut text, verdict);
    if let Some(batch) = verdict.batch.as_ref().filter(|batch| !batch.others.is_empty()) {
        let others: Vec<&str> = batch.others.iter().map(|other| &*other.variable).collect();
        head(
            &mut text,
            &[&["card"], &others[..], &[&format!("largest {}", batch.variable)]].concat(),
        );
        for found in &batch.found {
            let mut cells = vec![found.card.clone()];
            cells.extend(others.iter().map(|&name| found.with[name].to_string()));
            cells.push(found.largest.map_or("none".to_owned(), |value| value.to_string()));
            row(&mut text, &cells);
        }
    }
    if let Some(peak) = &verdict.peak {
        owners(&mut text, peak);
    }
    if !verdict.trials.is_empty() {
        head(&mut text, &["remedy", "allocated", "in use", "fits", "smallest cards", "to type"]);
        for trial in &verdict.trials {
            let ([allocated, in_use], fits) = trial_figures(trial);
            let (title, cards) = (trial.title.clone(), trial.cards.join(", "));
            row(&mut text, &[title, allocated, in_use, fits.into(), cards, code(&trial.line)]);
        }
        if verdict.trials.iter().any(|trial| trial.is_estimate) {
            line(&mut text, format_args!("\n~: an estimate, without a run."));
        }
    }
    if let Some(benchmark) = &verdict.benchmark {
        let words = benchmark_words(benchmark);
        line(&mut text, format_args!("\ncuDNN's benchmark mode: {}", cell(&words)));
    }
    for note in &verdict.notes {
        line(&mut text, format_args!("\nNote: {}", cell(note)));
    }
    text
}

fn cards(text: &mut String, verdict: &Verdict) {
    head(text, &["card", "fits", "allocated", "reserved", "in use", "of"]);
    for card in &verdict.cards {
        if verdict.devices > 1 && !card.devices.is_empty() {
            devices(text, card);
            continue;
        }
        let devices = card.processes.iter().flat_map(|process| &process.devices);
        let most = |of: fn(&DeviceResult) -> Option<u64>| {
            devices.clone().filter_map(of).max().map_or(String::new(), amount)
        };
        row(
            text,
            &[
                card.card.clone(),
                fits(card.outcome).to_owned(),
                most(|device| device.allocated),
                most(|device| device.reserved),
                most(|device| device.in_use),
                amount(card.total),
            ],
        );
    }
}

/// Adds a row for each emulated device of a run on `card`: with `--devices`, there are several.
fn devices(text: &mut String, card: &CardResult) {
    for device in &card.devices {
        let processes = card.processes.iter().flat_map(|process| &process.devices);
        let of = processes.filter(|one| one.number == device.number);
        let sum = |figure: fn(&DeviceResult) -> Option<u64>| {
            let known: Option<Vec<u64>> = of.clone().map(figure).collect();
            known.map_or(String::new(), |bytes| amount(bytes.iter().sum()))
        };
        let name = format!("{}, device {}: {}", card.card, device.number, users(&device.users));
        let (allocated, reserved) = (sum(|one| one.allocated), sum(|one| one.reserved));
        let peak = device.peak.map_or(String::new(), amount);
        let limit = amount(card.total);
        row(text, &[name, fits(device.outcome).to_owned(), allocated, reserved, peak, limit]);
    }
}

fn fits(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Fits => "yes",
        Outcome::FitsAsFarAsKnown => "as far as is known",
        Outcome::Oversubscribed => "oversubscribed",
        Outcome::DoesNotFit => "**no**",
        Outcome::NoVerdict(Reason::OtherDevice) => "not known",
        Outcome::NoVerdict(_) => "no verdict",
    }
}

fn owners(text: &mut String, peak: &Peak) {
    if !peak.kinds.is_empty() {
        head(text, &["kind, at the peak", "memory"]);
        for kind in &peak.kinds {
            row(text, &[kind_words(&kind.kind).to_owned(), amount(kind.bytes)]);
        }
    }
    if !peak.modules.is_empty() {
        head(text, &["module", "memory"]);
        for module in peak.modules.iter().take(ROWS) {
            row(text, &[code(&module.module), amount(module.bytes)]);
        }
    }
    if !peak.holders.is_empty() {
        head(text, &["line", "module", "kind", "memory", "blocks"]);
        for held in peak.holders.iter().take(ROWS) {
            let kind = held.kind.as_deref().map_or("", kind_words).to_owned();
            let module = held.module.as_deref().map_or(String::new(), code);
            let line = code(short(&held.line));
            row(text, &[line, module, kind, amount(held.bytes), held.blocks.to_string()]);
        }
    }
}

fn amount(bytes: u64) -> String {
    Amount(bytes).to_string()
}

fn head(text: &mut String, titles: &[&str]) {
    text.push('\n');
    let titles: Vec<String> = titles.iter().map(|&title| title.to_owned()).collect();
    row(text, &titles);
    line(text, format_args!("|{}", "---|".repeat(titles.len())));
}

fn row(text: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
    line(text, format_args!("| {} |", cells.join(" | ")));
}

/// Escapes a text so that it stays within one cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'"))
}
