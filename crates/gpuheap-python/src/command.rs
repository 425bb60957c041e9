//! The command `gpuheap`, run inside the interpreter.

use std::ffi::OsString;

use pyo3::prelude::*;

use crate::failure::call_detached;

/// Runs the command with its arguments, the program's name first. Returns the exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    call_detached(py, || Ok(gpuheap_cli::run(arguments)))
}
