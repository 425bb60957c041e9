//! `gpuheap doctor`, `gpuheap explain`.

use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpuheap::emu::Profile;
use gpuheap_doctor::machine::Host;
use gpuheap_doctor::{
    Machine, RULES, Recorder, Report, Rule, Severity, TOPICS, diagnose, explain_error,
    explain_topic, markdown,
};

use crate::exit::{Failure, Verdict};
use crate::{machine, output, probe, values};

/// Arguments of `gpuheap doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    /// Also show findings that only inform, and checks that could not be made
    #[arg(long, short)]
    verbose: bool,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Also write what was read of this machine to a file, for --machine; it holds command lines
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    record: Option<PathBuf>,

    /// Also have CUDA create a context and take a little of each kind of memory on each device, in
    /// a process of its own that is killed after 30 seconds
    #[arg(long, conflicts_with = "machine")]
    probe_cuda: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Print a report to paste into an issue: Markdown, without names of users, home folders,
    /// arguments of commands and the host's name
    #[arg(long, value_name = "FORM", conflicts_with = "json")]
    report: Option<Form>,
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Markdown.
    Md,
}

/// Runs all rules, and prints their findings.
///
/// # Errors
///
/// Returns a failure if a recording cannot be read or written.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<Verdict, Failure> {
    let mut machine;
    if let Some(path) = &arguments.record {
        let recorder = Recorder::default();
        machine = Machine::read(recorder.clone());
        examine(&mut machine, arguments.probe_cuda)?;
        let text = format!("# origin: recorded by gpuheap doctor --record\n{}", recorder.text());
        std::fs::write(path, text).map_err(|error| {
            let name = path.display();
            Failure::environment_error(format!(
                "--record {name}: {error}; name a file that can be written"
            ))
        })?;
    } else {
        machine = machine::read(arguments.machine.as_ref())?;
        examine(&mut machine, arguments.probe_cuda)?;
    }
    let report = diagnose(&machine);
    let text = if arguments.json {
        report.to_json()
    } else if arguments.report.is_some() {
        markdown(&machine, env!("CARGO_PKG_VERSION"))
    } else if machine.has_no_gpu() && report.is_healthy() {
        "no NVIDIA GPU: neither a device file in /dev nor libnvidia-ml.so.1\n".to_owned()
    } else {
        report.render(machine::width(), arguments.verbose)
    };
    output::print(&text)?;
    Ok(verdict(&report))
}

/// Reads what the rules need. Without a GPU there is nothing to probe.
fn examine(machine: &mut Machine, probes_cuda: bool) -> Result<(), Failure> {
    machine.examine();
    if probes_cuda && !machine.has_no_gpu() {
        machine.probe_cuda(&probe::command()?);
    }
    Ok(())
}

fn verdict(report: &Report) -> Verdict {
    if report.is_healthy() { Verdict::Fine } else { Verdict::Findings }
}

/// Arguments of `gpuheap explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArguments {
    /// A rule's id, such as P01, or one of dedicated, wslconfig, rapids, which have the numbers of
    /// this machine; without it the text of an error is read from standard input
    #[arg(value_name = "ID")]
    id: Option<String>,

    /// Explain for a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Read an error as one of this kind of device, whatever this machine and the text say:
    /// wsl2-rtx4060 for one under WSL2, h200 for one of Linux
    #[arg(long, value_name = "NAME", value_parser = values::profile, allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["id", "machine"])]
    profile: Option<Profile>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes that are read of an error's text at most.
const MOST: u64 = 16 << 20;

/// Explains a rule, or the text of an error.
///
/// # Errors
///
/// Returns a failure if the rule does not exist, or if the text has no known out-of-memory error.
pub(crate) fn explain(arguments: &ExplainArguments) -> Result<Verdict, Failure> {
    if let Some(id) = &arguments.id {
        if TOPICS.iter().any(|topic| topic.eq_ignore_ascii_case(id)) {
            let mut machine = machine::read(arguments.machine.as_ref())?;
            machine.ask_windows();
            let text = explain_topic(id, &machine, machine::width()).unwrap_or_default();
            return output::print(&text).map(|()| Verdict::Fine);
        }
        let rule = RULES.iter().find(|rule| rule.id.eq_ignore_ascii_case(id)).ok_or_else(|| {
            let ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
            Failure::wrong_use(format!(
                "there is no rule or topic '{id}'; the topics are {}, the rules {}",
                TOPICS.join(", "),
                ids.join(" ")
            ))
        })?;
        return output::print(&text_of(rule, arguments.json)).map(|()| Verdict::Fine);
    }
    if stdin().is_terminal() {
        return Err(Failure::wrong_use(
            "nothing to explain; give a rule's id, or pipe an error's text: gpuheap explain < error.txt",
        ));
    }
    let mut bytes = Vec::new();
    stdin()
        .lock()
        .take(MOST)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::wrong_use(format!("standard input cannot be read: {error}")))?;
    let text = String::from_utf8_lossy(&bytes);
    let found = explain_error(&text, on_wsl2(arguments)?).ok_or_else(|| {
        Failure::wrong_use(
            "standard input: no out-of-memory error of PyTorch, RMM, cuDF, Dask, CuPy, Numba, JAX, \
             CUDA.jl, PyCUDA, cudarc, gpuheap, CUDA, NumPy, C++ or the kernel is in it; pipe the \
             whole text of the error",
        )
    })?;
    let text = if arguments.json {
        let text = serde_json::to_string_pretty(&found).map_err(Failure::environment_error)?;
        text + "\n"
    } else {
        found.render(machine::width())
    };
    output::print(&text).map(|()| Verdict::Fine)
}

/// Returns `true` if an error is one of a program under WSL2; `None` if the text decides.
fn on_wsl2(arguments: &ExplainArguments) -> Result<Option<bool>, Failure> {
    if let Some(profile) = &arguments.profile {
        return Ok(Some(profile.wsl2));
    }
    let host = match &arguments.machine {
        Some(_) => Some(machine::read(arguments.machine.as_ref())?.host),
        None => Host::here().ok(),
    };
    // An error may be of another machine than the one on which it is explained.
    Ok(host.is_some_and(|host| host.is_wsl).then_some(true))
}

fn text_of(rule: &Rule, json: bool) -> String {
    if json {
        let object = serde_json::json!({
            "rule": rule.id,
            "severity": rule.severity,
            "title": rule.title,
            "explanation": rule.explanation,
        });
        return format!("{object:#}\n");
    }
    let severity = match rule.severity {
        Severity::Fail => "failure",
        Severity::Warning => "warning",
        Severity::Info => "for information",
    };
    format!("{}: {} ({severity})\n{}", rule.id, rule.title, rule.long_text(machine::width()))
}
