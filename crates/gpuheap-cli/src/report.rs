//! `gpuheap report`: reads traces, and writes reports of them.

use std::fs::File;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gpuheap_report::{At, Comparison, Report, folded, html, json, perfetto, speedscope, text};
use gpuheap_trace::{ReadOptions, Trace, write_pytorch_snapshot, write_rmm_csv};

use crate::exit::{Failure, Verdict};
use crate::values::refuse_option;
use crate::{output, traces};

/// Value of `--output` that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Last lines of a text report. They recommend other forms and options.
const MORE: &str = "\nMore: --format html for a page with a timeline and flame graphs, --at EVENT for\n  \
                    another moment, --compare FILE for the difference to another recording.\n";

/// Arguments of `gpuheap report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArguments {
    /// Files to report, - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Form of the report
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Form::Text)]
    #[arg(hide_default_value = true)]
    format: Form,

    /// File to write, - for standard output [default: -; for html and pytorch a file that is named
    /// after the first FILE]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Show who holds memory at this moment: peak, end, or the number of an event [default: peak]
    #[arg(long, value_name = "MOMENT", value_parser = moment, default_value = "peak")]
    #[arg(hide_default_value = true, allow_hyphen_values = true)]
    at: At,

    /// Compare with a later recording: the sites that hold more, or less
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,

    /// Report only the device that has this ordinal in the recorded program
    #[arg(long, value_name = "N")]
    device: Option<u32>,

    /// Leave out the blocks that were live before a snapshot's recording began
    #[arg(long)]
    recorded_only: bool,

    /// Print one JSON array, one object for each trace; like --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Values of `--format`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Tables for a terminal of 80 columns
    Text,
    /// One page for a browser, with a timeline, flame graphs, tables and a map of addresses
    Html,
    /// All figures, by docs/report.schema.json
    Json,
    /// Live bytes by stack, a line for each stack, for flamegraph.pl and inferno
    Folded,
    /// Live bytes by stack, for speedscope.app
    Speedscope,
    /// Counter tracks and instants, for ui.perfetto.dev and chrome://tracing
    Perfetto,
    /// RMM's CSV log, of one device
    Rmm,
    /// A snapshot for pytorch.org/memory_viz
    Pytorch,
}

/// Reads the files, and writes their reports.
pub(crate) fn run(arguments: &ReportArguments) -> Result<Verdict, Failure> {
    let traces = read(arguments, &arguments.files)?;
    let form = if arguments.json { Form::Json } else { arguments.format };
    if let Some(later) = &arguments.compare {
        return compare(arguments, form, &traces, later);
    }
    let at = arguments.at;
    let written = match form {
        Form::Text => {
            let reports = reports(&traces, at)?;
            let mut text = reports.iter().map(text::render).collect::<Vec<_>>().join("\n");
            text += MORE;
            text.into_bytes()
        }
        Form::Html => {
            let mut page = Vec::new();
            html::write(&traces, &[], &mut page).map_err(Failure::environment_error)?;
            page
        }
        Form::Json => to_bytes(json::render(&reports(&traces, at)?))?,
        Form::Folded => folded(&traces, at).map_err(wrong_moment)?.into_bytes(),
        Form::Speedscope => speedscope(&traces, at).map_err(wrong_moment)?.into_bytes(),
        Form::Perfetto => perfetto::render(&traces).into_bytes(),
        Form::Rmm => {
            let mut log = Vec::new();
            write_rmm_csv(one(&traces)?, &mut log).map_err(Failure::environment_error)?;
            log
        }
        Form::Pytorch => {
            let mut pickle = Vec::new();
            write_pytorch_snapshot(&traces, &mut pickle).map_err(Failure::environment_error)?;
            pickle
        }
    };
    write(arguments, form, &written).map(|()| Verdict::Fine)
}

fn read(arguments: &ReportArguments, files: &[PathBuf]) -> Result<Vec<Trace>, Failure> {
    let options = ReadOptions::default().recorded_only(arguments.recorded_only).host_memory(true);
    let mut traces = traces::read(files, &options)?;
    let Some(device) = arguments.device else { return Ok(traces) };
    let devices: Vec<String> =
        traces.iter().filter_map(Trace::device).map(|device| device.to_string()).collect();
    traces.retain(|trace| trace.device() == Some(device));
    if traces.is_empty() {
        let has = match devices.is_empty() {
            true => "the file does not record devices".to_owned(),
            false => format!("the file has {}", devices.join(", ")),
        };
        return Err(Failure::wrong_use(format!("--device: there is no device {device}; {has}")));
    }
    Ok(traces)
}

fn reports(traces: &[Trace], at: At) -> Result<Vec<Report>, Failure> {
    traces.iter().map(|trace| Report::new(trace, at).map_err(wrong_moment)).collect()
}

fn wrong_moment(error: String) -> Failure {
    Failure::wrong_use(format!("--at: {error}"))
}

fn to_bytes(text: Result<String, serde_json::Error>) -> Result<Vec<u8>, Failure> {
    text.map(String::into_bytes).map_err(Failure::environment_error)
}

/// Returns the only trace, for a form that cannot hold several.
fn one(traces: &[Trace]) -> Result<&Trace, Failure> {
    match traces {
        [trace] => Ok(trace),
        [first, ..] => Err(Failure::wrong_use(format!(
            "{}: this form holds one device, and {} were recorded; add --device {}",
            first.name(),
            traces.len(),
            first.device().unwrap_or_default()
        ))),
        [] => Err(Failure::wrong_use("nothing was recorded; record again")),
    }
}

/// Compares each device with the same device of a later recording.
fn compare(
    arguments: &ReportArguments,
    form: Form,
    before: &[Trace],
    later: &Path,
) -> Result<Verdict, Failure> {
    let after = read(arguments, &[later.to_owned()])?;
    let mut comparisons = Vec::new();
    for trace in before {
        let Some(other) = after.iter().find(|other| other.device() == trace.device()) else {
            let device = trace.device().map_or("host".to_owned(), |device| device.to_string());
            return Err(Failure::wrong_use(format!(
                "--compare: {} has no device {device}, and {} has; choose one by --device",
                later.display(),
                trace.name()
            )));
        };
        let report = |trace| Report::new(trace, arguments.at).map_err(wrong_moment);
        comparisons.push(Comparison::new(&report(trace)?, &report(other)?));
    }
    let written = match form {
        Form::Text => {
            comparisons.iter().map(Comparison::render).collect::<Vec<_>>().join("\n").into_bytes()
        }
        Form::Json => to_bytes(json::render_comparisons(&comparisons))?,
        Form::Html => {
            let mut page = Vec::new();
            html::write(&after, before, &mut page).map_err(Failure::environment_error)?;
            page
        }
        _ => {
            return Err(Failure::wrong_use(
                "--compare writes text, html or json; leave --format out, or give one of them",
            ));
        }
    };
    write(arguments, form, &written).map(|()| Verdict::Fine)
}

/// Writes a report to its file, or to standard output.
fn write(arguments: &ReportArguments, form: Form, written: &[u8]) -> Result<(), Failure> {
    let ending = match form {
        Form::Html => Some("html"),
        Form::Pytorch => Some("pickle"),
        _ => None,
    };
    let named = || Some(format!("{}.{}", stem(&arguments.files[0]), ending?).into());
    let path = arguments.output.clone().or_else(named);
    match path.filter(|path| path != Path::new(STANDARD_OUTPUT)) {
        None if ending.is_some() && stdout().is_terminal() => Err(Failure::wrong_use(
            "-: this form is not for a terminal; name a file by --output, or pipe it",
        )),
        None => output::print_bytes(written),
        Some(path) => {
            let done = File::create(&path).and_then(|mut file| file.write_all(written));
            done.map_err(|error| {
                Failure::environment_error(format!(
                    "{}: cannot be written: {error}; name another file by --output",
                    path.display()
                ))
            })?;
            output::print(&format!("wrote {}\n", path.display()))
        }
    }
}

/// Returns the name of the report on `path`, without a folder and extension: `run-report` for
/// `a/run.csv.gz`.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let endings = [".gz", ".pickle", ".csv", ".gph", ".snapshot"];
    let mut name = name.as_str();
    for ending in endings {
        name = name.strip_suffix(ending).filter(|rest| !rest.is_empty()).unwrap_or(name);
    }
    let is_standard_input = name == "-";
    if is_standard_input { "report".to_owned() } else { format!("{name}-report") }
}

fn moment(text: &str) -> Result<At, String> {
    refuse_option(text)?;
    match text {
        "peak" => Ok(At::Peak),
        "end" => Ok(At::End),
        number => number.replace(',', "").parse().map(At::Event).map_err(|_| {
            format!(
                "'{text}' is not a moment; give peak, end, or an event's number, as the report \
                 does (1,519 or 1519)"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_named_after_recording() {
        for (path, name) in [
            ("a/varied_oom.snapshot.pickle.gz", "varied_oom-report"),
            ("run.csv", "run-report"),
            (".csv", ".csv-report"),
            ("-", "report"),
        ] {
            assert_eq!(stem(Path::new(path)), name);
        }
    }
}
