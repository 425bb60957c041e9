//! Functions that copy and fill memory.

use std::ffi::{c_int, c_void};
use std::ptr;

use gpuheap_driver::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUresult};

use crate::error::{INVALID_PITCH, In, Outcome, call};
use crate::functions::args;
use crate::{context, kernels};

/// Highest valid kind of copy, `cudaMemcpyDefault`. A valid kind has no effect, because the
/// addresses determine the direction.
const LAST_KIND: c_int = 4;
/// Code `cudaErrorInvalidMemcpyDirection`. It means that the kind of copy is unknown.
const INVALID_DIRECTION: CUresult = CUresult(21);

pub(crate) fn cudaMemcpy((target, source, bytes, kind): args::cudaMemcpy) -> Outcome {
    check_kind(kind)?;
    if bytes == 0 {
        return Ok(());
    }
    call!(cuMemcpy(target, source, bytes))
}

pub(crate) fn cudaMemcpyAsync(
    (target, source, bytes, kind, stream): args::cudaMemcpyAsync,
) -> Outcome {
    check_kind(kind)?;
    if bytes == 0 {
        return Ok(());
    }
    call!(cuMemcpyAsync(target, source, bytes, stream))
}

/// Returns the device address at `offset` in a variable. Fails if `offset + bytes` exceeds the
/// variable's size.
pub(crate) fn within(symbol: In<c_void>, offset: usize, bytes: usize) -> Outcome<CUdeviceptr> {
    let (address, size) = kernels::variable(context::device()?, symbol)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= size);
    if fits { Ok(address + offset as u64) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

fn check_kind(kind: c_int) -> Outcome {
    if (0..=LAST_KIND).contains(&kind) { Ok(()) } else { Err(INVALID_DIRECTION) }
}

/// Returns the driver's description of a two-dimensional copy.
pub(crate) fn rectangle(
    kind: c_int,
    (target, target_pitch): (CUdeviceptr, usize),
    (source, source_pitch): (CUdeviceptr, usize),
    (width, height): (usize, usize),
) -> Outcome<CUDA_MEMCPY2D> {
    check_kind(kind)?;
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
