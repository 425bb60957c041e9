//! The machine that the commands look at, and the width of what they print.

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use gpuheap_doctor::machine::Nvml;
use gpuheap_doctor::{Here, Machine, Recording};

use crate::failure::Failure;

/// Columns if stdout is no terminal.
const WIDTH: usize = 80;

/// Reads this machine, or the recording in `file`.
///
/// # Errors
///
/// A file that cannot be read or is no recording.
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
/// A file that cannot be read or is no recording.
pub(crate) fn recording(path: &Path) -> Result<Recording, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::wrong_use(format!("--machine {name}: {error}; give a text file"))
    })?;
    Recording::parse(&text).map_err(|error| {
        Failure::wrong_use(format!("--machine {name} is no recorded machine: {error}"))
    })
}

/// Returns NVML's answers if it has any.
///
/// # Errors
///
/// One line that says why there are none: no GPU, no driver, a driver that fails.
pub(crate) fn nvml(machine: &Machine) -> Result<&Nvml, Failure> {
    if machine.has_no_gpu() {
        return Err(Failure::could_not_look(
            "no NVIDIA GPU: neither a device file in /dev nor the driver's library \
             libnvidia-ml.so.1; gpuheap status --device emulated shows an emulated one",
        ));
    }
    match &machine.nvml {
        Err(skipped) => Err(Failure::could_not_look(format!(
            "the NVIDIA driver's library cannot be asked: {skipped}; see gpuheap doctor"
        ))),
        Ok(nvml) => match &nvml.failure {
            Some(failure) => Err(Failure::could_not_look(format!(
                "the NVIDIA driver does not answer: {} (NVML error {}); see gpuheap doctor",
                failure.text, failure.code
            ))),
            None => Ok(nvml),
        },
    }
}

/// Returns the columns of the terminal, 80 if stdout is none.
pub(crate) fn width() -> usize {
    if !stdout().is_terminal() {
        return WIDTH;
    }
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| usize::from(width.0).max(40))
}
