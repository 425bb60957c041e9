//! The `gpuheap` command.

mod baseline;
mod cli;
mod doctor;
mod failure;
mod free;
mod machine;
mod output;
mod progress;
mod replay;
mod status;
mod verdict;

use std::process::ExitCode;

use crate::cli::Command;
use crate::verdict::Verdict;

fn main() -> ExitCode {
    let done = cli::parse().and_then(|parsed| match parsed {
        cli::Parsed::Text(text) => output::print(&text).map(|()| Verdict::Fine),
        cli::Parsed::Command(Command::Replay(arguments)) => replay::run(&arguments),
        cli::Parsed::Command(Command::Status(arguments)) => status::run(&arguments),
        cli::Parsed::Command(Command::Doctor(arguments)) => doctor::run(&arguments),
        cli::Parsed::Command(Command::Explain(arguments)) => doctor::explain(&arguments),
        cli::Parsed::Command(Command::Wait(arguments)) => free::wait(&arguments),
        cli::Parsed::Command(Command::Free(arguments)) => free::run(&arguments),
    });
    match done {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Findings) => ExitCode::from(1),
        Err(failure) => {
            output::complain(&failure);
            failure.exit_code()
        }
    }
}
