//! `gpuheap doctor`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpuheap_doctor::{Machine, Recorder, diagnose, markdown};
use gpuheap_publish::Detail;

use crate::exit::{Failure, Verdict};
use crate::{machine, output, probe};

/// Arguments of `gpuheap doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    /// Also show findings that only inform, and checks that could not be made
    #[arg(long, short)]
    verbose: bool,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Also write all facts of this machine to a file, for --machine; they include command lines
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    record: Option<PathBuf>,

    /// Also let CUDA create a context and allocate a little of each kind of memory on each device,
    /// in a separate process that is killed after 30 seconds
    #[arg(long, conflicts_with = "machine")]
    probe_cuda: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Print a report in Markdown to paste into an issue. Leaves out user names, the host's name,
    /// home folders and command arguments
    #[arg(long, value_name = "FORM", conflicts_with = "json")]
    report: Option<Form>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Markdown.
    Md,
}

/// Runs all rules, and prints their findings.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<Verdict, Failure> {
    let recorder = Recorder::default();
    let mut machine = match &arguments.record {
        Some(_) => Machine::read(recorder.clone()),
        None => machine::read(arguments.machine.as_ref(), Detail::Heaps)?,
    };
    machine.examine();
    if arguments.probe_cuda && !machine.has_no_gpu() {
        machine.probe_cuda(&probe::command()?);
    }
    if let Some(path) = &arguments.record {
        let text = format!("# origin: recorded by gpuheap doctor --record\n{}", recorder.text());
        std::fs::write(path, text).map_err(|error| {
            let name = path.display();
            Failure::environment_error(format!(
                "--record {name}: {error}; name a file that can be written"
            ))
        })?;
    }
    let report = diagnose(&machine);
    // If no GPU can be read, nothing was examined, so a lack of findings does not mean a healthy
    // machine.
    let readable = match report.is_healthy() {
        true => machine::devices(&machine, None).map(|_| Verdict::Fine),
        false => Ok(Verdict::Findings),
    };
    let text = if arguments.json {
        report.to_json()
    } else if arguments.report.is_some() {
        markdown(&machine, env!("CARGO_PKG_VERSION"))
    } else if readable.is_err() {
        String::new()
    } else {
        report.render(machine::width(), arguments.verbose)
    };
    output::print(&text)?;
    readable
}
