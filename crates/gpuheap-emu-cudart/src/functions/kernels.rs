//! Functions that launch kernels, and functions for properties of kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use gpuheap_driver::{
    CUfunction, CUfunction_attribute, CUkernel, CUlaunchConfig, CUresult, CUstream, LibCuda,
};

use super::entered;
use crate::error::{INVALID_CONFIGURATION, In, Out, Outcome, call};
use crate::kernels;
use crate::types::{Dim3, FunctionAttributes, LaunchConfig};

pub(crate) fn cudaLaunchKernel(
    function: In<c_void>,
    grid: Dim3,
    block: Dim3,
    arguments: Out<*mut c_void>,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    launch(driver, function, (grid, block), arguments, shared_bytes, stream)
}

pub(crate) fn cudaLaunchCooperativeKernel(
    function: In<c_void>,
    grid: Dim3,
    block: Dim3,
    arguments: Out<*mut c_void>,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    launched(call!(
        driver,
        cuLaunchCooperativeKernel(
            function,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            shared_bytes as c_uint,
            stream,
            arguments,
        )
    ))
}

pub(crate) fn cudaLaunchKernelExC(
    config: In<LaunchConfig>,
    function: In<c_void>,
    arguments: Out<*mut c_void>,
) -> Outcome {
    let driver = entered()?;
    let config = driver_config(config)?;
    let function = kernels::function(driver, function)?;
    launched(call!(
        driver,
        cuLaunchKernelEx(&raw const config, function, arguments, ptr::null_mut())
    ))
}

pub(crate) fn __cudaLaunchKernel(
    kernel: CUkernel,
    grid: Dim3,
    block: Dim3,
    arguments: Out<*mut c_void>,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let function = CUfunction(kernel.0);
    launch(driver, function, (grid, block), arguments, shared_bytes, stream)
}

pub(crate) fn __cudaGetKernel(kernel: Out<CUkernel>, function: In<c_void>) -> Outcome {
    let found = kernels::kernel(entered()?, function)?;
    kernel.write(found)
}

pub(crate) fn cudaGetKernel(kernel: Out<CUkernel>, function: In<c_void>) -> Outcome {
    __cudaGetKernel(kernel, function)
}

pub(crate) fn cudaGetFuncBySymbol(function: Out<CUfunction>, symbol: In<c_void>) -> Outcome {
    let found = kernels::function(entered()?, symbol)?;
    function.write(found)
}

pub(crate) fn __cudaPopCallConfiguration(
    grid: Out<Dim3>,
    block: Out<Dim3>,
    shared_bytes: Out<usize>,
    stream: Out<CUstream>,
) -> Outcome {
    let found = kernels::pop_configuration()?;
    grid.write(found.grid)?;
    block.write(found.block)?;
    shared_bytes.write(found.shared_bytes)?;
    stream.write(found.stream)
}

pub(crate) fn cudaFuncGetAttributes(
    attributes: Out<FunctionAttributes>,
    function: In<c_void>,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    let get = |number: c_int| {
        let attribute = CUfunction_attribute(number);
        let (outcome, value) =
            Out::local(0, |value| call!(driver, cuFuncGetAttribute(value, attribute, function)));
        outcome.map(|()| value)
    };
    let mut numbers = [get(0)?; 11];
    for (number, place) in (4..).zip(&mut numbers[1..]) {
        *place = get(number)?;
    }
    let found = FunctionAttributes {
        shared_bytes: get(1)? as usize,
        constant_bytes: get(2)? as usize,
        local_bytes: get(3)? as usize,
        numbers,
        cluster_scheduling: get(15)?,
        non_portable_cluster: get(14)?,
        reserved: [0; 16],
    };
    attributes.write(found)
}

pub(crate) fn cudaFuncSetAttribute(
    function: In<c_void>,
    attribute: CUfunction_attribute,
    value: c_int,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    call!(driver, cuFuncSetAttribute(function, attribute, value))
}

pub(crate) fn cudaFuncSetCacheConfig(function: In<c_void>, preference: c_int) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    call!(driver, cuFuncSetCacheConfig(function, preference))
}

pub(crate) fn cudaFuncGetName(name: Out<*const c_char>, function: In<c_void>) -> Outcome {
    let found = kernels::name(function)?;
    name.write(found)
}

pub(crate) fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    count: Out<c_int>,
    function: In<c_void>,
    block_threads: c_int,
    shared_bytes: usize,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    call!(
        driver,
        cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, block_threads, shared_bytes,)
    )
}

pub(crate) fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: Out<c_int>,
    function: In<c_void>,
    block_threads: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    call!(
        driver,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            count,
            function,
            block_threads,
            shared_bytes,
            flags,
        )
    )
}

pub(crate) fn cudaOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: In<c_void>,
    blocks: c_int,
    block_threads: c_int,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    call!(driver, cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, block_threads))
}

pub(crate) fn cudaOccupancyMaxPotentialClusterSize(
    blocks: Out<c_int>,
    function: In<c_void>,
    config: In<LaunchConfig>,
) -> Outcome {
    let driver = entered()?;
    let config = driver_config(config)?;
    let function = kernels::function(driver, function)?;
    call!(driver, cuOccupancyMaxPotentialClusterSize(blocks, function, &raw const config))
}

pub(crate) fn cudaOccupancyMaxActiveClusters(
    clusters: Out<c_int>,
    function: In<c_void>,
    config: In<LaunchConfig>,
) -> Outcome {
    let driver = entered()?;
    let config = driver_config(config)?;
    let function = kernels::function(driver, function)?;
    call!(driver, cuOccupancyMaxActiveClusters(clusters, function, &raw const config))
}

/// Launches a kernel.
fn launch(
    driver: &LibCuda,
    function: CUfunction,
    (grid, block): (Dim3, Dim3),
    arguments: Out<*mut c_void>,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    launched(call!(
        driver,
        cuLaunchKernel(
            function,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            shared_bytes as c_uint,
            stream,
            arguments,
            ptr::null_mut(),
        )
    ))
}

/// Converts the driver's outcome of a launch to the runtime's. For invalid sizes, the runtime has a
/// different code.
fn launched(outcome: Outcome) -> Outcome {
    outcome.map_err(|code| match code {
        CUresult::ERROR_INVALID_VALUE => INVALID_CONFIGURATION,
        code => code,
    })
}

/// Converts a launch configuration to the driver's type.
fn driver_config(config: In<LaunchConfig>) -> Outcome<CUlaunchConfig> {
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
