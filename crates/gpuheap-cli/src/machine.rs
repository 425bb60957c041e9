//! Reads the machine that the commands examine, and the width of their output.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use gpuheap_doctor::machine::Gpu;
use gpuheap_doctor::{Here, Machine, Recording};
use gpuheap_publish::Detail;

use crate::exit::Failure;

/// Width in columns if stdout is not a terminal.
const WIDTH: usize = 80;

/// Reads this machine, or the recording in `file`.
pub(crate) fn read(file: Option<&PathBuf>, detail: Detail) -> Result<Machine, Failure> {
    let mut machine = read_devices(file)?;
    machine.read_programs(detail);
    Ok(machine)
}

/// Reads this machine, or the recording in `file`. Does not query programs for their heaps.
pub(crate) fn read_devices(file: Option<&PathBuf>) -> Result<Machine, Failure> {
    let Some(path) = file else { return Ok(Machine::read_devices(Here)) };
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::wrong_use(format!("--machine {name}: {error}; give a text file"))
    })?;
    let recording = Recording::parse(&text).map_err(|error| {
        Failure::wrong_use(format!("--machine {name} is no recorded machine: {error}"))
    })?;
    Ok(Machine::read_devices(recording))
}

/// Returns the devices of a machine, or only device `wanted`. Returns an error if none of these
/// devices answers.
pub(crate) fn devices(machine: &Machine, wanted: Option<u32>) -> Result<Vec<&Gpu>, Failure> {
    if machine.has_no_gpu() {
        return Err(Failure::environment_error(
            "no NVIDIA GPU: neither a device file in /dev nor the driver's library \
             libnvidia-ml.so.1; gpuheap status --device emulated shows an emulated one",
        ));
    }
    let nvml = machine.nvml.as_ref().map_err(|skipped| {
        Failure::environment_error(format!(
            "the NVIDIA driver's library cannot be used: {skipped}; see gpuheap doctor"
        ))
    })?;
    let is_wanted = |gpu: &&Gpu| wanted.is_none_or(|wanted| wanted == gpu.index);
    let devices: Vec<&Gpu> = nvml.devices.iter().filter(is_wanted).collect();
    let failure = match devices.iter().all(|gpu| gpu.failure.is_some()) {
        true => devices.first().and_then(|gpu| Some((gpu.to_string(), gpu.failure.as_ref()?))),
        false => None,
    };
    let failure =
        nvml.failure.as_ref().map(|failure| ("the NVIDIA driver".to_owned(), failure)).or(failure);
    if let Some((subject, failure)) = failure {
        return Err(Failure::environment_error(format!(
            "{subject} does not answer: {} (NVML error {}); see gpuheap doctor",
            failure.text, failure.code
        )));
    }
    match wanted.filter(|_| devices.is_empty()) {
        None => Ok(devices),
        Some(wanted) => Err(Failure::environment_error(format!(
            "there is no GPU {wanted}; this machine has {}, numbered from 0",
            nvml.devices.len()
        ))),
    }
}

/// Returns the columns of the terminal, or 80 if stdout is not a terminal.
pub(crate) fn width() -> usize {
    if !stdout().is_terminal() {
        return WIDTH;
    }
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| usize::from(width.0).max(40))
}
