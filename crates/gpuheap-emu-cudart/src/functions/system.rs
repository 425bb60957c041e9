//! Functions that look up the driver's functions, and a function that prints graphs.

use std::ffi::c_int;

use gpuheap_driver::CUresult;

use crate::error::{Outcome, call, driver};
use crate::functions::args;
use crate::not_modelled::refusing;
use crate::version;

/// Status of a lookup that found the function.
const FOUND: c_int = 0;

pub(crate) fn cudaGetDriverEntryPoint(
    (symbol, function, flags, status): args::cudaGetDriverEntryPoint,
) -> Outcome {
    let version = version::runtime().min(driver()?.version()).cast_unsigned();
    cudaGetDriverEntryPointByVersion((symbol, function, version, flags, status))
}

pub(crate) fn cudaGetDriverEntryPointByVersion(
    (symbol, function, version, flags, status): args::cudaGetDriverEntryPointByVersion,
) -> Outcome {
    let version = version.cast_signed();
    let found = call!(cuGetProcAddress_v2(symbol, function, version, flags, status));
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

pub(crate) fn cudaGraphDebugDotPrint(
    (_graph, path, _flags): args::cudaGraphDebugDotPrint,
) -> Outcome {
    std::fs::write(path.text()?, "digraph dot {\n}\n").map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}
