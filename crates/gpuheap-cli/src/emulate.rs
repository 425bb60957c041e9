//! `gpuheap emulate`: runs a program on the emulated device.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use clap::Args;
use gpuheap_dry_run::{Emulation, Error, emulate};

use crate::exit::{Failure, Verdict};
use crate::values::devices;

/// Arguments of `gpuheap emulate`.
#[derive(Args, Debug)]
pub(crate) struct EmulateArguments {
    /// The device: h200, rtx4090, t4, wsl2-rtx4060, 16GiB, or several with commas between them
    /// [default: GPUHEAP_EMULATED_DEVICE, else h200]
    #[arg(long, value_name = "NAME", value_parser = devices, allow_hyphen_values = true)]
    device: Option<String>,

    /// Choose when the emulated device completes queued work: immediate, on-demand (only if the
    /// program waits), seeded:N (at random, by the seed N) or lag:N (after N nanoseconds)
    #[arg(long, value_name = "WHEN")]
    schedule: Option<String>,

    /// Write each misuse of memory to stderr
    #[arg(long)]
    checks: bool,

    /// A file that several programs name to share the memory of the emulated devices
    #[arg(long, value_name = "FILE")]
    account: Option<PathBuf>,

    /// Folder of the emulated libraries [default: this installation's]
    #[arg(long, value_name = "FOLDER", hide = true)]
    stand_ins: Option<PathBuf>,

    /// The program and its arguments, after --
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program. The command ends with the program's exit code.
pub(crate) fn run(arguments: &EmulateArguments) -> Result<Verdict, Failure> {
    let mut words = arguments.program.iter().cloned();
    let account = arguments.account.as_ref().map(|file| file.display().to_string());
    let given = [
        ("GPUHEAP_EMULATED_DEVICE", arguments.device.clone()),
        ("GPUHEAP_EMULATED_SCHEDULE", arguments.schedule.clone()),
        ("GPUHEAP_EMULATED_CHECKS", arguments.checks.then(|| "1".to_owned())),
        ("GPUHEAP_EMULATED_ACCOUNT", account),
    ];
    let emulation = Emulation {
        program: words.next().unwrap_or_default(),
        arguments: words.collect(),
        variables: given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.into())))
            .collect(),
        stand_ins: arguments.stand_ins.clone(),
    };
    match emulate(&emulation) {
        Ok(ended) => Ok(Verdict::Status(status(ended))),
        Err(Error::WrongUse(line)) => Err(Failure::wrong_use(line)),
        Err(error) => Err(Failure::environment_error(error)),
    }
}

/// Returns the exit code of a program as a shell gives it: 128 plus the signal's number if a signal
/// ended the program.
pub(crate) fn status(ended: ExitStatus) -> u8 {
    let code = ended.code().or_else(|| Some(128 + ended.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
