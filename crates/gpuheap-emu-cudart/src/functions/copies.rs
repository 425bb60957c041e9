//! Copies and fills.

use std::ffi::{c_int, c_void};
use std::ptr;

use gpuheap_driver::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUresult, CUstream};

use super::entered;
use crate::call::driver;
use crate::error::{INVALID_PITCH, In, Out, Outcome, call};
use crate::{context, kernels};

/// Highest valid kind of copy, `cudaMemcpyDefault`. A valid kind is otherwise ignored: the
/// addresses determine the direction.
const LAST_KIND: c_int = 4;
/// Code `cudaErrorInvalidMemcpyDirection`: the kind of copy is unknown.
const INVALID_DIRECTION: CUresult = CUresult(21);

pub(crate) fn cudaMemcpy(
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
    call!(driver, cuMemcpy(target, source, bytes))
}

pub(crate) fn cudaMemcpyAsync(
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
    call!(driver, cuMemcpyAsync(target, source, bytes, stream))
}

pub(crate) fn cudaMemcpyPeer(
    target: CUdeviceptr,
    target_device: c_int,
    source: CUdeviceptr,
    source_device: c_int,
    bytes: usize,
) -> Outcome {
    let driver = entered()?;
    let to = context::primary(driver, target_device)?;
    let from = context::primary(driver, source_device)?;
    call!(driver, cuMemcpyPeer(target, to, source, from, bytes))
}

pub(crate) fn cudaMemcpyPeerAsync(
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
    call!(driver, cuMemcpyPeerAsync(target, to, source, from, bytes, stream))
}

pub(crate) fn cudaMemcpy2D(
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
    call!(driver, cuMemcpy2DUnaligned_v2(&copy))
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn cudaMemcpy2DAsync(
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
    call!(driver, cuMemcpy2DAsync_v2(&copy, stream))
}

pub(crate) fn cudaMemcpyToSymbol(
    symbol: In<c_void>,
    source: CUdeviceptr,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Outcome {
    let target = within(symbol, offset, bytes)?;
    cudaMemcpy(target, source, bytes, kind)
}

pub(crate) fn cudaMemcpyToSymbolAsync(
    symbol: In<c_void>,
    source: CUdeviceptr,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Outcome {
    let target = within(symbol, offset, bytes)?;
    cudaMemcpyAsync(target, source, bytes, kind, stream)
}

pub(crate) fn cudaMemcpyFromSymbol(
    target: CUdeviceptr,
    symbol: In<c_void>,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Outcome {
    let source = within(symbol, offset, bytes)?;
    cudaMemcpy(target, source, bytes, kind)
}

pub(crate) fn cudaMemcpyFromSymbolAsync(
    target: CUdeviceptr,
    symbol: In<c_void>,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: CUstream,
) -> Outcome {
    let source = within(symbol, offset, bytes)?;
    cudaMemcpyAsync(target, source, bytes, kind, stream)
}

pub(crate) fn cudaMemset(pointer: CUdeviceptr, value: c_int, bytes: usize) -> Outcome {
    call!(entered()?, cuMemsetD8_v2(pointer, value as u8, bytes))
}

pub(crate) fn cudaMemsetAsync(
    pointer: CUdeviceptr,
    value: c_int,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    call!(entered()?, cuMemsetD8Async(pointer, value as u8, bytes, stream))
}

pub(crate) fn cudaMemset2D(
    pointer: CUdeviceptr,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
) -> Outcome {
    call!(entered()?, cuMemsetD2D8_v2(pointer, pitch, value as u8, width, height))
}

pub(crate) fn cudaMemset2DAsync(
    pointer: CUdeviceptr,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    call!(driver, cuMemsetD2D8Async(pointer, pitch, value as u8, width, height, stream))
}

pub(crate) fn cudaGetSymbolAddress(pointer: Out<CUdeviceptr>, symbol: In<c_void>) -> Outcome {
    let address = within(symbol, 0, 0)?;
    pointer.write(address)
}

pub(crate) fn cudaGetSymbolSize(bytes: Out<usize>, symbol: In<c_void>) -> Outcome {
    driver()?;
    let found = kernels::variable_bytes(symbol)?;
    bytes.write(found)
}

/// Returns the device address of the byte at `offset` in a variable. Checks that `bytes` from that
/// address are within the variable.
fn within(symbol: In<c_void>, offset: usize, bytes: usize) -> Outcome<CUdeviceptr> {
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
