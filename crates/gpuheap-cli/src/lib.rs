//! Implements the `gpuheap` command, for its program and the Python package.

mod cli;
mod doctor;
mod dry_run;
mod emulate;
mod exit;
mod explain;
mod export;
mod free;
mod machine;
mod output;
mod pause;
mod probe;
mod programs;
mod progress;
mod replay;
mod report;
mod run;
mod status;
mod top;
mod traces;
mod values;

use std::ffi::OsString;

use clap::CommandFactory;

use crate::cli::Command;
use crate::exit::Verdict;

/// Runs the command with its arguments. The first argument is the program's name. Prints to stdout
/// and stderr, and returns the exit code: 0 for no findings, 1 for findings, 2 for wrong use, 3 for
/// an environment error. Code 4 means that nothing was found but some facts are unknown. `run` and
/// `emulate` return the exit code of their program.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let done = cli::parse(arguments.into_iter().collect()).and_then(|parsed| match parsed {
        cli::Parsed::Text(text) => output::print(&text).map(|()| Verdict::Fine),
        cli::Parsed::Command(Command::Replay(arguments)) => replay::run(&arguments),
        cli::Parsed::Command(Command::Report(arguments)) => report::run(&arguments),
        cli::Parsed::Command(Command::DryRun(arguments)) => dry_run::run(&arguments),
        cli::Parsed::Command(Command::Run(arguments)) => run::run(&arguments),
        cli::Parsed::Command(Command::Record(arguments)) => programs::record(&arguments),
        cli::Parsed::Command(Command::Emulate(arguments)) => emulate::run(&arguments),
        cli::Parsed::Command(Command::Status(arguments)) => status::run(&arguments),
        cli::Parsed::Command(Command::Top(arguments)) => top::run(&arguments),
        cli::Parsed::Command(Command::Export(arguments)) => export::run(&arguments),
        cli::Parsed::Command(Command::Doctor(arguments)) => doctor::run(&arguments),
        cli::Parsed::Command(Command::Pause(arguments)) => pause::pause(&arguments),
        cli::Parsed::Command(Command::Resume(arguments)) => pause::resume(&arguments),
        cli::Parsed::Command(Command::ProbeCuda) => probe::run(),
        cli::Parsed::Command(Command::Explain(arguments)) => explain::run(&arguments),
        cli::Parsed::Command(Command::Wait(arguments)) => free::wait(&arguments),
        cli::Parsed::Command(Command::Free(arguments)) => free::run(&arguments),
    });
    match done {
        Ok(verdict) => verdict.exit_code(),
        Err(failure) => {
            output::print_errors(&failure);
            failure.exit_code()
        }
    }
}

/// Returns clap's definition of the command, for man pages and completions.
pub fn command() -> clap::Command {
    cli::Cli::command()
}
