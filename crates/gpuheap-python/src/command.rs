//! Runs the `gpuheap` command, explains out-of-memory errors and replays traces, for Python.

use std::ffi::OsString;
use std::path::PathBuf;

use gpuheap::Size;
use gpuheap_replay::replay::{DeviceChoice, Options, Pool, Silent};
use gpuheap_replay::report::{self, Detail};
use gpuheap_replay::run::replay;
use gpuheap_replay::{cards, json};
use gpuheap_trace::ReadOptions;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::failure::{call_detached, detached};

/// Runs the command. The first argument is the program's name. Returns the exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    call_detached(py, || Ok(gpuheap_cli::run(arguments)))
}

/// The program, cause, evidence, fix and `from_documentation` of an explanation, and its text.
type Explained = (&'static str, String, Vec<(&'static str, u64)>, String, bool, String);

/// Explains the out-of-memory error in a text. Returns `None` if the text contains no known error.
#[pyfunction]
#[pyo3(signature = (text, width=80))]
pub(crate) fn _explain(py: Python<'_>, text: &str, width: usize) -> PyResult<Option<Explained>> {
    let found = detached(py, || {
        let host = gpuheap_doctor::machine::Host::here();
        // The error may come from another machine, so a host without WSL 2 does not rule out WSL 2.
        let on_wsl2 = host.is_ok_and(|host| host.is_wsl).then_some(true);
        let found = gpuheap_doctor::explain_error(text, on_wsl2)?;
        let rendered = found.render(width);
        Some((found, rendered))
    })?;
    Ok(found.map(|(found, rendered)| {
        (found.program, found.cause, found.evidence, found.fix, found.from_documentation, rendered)
    }))
}

/// Replays the traces of a file. Returns the reports as JSON and as text. Blocks until the replays
/// end.
#[pyfunction]
#[pyo3(signature = (path, *, pools=Vec::new(), check=None, card=None, device_memory=None, limit=None, find_minimum=false, recorded_only=false))]
#[allow(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn _replay(
    py: Python<'_>,
    path: PathBuf,
    pools: Vec<String>,
    check: Option<&str>,
    card: Option<&str>,
    device_memory: Option<String>,
    limit: Option<String>,
    find_minimum: bool,
    recorded_only: bool,
) -> PyResult<(String, String)> {
    let pools = pools.iter().map(|name| Pool::parse(name).map_err(refused));
    let options = Options {
        pools: pools.collect::<PyResult<_>>()?,
        check: check.map(Pool::parse).transpose().map_err(refused)?,
        device: device(card, device_memory)?,
        limit: limit.as_deref().map(Size::parse).transpose().map_err(refused)?,
        limit_typed: limit,
        find_minimum,
        ..Options::default()
    };
    let reading = ReadOptions::default().recorded_only(recorded_only);
    detached(py, || {
        let is_there = path.is_file();
        let traces = gpuheap_trace::read(&path, &reading).map_err(|error| match is_there {
            true => refused(error),
            false => PyOSError::new_err(error.to_string()),
        })?;
        let reports = replay(&traces, &options, &Silent).map_err(refused)?;
        let figures = json::render(&reports).map_err(refused)?;
        Ok((figures, report::render(&reports, Detail::Screen)))
    })?
}

fn device(card: Option<&str>, memory: Option<String>) -> PyResult<DeviceChoice> {
    match (card, memory) {
        (Some(_), Some(_)) => Err(refused("card and device_memory exclude each other; pass one")),
        (Some(name), None) => Ok(DeviceChoice::Card(cards::find(name).map_err(refused)?)),
        (None, Some(typed)) => match Size::parse(&typed).map_err(refused)? {
            Size::Bytes(bytes) => Ok(DeviceChoice::Memory { profile: None, bytes, typed }),
            _ => Err(refused(format!(
                "device_memory={typed:?} is a share; pass bytes or a unit (\"16GiB\")"
            ))),
        },
        (None, None) => Ok(DeviceChoice::Default),
    }
}

fn refused(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}
