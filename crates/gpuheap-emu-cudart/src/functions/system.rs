//! Functions for versions, and for access to the driver's functions.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::{CUevent, CUgraph, CUresult, CUstream};

use super::entered;
use crate::call::driver;
use crate::error::{Out, Outcome, Text, call};
use crate::not_modelled::refusing;
use crate::version;

/// Versions of the runtime that this library reports to programs of CUDA 12 and of CUDA 13, as 1000
/// × major + 10 × minor.
const VERSIONS: [c_int; 2] = [12_090, 13_000];

pub(crate) fn cudaRuntimeGetVersion(version: Out<c_int>) -> Outcome {
    version.write(runtime_version())
}

/// Status of a lookup that found the function.
const FOUND: c_int = 0;

pub(crate) fn cudaDriverGetVersion(version: Out<c_int>) -> Outcome {
    version.write(driver().map_or(0, |driver| driver.version()))
}

pub(crate) fn cudaGetDriverEntryPoint(
    symbol: Text,
    function: Out<*mut c_void>,
    flags: u64,
    status: Out<c_int>,
) -> Outcome {
    let version = runtime_version().min(driver()?.version());
    cudaGetDriverEntryPointByVersion(symbol, function, version.cast_unsigned(), flags, status)
}

pub(crate) fn cudaGetDriverEntryPointByVersion(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_uint,
    flags: u64,
    status: Out<c_int>,
) -> Outcome {
    let version = version.cast_signed();
    let found = call!(driver()?, cuGetProcAddress_v2(symbol, function, version, flags, status));
    let Ok(null) = function.get() else { return found };
    if !null.is_null() {
        return found;
    }
    let Some(refusing) = symbol.text().ok().and_then(|symbol| refusing(&symbol)) else {
        return found;
    };
    function.write(refusing)?;
    status.write_if_wanted(FOUND)
}

pub(crate) fn cudaStreamCreate(stream: Out<CUstream>) -> Outcome {
    call!(entered()?, cuStreamCreate(stream, 0_u32))
}

pub(crate) fn cudaEventCreate(event: Out<CUevent>) -> Outcome {
    call!(entered()?, cuEventCreate(event, 0_u32))
}

pub(crate) fn cudaGraphDebugDotPrint(_graph: CUgraph, path: Text, _flags: c_uint) -> Outcome {
    std::fs::write(path.text()?, "digraph dot {\n}\n").map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

fn runtime_version() -> c_int {
    VERSIONS[usize::from(version::major() == 13)]
}
