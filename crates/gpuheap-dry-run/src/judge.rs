//! Makes the verdict from the results of all runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use gpuheap_replay::cards;
use gpuheap_text::{Amount, shell_word};

use crate::card::{Device, MARGIN};
use crate::error::not_written;
use crate::program::Run;
use crate::reports::Process;
use crate::results::SetResult;
use crate::stand_ins::StandIns;
use crate::trial::{self, Planned};
use crate::verdict::{
    Batch, Benchmark, CardResult, Ended, Outcome, Read, Reason, ResultRange, SizeRead, Unknown,
    Verdict,
};
use crate::{Error, Options, benchmark, devices, explain, outcome};

/// Results of all runs.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) cards: Vec<CardResult>,
    pub(crate) runs: Vec<Run>,
    pub(crate) batch: Option<Batch>,
    /// Run of the program on a device with more memory than any card; `None` if a card suffices.
    pub(crate) with_room: Option<Run>,
    /// Runs with a remedy.
    pub(crate) trials: Vec<(Planned, Run)>,
    /// Memory with cuDNN's benchmark mode; `None` if the program does not use benchmark mode.
    pub(crate) benchmark: Option<Benchmark>,
    /// Peaks of runs in which operators such as `nonzero` find as many and as few elements as
    /// possible; `None` if not requested.
    pub(crate) range: Option<ResultRange>,
}

/// Maximum number of program lines that a report lists because they copy results to the host.
const LINES: usize = 3;

/// Computes the verdict from the results of all runs. Also copies the recorded trace to the file
/// that the options name.
pub(crate) fn judge(
    options: &Options,
    stand_ins: &StandIns,
    results: &Results,
    is_interrupted: bool,
) -> Result<Verdict, Error> {
    let mut verdict = Verdict {
        program: command_line(options),
        devices: options.devices,
        cards: results.cards.clone(),
        batch: results.batch.clone(),
        peak: None,
        needs: None,
        with_room: None,
        is_lower_bound: false,
        range: results.range.clone(),
        remedies: Vec::new(),
        trials: Vec::new(),
        benchmark: results.benchmark.clone(),
        unknown: Unknown::default(),
        notes: Vec::new(),
        next: None,
        is_interrupted,
    };
    if let Some(benchmark) = &mut verdict.benchmark {
        let mut trials = results.trials.iter();
        let without = trials.find(|(planned, _)| planned.names == trial::BENCHMARK_OFF);
        benchmark.without = without.and_then(|(_, run)| benchmark::most_allocated(run));
    }
    verdict.with_room = results.with_room.as_ref().and_then(outcome::most_in_use);
    let Some(run) = most_complete_run(results) else { return Ok(verdict) };
    judge_devices(&mut verdict.cards, results, run);
    let outcome = outcome::from_run(run).outcome;
    verdict.unknown = count_unknown(run);
    let is_open = verdict.unknown.sizes.iter().any(|read| !read.is_bound);
    verdict.is_lower_bound = !outcome.is_fit() || is_open;
    verdict.notes =
        collect_notes(options, stand_ins, run, &results.cards, results.benchmark.is_some());
    let recording = explain::read_recording(run);
    if let Some(recording) = &recording {
        verdict.peak = explain::find_peak(run, recording);
    }
    let absurd = recording.as_ref().and_then(|recording| {
        let torch = run.processes.iter().filter_map(|process| process.torch.as_ref());
        // Passes only lines at which a size depended on a value that the dry run chose. Only such a
        // value can make a large request wrong.
        let sizes = torch.flat_map(|torch| &torch.sizes).filter(|read| read.value.is_some());
        explain::absurd_request(recording, &sizes.map(|read| &*read.line).collect::<Vec<_>>())
    });
    if let Some(absurd) = &absurd {
        for card in verdict.cards.iter_mut().filter(|card| card.outcome.is_fit()) {
            card.outcome = Outcome::NoVerdict(Reason::AbsurdRequest);
        }
        verdict.notes.push(format!(
            "{} was requested at {}, and all other blocks together take {} at most. A result that \
             the function reads may have decided the size: set it with --read",
            Amount(absurd.bytes),
            absurd.line,
            Amount(absurd.others)
        ));
    }
    // A replay takes time. Skips it if the trace does not show how much memory the program needs.
    let is_of_use = match outcome {
        _ if absurd.is_some() => false,
        Outcome::NoVerdict(reason) => reason == Reason::Failed,
        _ => !is_interrupted,
    };
    if let Some(recording) = recording.as_ref().filter(|_| is_of_use) {
        // Cards of another compute capability would run other kernels, so the trace does not apply
        // to them.
        let judged =
            first_failing_run(results).filter(|judged| judged.device.is_alike(&run.device));
        let device = Device::new(judged.unwrap_or(run).device.card, options.memory)
            .with_margin(options.margin);
        verdict.trials = trial::judge(&results.trials, &device);
        if let (Some(peak), false) = (&verdict.peak, verdict.trials.is_empty()) {
            for estimate in trial::estimate_fsdp(run, recording, peak, &device) {
                let mut trials = verdict.trials.iter_mut();
                match trials.find(|trial| trial.remedy == estimate.remedy) {
                    Some(trial) if trial.error.is_empty() => {}
                    Some(trial) => *trial = estimate,
                    None => verdict.trials.push(estimate),
                }
            }
        }
        if let Some(report) = explain::replay_on(recording, &device) {
            verdict.remedies = explain::find_remedies(&report);
            verdict.needs = explain::find_needs(&report, recording, run).or_else(|| {
                // A replay on `device` fails if memory runs out, and then does not show the needed
                // memory. So replays on the device of the most complete run.
                let report = explain::replay_on(recording, &run.device)?;
                explain::find_needs(&report, recording, run)
            });
        }
        if let Some(needs) = &mut verdict.needs {
            if is_open || matches!(outcome, Outcome::NoVerdict(_)) {
                // Lists no cards, because the program may need more memory than the trace shows.
                // Either the program failed early, or a size depends on a kernel's result. On a
                // GPU, that result may be larger.
                needs.cards.clear();
            } else {
                explain::remove_failing_cards(needs, &results.cards);
                if !verdict.is_lower_bound {
                    needs.smaller = explain::find_smaller(needs, run, &results.cards);
                }
            }
        }
    }
    if options.margin == 0.0 {
        note_close_fits(&mut verdict, run);
    }
    match (&options.trace, &recording) {
        (Some(file), Some(recording)) => {
            fs::copy(&recording.file, file).map_err(|error| not_written(file, &error))?;
        }
        (Some(file), None) => {
            // Removes the empty file that the check before the run created.
            if fs::metadata(file).is_ok_and(|about| about.len() == 0) {
                let _ = fs::remove_file(file);
            }
            verdict.notes.push(format!(
                "{}: not written, because nothing was recorded: a trace comes from PyTorch's \
                 allocator",
                file.display()
            ));
        }
        (None, _) => {}
    }
    let is_python = run.processes.iter().any(|process| process.python.is_some());
    verdict.next = next_command(options, &verdict, is_python);
    Ok(verdict)
}

/// Adds a note for each card on which the program fits, but leaves less memory free than a search
/// would leave. Without PyTorch, the needed memory is the peak on the card. With PyTorch it is
/// known only for the card of `run`, whose recording was replayed. PyTorch's peak is no measure of
/// need, because its cache fills a device.
fn note_close_fits(verdict: &mut Verdict, run: &Run) {
    let is_adapting = verdict.unknown.asked_for_free_memory > 0;
    if is_adapting || run.processes.iter().any(outcome::has_hookless_pytorch) {
        return;
    }
    let share = MARGIN * 100.0;
    for card in verdict.cards.iter().filter(|card| card.outcome.is_fit()) {
        let is_replayed = verdict.devices == 1 && card.card == run.device.card.name;
        let uses_pytorch = card.processes.iter().any(|process| process.torch.is_some());
        let needed = match &verdict.needs {
            Some(needs) if is_replayed => Some(needs.least + needs.beside),
            _ if uses_pytorch => None,
            _ => card.devices.iter().filter_map(|device| device.peak).max(),
        };
        let Some(free) = needed.and_then(|needed| card.total.checked_sub(needed)) else { continue };
        if (free as f64) < MARGIN * card.total as f64 {
            verdict.notes.push(format!(
                "{} is nearly full: the program leaves {} free. A GPU may need a few percent more than a \
                 dry run, so the program may fail there. --margin {share} leaves {share} % free",
                card.card,
                Amount(free)
            ));
        }
    }
}

/// Returns the run that got furthest through the program. This is the run on a device with more
/// memory than any card, if that run was made. Else it is a run that fits, or the first run.
fn most_complete_run(results: &Results) -> Option<&Run> {
    let fits = |run: &&Run| {
        let result = results.cards.iter().find(|card| card.card == run.device.card.name);
        result.is_some_and(|card| card.outcome.is_fit())
    };
    results.with_room.as_ref().or_else(|| results.runs.iter().find(fits)).or(results.runs.first())
}

/// Adds the peaks in the run `complete` to the device verdicts of each card on which memory ran
/// out. Does nothing if the program does not fit in that run either.
fn judge_devices(cards: &mut [CardResult], results: &Results, complete: &Run) {
    let result = outcome::from_run(complete);
    if !result.outcome.is_fit() {
        return;
    }
    for card in cards.iter_mut().filter(|card| card.outcome == Outcome::DoesNotFit) {
        let run = results.runs.iter().find(|run| run.device.card.name == card.card);
        if run.is_some_and(|run| run.device.is_alike(&complete.device)) {
            devices::compare(&mut card.devices, &result.processes);
        }
    }
}

/// Returns the run on the first card that is too small. Remedies are judged on this card.
fn first_failing_run(results: &Results) -> Option<&Run> {
    let failing = results.cards.iter().find(|card| card.outcome == Outcome::DoesNotFit);
    results.runs.iter().find(|run| failing.is_some_and(|card| card.card == run.device.card.name))
}

fn count_unknown(run: &Run) -> Unknown {
    let mut unknown = Unknown::default();
    let mut lines = BTreeMap::<&str, Read>::new();
    let mut sizes = BTreeMap::<(&str, &str), SizeRead>::new();
    for process in &run.processes {
        if let Some(driver) = &process.driver {
            unknown.reads += driver.copies_to_host;
            unknown.launches += driver.launches_dropped;
            // PyTorch reads the free memory for the text of each failure. Leaves these reads out.
            let failed = process.torch.as_ref().map_or(0, |torch| torch.failed);
            unknown.asked_for_free_memory += driver.asked_for_free_memory.saturating_sub(failed);
        }
        for read in process.torch.iter().flat_map(|torch| &torch.lines) {
            let all = lines.entry(&read.line).or_default();
            *all = Read { times: all.times + read.times, ..read.clone() };
        }
        for read in process.torch.iter().flat_map(|torch| &torch.sizes) {
            let all = sizes.entry((&read.line, &read.operator)).or_default();
            *all = SizeRead { times: all.times + read.times, ..read.clone() };
        }
        unknown.libraries.extend(list_not_modelled(process));
    }
    unknown.libraries.sort();
    unknown.libraries.dedup();
    unknown.lines = lines.into_values().collect();
    unknown.lines.sort_by_key(|read| Reverse(read.times));
    unknown.lines.truncate(LINES);
    unknown.sizes = sizes.into_values().collect();
    unknown.sizes.sort_by_key(|read| Reverse(read.times));
    unknown
}

/// Returns a line for each function or feature that the libraries of a process did not model.
fn list_not_modelled(process: &Process) -> Vec<String> {
    let refused = process.driver.iter().flat_map(|driver| &driver.refused);
    let missing = process.cudart.iter().flat_map(|cudart| &cudart.not_modelled);
    let functions = refused.chain(missing).map(|function| match function.times {
        1 => format!("{} was refused", function.function),
        times => format!("{} was refused {times} times", function.function),
    });
    let libraries = process.libraries.iter().flat_map(|libraries| &libraries.libraries);
    let notes = libraries.flat_map(|library| {
        library.notes.iter().map(move |note| match note.starts_with(&library.name) {
            true => note.clone(),
            false => format!("{}: {note}", library.name),
        })
    });
    functions.chain(notes).collect()
}

/// Returns notes on everything that was missing or unexpected in the runs, without duplicates.
fn collect_notes(
    options: &Options,
    stand_ins: &StandIns,
    run: &Run,
    cards: &[CardResult],
    is_benchmark_known: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    let torch = || run.processes.iter().filter_map(|process| process.torch.as_ref());
    let is_static = Outcome::NoVerdict(Reason::StaticRuntime);
    let is_headline = cards.iter().any(|card| card.outcome == is_static);
    let modules = run.processes.iter().filter_map(|process| process.python.as_ref());
    let modules: BTreeSet<&str> =
        modules.flat_map(|python| python.not_served.iter().map(String::as_str)).collect();
    let libraries: BTreeSet<&String> =
        run.processes.iter().flat_map(outcome::static_runtimes).collect();
    if is_headline && !libraries.is_empty() && modules.is_empty() {
        let remedy = "build the program with the shared CUDA runtime, and run that. In CMake: \
                      set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)";
        notes.push(remedy.to_owned());
    }
    notes.extend(libraries.into_iter().filter(|_| !is_headline).map(|library| {
        format!(
            "{library} found no GPU, as its CUDA runtime is linked statically: its memory is \
             missing here"
        )
    }));
    let major = torch().find_map(|torch| torch.cuda.as_deref()?.split('.').next()?.parse().ok());
    if let Some(major) = major.filter(|major: &u32| !(12..=13).contains(major)) {
        notes.push(format!(
            "this PyTorch is built for CUDA {major}; the stand-ins are those of CUDA 12 and 13. \
             Install a PyTorch for one of these"
        ));
    }
    let failed = cards.iter().any(|card| card.outcome == Outcome::NoVerdict(Reason::Failed));
    if failed && torch().any(|torch| torch.cuda.is_some()) && stand_ins.cudart.is_none() {
        notes.push(
            "this build of gpuheap has no CUDA runtime (libgpuheap_emu_cudart.so beside the emulated \
             driver), which PyTorch needs"
                .to_owned(),
        );
    }
    if run.processes.iter().any(outcome::has_hookless_pytorch) {
        notes.push(
            "PyTorch ran without the dry run's hook, so each result that the program read was 0, and \
             a size may depend on one. Start Python without -I, -S and -E; a program in C++ has no \
             hook"
                .to_owned(),
        );
    }
    notes.extend(torch().flat_map(|torch| torch.notes.iter().cloned()));
    let is_noted = !modules.is_empty() || torch().any(|torch| torch.cuda.is_none());
    notes.extend(modules.into_iter().map(not_served));
    let no_gpu = Outcome::NoVerdict(Reason::NoGpuUsed);
    if cards.iter().any(|card| card.outcome == no_gpu) && !is_noted {
        notes.push(
            "no process took memory of the GPU. If the program chooses between processor and GPU, name the \
             GPU: torch.device(\"cuda\"). If only a part of it uses the GPU, run that part"
                .to_owned(),
        );
    }
    for range in &options.find_batch {
        let replaced = format!("{{{}}}", range.variable);
        if !options.arguments.iter().any(|word| word.to_string_lossy().contains(&replaced)) {
            notes.push(format!(
                "no argument has {replaced}: the answer holds only if the program reads the \
                 environment variable {}",
                range.variable
            ));
        }
    }
    if let Some(text) = run.processes.iter().find_map(|process| process.many_reads.as_deref())
        && let Some(line) = crate::reports::describe_many_reads(text)
    {
        notes.push(format!("the program has read from the device {line}"));
    }
    if let Some(bytes) = benchmark::timed_workspace(run).filter(|_| !is_benchmark_known) {
        notes.push(format!(
            "cuDNN's benchmark mode timed a plan with a workspace of {}, and may have raised the \
             peak by as much. PyTorch gives way when memory is short, so a smaller card may do: \
             --remedies runs the program there, and without benchmark mode",
            Amount(bytes)
        ));
    }
    notes.extend(torch().filter_map(|torch| torch.hang.as_deref()).map(|line| {
        format!(
            "the program waits for a result at {line}: it read for 10 s without progress. Set the \
             result with --read, or end the program with --steps"
        )
    }));
    let steps = torch().map(|torch| torch.steps).max().unwrap_or(0);
    match (run.ended, options.steps) {
        (Ended::TimeLimit, _) => notes.push(format!(
            "the program was ended at the time limit, after {steps} optimiser steps: a later peak is \
             not seen"
        )),
        (_, Some(wanted)) if steps < wanted => notes.push(format!(
            "the program did {steps} optimiser steps, and not the {wanted} of --steps"
        )),
        _ => {}
    }
    notes.sort();
    notes.dedup();
    notes
}

/// Returns the note for a module that does not run on the emulated driver.
fn not_served(module: &str) -> String {
    format!(
        "the program imports {module}, which cannot be dry-run: its CUDA runtime is linked statically. \
         Run it on a GPU, and see its memory there with gpuheap status"
    )
}

/// Returns the command to type next; `None` if no other run would add information.
fn next_command(options: &Options, verdict: &Verdict, is_python: bool) -> Option<String> {
    let on = |card: &str, memory: Option<u64>| {
        let memory = memory.map(|bytes| format!(" --memory {bytes}")).unwrap_or_default();
        let devices = match options.devices {
            1 => String::new(),
            devices => format!(" --devices {devices}"),
        };
        let steps = options.steps.map(|steps| format!(" --steps {steps}")).unwrap_or_default();
        let limit =
            options.time_limit.map(|limit| format!(" --time-limit {}s", limit.as_secs_f64()));
        let limit = limit.unwrap_or_default();
        let allowed = if options.allow_oversubscription { " --allow-oversubscription" } else { "" };
        let program = &verdict.program;
        let card = shell_word(card);
        let reads: String = options.results.iter().map(set_result).collect();
        format!(
            "gpuheap dry-run --card {card}{memory}{devices}{steps}{limit}{allowed}{reads} -- {program}"
        )
    };
    if verdict.batch.is_some() || verdict.is_interrupted {
        return None;
    }
    let failing = verdict.cards.iter().find(|card| card.outcome == Outcome::DoesNotFit);
    let of_run = verdict.needs.as_ref().map_or(&[][..], |needs| &needs.cards);
    let smaller = verdict.needs.as_ref().and_then(|needs| needs.smaller.as_ref());
    match (verdict.outcome(), failing) {
        (Outcome::NoVerdict(Reason::StaticRuntime), _) if !is_python => {
            Some("nvcc -cudart shared program.cu".to_owned())
        }
        (Outcome::NoVerdict(_), _) => None,
        (_, Some(failing)) => match verdict.remedies.iter().find(|remedy| remedy.makes_it_fit) {
            Some(remedy) => Some(format!("{} {}", remedy.line, on(&failing.card, options.memory))),
            None => of_run.first().or(smaller).map(|card| on(card, None)),
        },
        (_, None) => {
            let smallest = smaller.or(of_run.first())?;
            let bytes = cards::find(smallest).ok()?.usable_bytes;
            let is_smaller = verdict.cards.iter().all(|card| bytes < card.usable);
            (is_smaller && options.memory.is_none()).then(|| on(smallest, None))
        }
    }
}

/// Returns the option `--read` that sets a result, with a space in front of it.
fn set_result(SetResult { file, line, value }: &SetResult) -> String {
    format!(" --read {}", shell_word(&format!("{file}:{line}={value}")))
}

/// Returns the program's command line, quoted for a shell.
fn command_line(options: &Options) -> String {
    let words = std::iter::once(&options.program).chain(&options.arguments);
    words.map(|word| shell_word(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}
