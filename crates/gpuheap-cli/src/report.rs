//! `gpuheap report`: reads traces, and writes reports of them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpuheap_report::{At, Report, json, text};
use gpuheap_trace::{ReadOptions, Trace};

use crate::exit::{Failure, Verdict};
use crate::values::refuse_option;
use crate::{output, traces};

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

    /// The moment whose holders are shown: peak, end, or the number of an event [default: peak]
    #[arg(long, value_name = "MOMENT", value_parser = moment, default_value = "peak")]
    #[arg(hide_default_value = true)]
    at: At,

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
    /// All figures, by docs/report.schema.json
    Json,
}

/// Reads the files, and writes their reports.
///
/// # Errors
///
/// Returns a failure if files cannot be read (one line each), or if the report cannot be written.
pub(crate) fn run(arguments: &ReportArguments) -> Result<Verdict, Failure> {
    let options = ReadOptions::default().recorded_only(arguments.recorded_only);
    let traces = traces::read(&arguments.files, &options)?;
    let form = if arguments.json { Form::Json } else { arguments.format };
    let reports = || -> Result<Vec<Report>, Failure> {
        let of = |trace: &Trace| Report::new(trace, arguments.at);
        let reports: Result<_, String> = traces.iter().map(of).collect();
        reports.map_err(|error| Failure::wrong_use(format!("--at: {error}")))
    };
    let written = match form {
        Form::Text => reports()?.iter().map(text::render).collect::<Vec<_>>().join("\n"),
        Form::Json => json::render(&reports()?).map_err(Failure::environment_error)?,
    };
    output::print(&written).map(|()| Verdict::Fine)
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
