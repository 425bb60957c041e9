//! Machine that the commands examine, and the width of their output.

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use gpuheap_doctor::machine::Nvml;
use gpuheap_doctor::{Here, Machine, Recording};

use crate::exit::Failure;

/// Width in columns if stdout is not a terminal.
const WIDTH: usize = 80;

/// Reads this machine, or the recording in `file`.
///
/// # Errors
///
/// Returns a failure if the file cannot be read, or is not a recording.
pub(crate) fn read(file: Option<&PathBuf>) -> Result<Machine, Failure> {
    match file {
        None => Ok(Machine::read(Here)),
        Some(path) => recording(path).map(Machine::read),
    }
}

/// Reads a recording.
///
/// # Errors
///
/// Returns a failure if the file cannot be read, or is not a recording.
pub(crate) fn recording(path: &Path) -> Result<Recording, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::wrong_use(format!("--machine {name}: {error}; give a text file"))
    })?;
    Recording::parse(&text).map_err(|error| {
        Failure::wrong_use(format!("--machine {name} is no recorded machine: {error}"))
    })
}

/// Returns NVML's answers.
///
/// # Errors
///
/// Returns one line with the reason if there are none: no GPU, no driver, or a driver that fails.
pub(crate) fn nvml(machine: &Machine) -> Result<&Nvml, Failure> {
    if machine.has_no_gpu() {
        return Err(Failure::environment_error(
            "no NVIDIA GPU: neither a device file in /dev nor the driver's library \
             libnvidia-ml.so.1; gpuheap status --device emulated shows an emulated one",
        ));
    }
    match &machine.nvml {
        Err(skipped) => Err(Failure::environment_error(format!(
            "the NVIDIA driver's library cannot be asked: {skipped}; see gpuheap doctor"
        ))),
        Ok(nvml) => match &nvml.failure {
            Some(failure) => Err(Failure::environment_error(format!(
                "the NVIDIA driver does not answer: {} (NVML error {}); see gpuheap doctor",
                failure.text, failure.code
            ))),
            None => Ok(nvml),
        },
    }
}

/// Returns the columns of the terminal, or 80 if stdout is not one.
pub(crate) fn width() -> usize {
    if !stdout().is_terminal() {
        return WIDTH;
    }
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| usize::from(width.0).max(40))
}
