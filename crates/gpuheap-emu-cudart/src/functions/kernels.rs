//! Functions that launch kernels, and functions that read a kernel's properties.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gpuheap_driver::{CUfunction, CUfunction_attribute, CUlaunchConfig, CUresult, CUstream};

use crate::error::{INVALID_CONFIGURATION, In, Out, Outcome, call};
use crate::functions::args;
use crate::kernels;
use crate::types::{Dim3, FunctionAttributes, LaunchConfig};

pub(crate) fn launch(
    function: CUfunction,
    grid: Dim3,
    block: Dim3,
    arguments: Out<*mut c_void>,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let ([x, y, z], [a, b, c], shared) = (grid.sizes(), block.sizes(), shared_bytes as c_uint);
    let extra = ptr::null_mut();
    launched(call!(cuLaunchKernel(function, x, y, z, a, b, c, shared, stream, arguments, extra)))
}

pub(crate) fn cudaLaunchCooperativeKernel(
    (function, grid, block, arguments, shared_bytes, stream): args::cudaLaunchCooperativeKernel,
) -> Outcome {
    let function = kernels::function(function)?;
    let ([x, y, z], [a, b, c], shared) = (grid.sizes(), block.sizes(), shared_bytes as c_uint);
    launched(call!(cuLaunchCooperativeKernel(
        function, x, y, z, a, b, c, shared, stream, arguments
    )))
}

pub(crate) fn cudaLaunchKernelExC(
    (config, function, arguments): args::cudaLaunchKernelExC,
) -> Outcome {
    let config = driver_config(config)?;
    let function = kernels::function(function)?;
    launched(call!(cuLaunchKernelEx(&config, function, arguments, ptr::null_mut())))
}

pub(crate) fn __cudaPopCallConfiguration(
    (grid, block, shared_bytes, stream): args::__cudaPopCallConfiguration,
) -> Outcome {
    let found = kernels::pop_configuration()?;
    grid.write(found.grid)?;
    block.write(found.block)?;
    shared_bytes.write(found.shared_bytes)?;
    stream.write(found.stream)
}

pub(crate) fn cudaFuncGetAttributes(
    (attributes, function): args::cudaFuncGetAttributes,
) -> Outcome {
    let function = kernels::function(function)?;
    let get = |number: c_int| {
        let mut value = 0;
        call!(cuFuncGetAttribute(&mut value, CUfunction_attribute(number), function))?;
        Outcome::Ok(value)
    };
    let mut numbers = [get(0)?; 11];
    for (number, place) in (4..).zip(&mut numbers[1..]) {
        *place = get(number)?;
    }
    attributes.write(FunctionAttributes {
        shared_bytes: get(1)? as usize,
        constant_bytes: get(2)? as usize,
        local_bytes: get(3)? as usize,
        numbers,
        cluster_scheduling: get(15)?,
        non_portable_cluster: get(14)?,
        reserved: [0; 16],
    })
}

/// Converts the outcome of a launch. For invalid sizes, the runtime's code differs from the
/// driver's.
fn launched(outcome: Outcome) -> Outcome {
    outcome.map_err(|code| match code {
        CUresult::ERROR_INVALID_VALUE => INVALID_CONFIGURATION,
        code => code,
    })
}

/// Converts a launch configuration to the driver's type.
pub(crate) fn driver_config(config: In<LaunchConfig>) -> Outcome<CUlaunchConfig> {
    let config = config.get()?;
    Ok(CUlaunchConfig {
        gridDimX: config.grid.x,
        gridDimY: config.grid.y,
        gridDimZ: config.grid.z,
        blockDimX: config.block.x,
        blockDimY: config.block.y,
        blockDimZ: config.block.z,
        sharedMemBytes: config.shared_bytes as c_uint,
        hStream: config.stream,
        attrs: config.attributes,
        numAttrs: config.count,
    })
}
