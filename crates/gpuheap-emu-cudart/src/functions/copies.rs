//! Copies and fills.

use std::ffi::{c_int, c_void};
use std::ptr;

use gpuheap_driver::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUresult, CUstream, Driver};

use super::{entered, write};
use crate::call::driver;
use crate::error::{INVALID_PITCH, Outcome, check};
use crate::{context, kernels};

/// Last kind of copy: the addresses tell the direction. They do so for the others too.
const LAST_KIND: c_int = 4;
/// Direction of a copy that is not one of the known.
const INVALID_DIRECTION: CUresult = CUresult(21);

pub(crate) unsafe fn cudaMemcpy(
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    kind: c_int,
) -> Outcome {
    let driver = entered()?;
    check_kind(kind)?;
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the caller promises both ranges.
    check(unsafe { driver.cuMemcpy(target, source, bytes) })
}

pub(crate) unsafe fn cudaMemcpyAsync(
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    kind: c_int,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    check_kind(kind)?;
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the caller promises both ranges and the handle.
    check(unsafe { driver.cuMemcpyAsync(target, source, bytes, stream) })
}

pub(crate) unsafe fn cudaMemcpyPeer(
    target: CUdeviceptr,
    target_device: c_int,
    source: CUdeviceptr,
    source_device: c_int,
    bytes: usize,
) -> Outcome {
    let driver = entered()?;
    let to = context::primary(driver, target_device)?;
    let from = context::primary(driver, source_device)?;
    // SAFETY: the caller promises both ranges.
    check(unsafe { driver.cuMemcpyPeer(target, to, source, from, bytes) })
}

pub(crate) unsafe fn cudaMemcpyPeerAsync(
    target: CUdeviceptr,
    target_device: c_int,
    source: CUdeviceptr,
    source_device: c_int,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    let to = context::primary(driver, target_device)?;
    let from = context::primary(driver, source_device)?;
    // SAFETY: the caller promises both ranges and the handle.
    check(unsafe { driver.cuMemcpyPeerAsync(target, to, source, from, bytes, stream) })
}

pub(crate) unsafe fn cudaMemcpy2D(
    target: CUdeviceptr,
    target_pitch: usize,
    source: CUdeviceptr,
    source_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> Outcome {
    let driver = entered()?;
    check_kind(kind)?;
    let copy = rectangle((target, target_pitch), (source, source_pitch), (width, height))?;
    // SAFETY: the caller promises both rectangles.
    check(unsafe { driver.cuMemcpy2DUnaligned_v2(&copy) })
}

#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn cudaMemcpy2DAsync(
    target: CUdeviceptr,
    target_pitch: usize,
    source: CUdeviceptr,
    source_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    check_kind(kind)?;
    let copy = rectangle((target, target_pitch), (source, source_pitch), (width, height))?;
    // SAFETY: the caller promises both rectangles and the handle.
    check(unsafe { driver.cuMemcpy2DAsync_v2(&copy, stream) })
}

pub(crate) unsafe fn cudaMemcpyToSymbol(
    symbol: *const c_void,
    source: CUdeviceptr,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Outcome {
    let target = within(symbol, offset, bytes)?;
    // SAFETY: the target is inside the variable, and the caller promises the source.
    unsafe { cudaMemcpy(target, source, bytes, kind) }
}

pub(crate) unsafe fn cudaMemcpyToSymbolAsync(
    symbol: *const c_void,
    source: CUdeviceptr,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Outcome {
    let target = within(symbol, offset, bytes)?;
    // SAFETY: the target is inside the variable, and the caller promises the source.
    unsafe { cudaMemcpyAsync(target, source, bytes, kind, stream) }
}

pub(crate) unsafe fn cudaMemcpyFromSymbol(
    target: CUdeviceptr,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Outcome {
    let source = within(symbol, offset, bytes)?;
    // SAFETY: the source is inside the variable, and the caller promises the target.
    unsafe { cudaMemcpy(target, source, bytes, kind) }
}

pub(crate) unsafe fn cudaMemcpyFromSymbolAsync(
    target: CUdeviceptr,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Outcome {
    let source = within(symbol, offset, bytes)?;
    // SAFETY: the source is inside the variable, and the caller promises the target.
    unsafe { cudaMemcpyAsync(target, source, bytes, kind, stream) }
}

pub(crate) unsafe fn cudaMemset(pointer: CUdeviceptr, value: c_int, bytes: usize) -> Outcome {
    // SAFETY: the caller promises the range.
    check(unsafe { entered()?.cuMemsetD8_v2(pointer, value as u8, bytes) })
}

pub(crate) unsafe fn cudaMemsetAsync(
    pointer: CUdeviceptr,
    value: c_int,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the caller promises the range and the handle.
    check(unsafe { entered()?.cuMemsetD8Async(pointer, value as u8, bytes, stream) })
}

pub(crate) unsafe fn cudaMemset2D(
    pointer: CUdeviceptr,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
) -> Outcome {
    // SAFETY: the caller promises the rectangle.
    check(unsafe { entered()?.cuMemsetD2D8_v2(pointer, pitch, value as u8, width, height) })
}

pub(crate) unsafe fn cudaMemset2DAsync(
    pointer: CUdeviceptr,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    // SAFETY: the caller promises the rectangle and the handle.
    check(unsafe { driver.cuMemsetD2D8Async(pointer, pitch, value as u8, width, height, stream) })
}

pub(crate) unsafe fn cudaGetSymbolAddress(
    pointer: *mut CUdeviceptr,
    symbol: *const c_void,
) -> Outcome {
    let address = within(symbol, 0, 0)?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(pointer, address) }
}

pub(crate) unsafe fn cudaGetSymbolSize(bytes: *mut usize, symbol: *const c_void) -> Outcome {
    driver()?;
    let found = kernels::variable_bytes(symbol)?;
    // SAFETY: the caller promises the pointer.
    unsafe { write(bytes, found) }
}

/// Returns the address of bytes of a variable.
fn within(symbol: *const c_void, offset: usize, bytes: usize) -> Outcome<CUdeviceptr> {
    let driver = entered()?;
    let (address, size) = kernels::variable(driver, context::device(driver)?, symbol)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= size);
    if fits { Ok(address + offset as u64) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

fn check_kind(kind: c_int) -> Outcome {
    if (0..=LAST_KIND).contains(&kind) { Ok(()) } else { Err(INVALID_DIRECTION) }
}

fn rectangle(
    (target, target_pitch): (CUdeviceptr, usize),
    (source, source_pitch): (CUdeviceptr, usize),
    (width, height): (usize, usize),
) -> Outcome<CUDA_MEMCPY2D> {
    if target_pitch < width || source_pitch < width {
        return Err(INVALID_PITCH);
    }
    Ok(CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::UNIFIED,
        srcHost: ptr::null(),
        srcDevice: source,
        srcArray: ptr::null_mut(),
        srcPitch: source_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::UNIFIED,
        dstHost: ptr::null_mut(),
        dstDevice: target,
        dstArray: ptr::null_mut(),
        dstPitch: target_pitch,
        WidthInBytes: width,
        Height: height,
    })
}
