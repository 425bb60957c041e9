//! Launches, and properties of kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use gpuheap_driver::{
    CUfunction, CUfunction_attribute, CUkernel, CUlaunchConfig, CUresult, CUstream, Driver, LibCuda,
};

use super::{entered, write};
use crate::error::{INVALID_CONFIGURATION, Outcome, check};
use crate::kernels;
use crate::types::{Dim3, FunctionAttributes, LaunchConfig};

pub(crate) unsafe fn cudaLaunchKernel(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the arguments and the handle.
    unsafe { launch(driver, function, (grid, block), arguments, shared_bytes, stream) }
}

pub(crate) unsafe fn cudaLaunchCooperativeKernel(
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the arguments and the handle.
    let code = unsafe {
        driver.cuLaunchCooperativeKernel(
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
    };
    launched(code)
}

pub(crate) unsafe fn cudaLaunchKernelExC(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *mut *mut c_void,
) -> Outcome {
    let driver = entered()?;
    // SAFETY: the caller promises the configuration.
    let config = unsafe { driver_config(config) }?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the arguments, the attributes and the handle.
    launched(unsafe { driver.cuLaunchKernelEx(&config, function, arguments, ptr::null_mut()) })
}

pub(crate) unsafe fn __cudaLaunchKernel(
    kernel: CUkernel,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let function = CUfunction(kernel.0);
    // SAFETY: the caller promises the arguments and the handles.
    unsafe { launch(driver, function, (grid, block), arguments, shared_bytes, stream) }
}

pub(crate) unsafe fn __cudaGetKernel(kernel: *mut CUkernel, function: *const c_void) -> Outcome {
    let found = kernels::kernel(entered()?, function)?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(kernel, found) }
}

pub(crate) unsafe fn cudaGetKernel(kernel: *mut CUkernel, function: *const c_void) -> Outcome {
    // SAFETY: the caller promises the pointer.
    unsafe { __cudaGetKernel(kernel, function) }
}

pub(crate) unsafe fn cudaGetFuncBySymbol(
    function: *mut CUfunction,
    symbol: *const c_void,
) -> Outcome {
    let found = kernels::function(entered()?, symbol)?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(function, found) }
}

pub(crate) unsafe fn __cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared_bytes: *mut usize,
    stream: *mut CUstream,
) -> Outcome {
    let found = kernels::pop_configuration()?;
    // SAFETY: the caller promises the pointers.
    unsafe {
        write(grid, found.grid)?;
        write(block, found.block)?;
        write(shared_bytes, found.shared_bytes)?;
        write(stream, found.stream)
    }
}

pub(crate) unsafe fn cudaFuncGetAttributes(
    attributes: *mut FunctionAttributes,
    function: *const c_void,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    let get = |number: c_int| {
        let mut value = 0;
        // SAFETY: the pointer is valid for a write.
        check(unsafe {
            driver.cuFuncGetAttribute(&mut value, CUfunction_attribute(number), function)
        })?;
        Ok(value)
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
    // SAFETY: the caller promises the pointer.
    unsafe { write(attributes, found) }
}

pub(crate) unsafe fn cudaFuncSetAttribute(
    function: *const c_void,
    attribute: CUfunction_attribute,
    value: c_int,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: no pointers.
    check(unsafe { driver.cuFuncSetAttribute(function, attribute, value) })
}

pub(crate) unsafe fn cudaFuncSetCacheConfig(function: *const c_void, preference: c_int) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: no pointers.
    check(unsafe { driver.cuFuncSetCacheConfig(function, preference) })
}

pub(crate) unsafe fn cudaFuncGetName(name: *mut *const c_char, function: *const c_void) -> Outcome {
    let found = kernels::name(function)?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(name, found) }
}

pub(crate) unsafe fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    count: *mut c_int,
    function: *const c_void,
    block_threads: c_int,
    shared_bytes: usize,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the pointer.
    check(unsafe {
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            count,
            function,
            block_threads,
            shared_bytes,
        )
    })
}

pub(crate) unsafe fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: *mut c_int,
    function: *const c_void,
    block_threads: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the pointer.
    check(unsafe {
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            count,
            function,
            block_threads,
            shared_bytes,
            flags,
        )
    })
}

pub(crate) unsafe fn cudaOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: *const c_void,
    blocks: c_int,
    block_threads: c_int,
) -> Outcome {
    let driver = entered()?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the pointer.
    check(unsafe {
        driver.cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, block_threads)
    })
}

pub(crate) unsafe fn cudaOccupancyMaxPotentialClusterSize(
    blocks: *mut c_int,
    function: *const c_void,
    config: *const LaunchConfig,
) -> Outcome {
    let driver = entered()?;
    // SAFETY: the caller promises the configuration.
    let config = unsafe { driver_config(config) }?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver.cuOccupancyMaxPotentialClusterSize(blocks, function, &config) })
}

pub(crate) unsafe fn cudaOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: *const c_void,
    config: *const LaunchConfig,
) -> Outcome {
    let driver = entered()?;
    // SAFETY: the caller promises the configuration.
    let config = unsafe { driver_config(config) }?;
    let function = kernels::function(driver, function)?;
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver.cuOccupancyMaxActiveClusters(clusters, function, &config) })
}

/// Launches a kernel.
///
/// # Safety
///
/// The handles are of this driver, and the arguments are those of the kernel.
unsafe fn launch(
    driver: &LibCuda,
    function: CUfunction,
    (grid, block): (Dim3, Dim3),
    arguments: *mut *mut c_void,
    shared_bytes: usize,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the caller promises the arguments and the handles.
    let code = unsafe {
        driver.cuLaunchKernel(
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
    };
    launched(code)
}

/// Returns the outcome of a launch. The runtime has a code of its own for sizes that do not fit.
fn launched(code: CUresult) -> Outcome {
    match code {
        CUresult::ERROR_INVALID_VALUE => Err(INVALID_CONFIGURATION),
        code => check(code),
    }
}

/// Returns a configuration as the driver has it.
///
/// # Safety
///
/// `config` is null or valid for a read.
unsafe fn driver_config(config: *const LaunchConfig) -> Outcome<CUlaunchConfig> {
    // SAFETY: the caller promises the pointer.
    let config = unsafe { config.as_ref() }.ok_or(CUresult::ERROR_INVALID_VALUE)?;
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
