//! Functions for allocations and pointers.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gpuheap_driver::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemoryPool, CUmemorytype, CUpointer_attribute,
    CUresult, CUstream,
};

use super::entered;
use crate::error::{Out, Outcome, call};
use crate::types::PointerAttributes;
use crate::version;

/// Element size to request for pitched memory, bytes. It is the largest that the driver takes, so
/// the pitch is aligned for all element sizes.
const ELEMENT: c_uint = 16;
/// Device ordinal to return for a pointer that belongs to no device.
const NO_DEVICE: c_int = -2;
/// Kinds of memory that a pointer can point to.
const UNREGISTERED: c_int = 0;
const MANAGED: c_int = 3;
/// Bytes of zeros that follow the attributes of a pointer in CUDA 13.
const RESERVED_IN_13: usize = 64;

pub(crate) fn cudaMalloc(pointer: Out<CUdeviceptr>, bytes: usize) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        return pointer.write(0);
    }
    call!(driver, cuMemAlloc_v2(pointer, bytes))
}

pub(crate) fn cudaMallocPitch(
    pointer: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
) -> Outcome {
    let driver = entered()?;
    if width == 0 || height == 0 {
        return pointer.write(0).and_then(|()| pitch.write(0));
    }
    call!(driver, cuMemAllocPitch_v2(pointer, pitch, width, height, ELEMENT))
}

pub(crate) fn cudaMallocHost(pointer: Out<*mut c_void>, bytes: usize) -> Outcome {
    cudaHostAlloc(pointer, bytes, 0)
}

pub(crate) fn cudaHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: c_uint) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        return pointer.write(ptr::null_mut());
    }
    call!(driver, cuMemHostAlloc(pointer, bytes, flags))
}

pub(crate) fn cudaFreeHost(pointer: Out<c_void>) -> Outcome {
    let driver = entered()?;
    if pointer.is_null() {
        return Ok(());
    }
    call!(driver, cuMemFreeHost(pointer))
}

pub(crate) fn cudaMallocAsync(
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        return pointer.write(0);
    }
    call!(driver, cuMemAllocAsync(pointer, bytes, stream))
}

pub(crate) fn cudaMallocFromPoolAsync(
    pointer: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        return pointer.write(0);
    }
    call!(driver, cuMemAllocFromPoolAsync(pointer, bytes, pool, stream))
}

pub(crate) fn cudaPointerGetAttributes(
    attributes: Out<PointerAttributes>,
    pointer: CUdeviceptr,
) -> Outcome {
    let driver = entered()?;
    let mut found = PointerAttributes {
        kind: UNREGISTERED,
        device: NO_DEVICE,
        device_pointer: ptr::null_mut(),
        host_pointer: ptr::with_exposed_provenance_mut(pointer as usize),
    };
    type A = CUpointer_attribute;
    let get = |place: Out<c_void>, attribute| {
        call!(driver, cuPointerGetAttribute(place, attribute, pointer))
    };
    let (outcome, kind) = Out::local(0_i32, |kind| get(kind.cast(), A::MEMORY_TYPE));
    match outcome {
        Ok(()) => {
            let (outcome, managed) =
                Out::local(0_u32, |managed| get(managed.cast(), A::IS_MANAGED));
            outcome?;
            let (outcome, device) = Out::local(0, |device| get(device.cast(), A::DEVICE_ORDINAL));
            outcome?;
            found.device = device;
            found.kind = if managed != 0 { MANAGED } else { kind };
            // If only the host or only the device sees the memory, the other side's address is
            // missing.
            let address = |attribute| {
                let (outcome, address) =
                    Out::local(ptr::null_mut(), |place| get(place.cast(), attribute));
                outcome.map_or(ptr::null_mut(), |()| address)
            };
            found.device_pointer = address(A::DEVICE_POINTER);
            found.host_pointer = match found.kind == CUmemorytype::DEVICE.0 {
                true => ptr::null_mut(),
                false => address(A::HOST_POINTER),
            };
        }
        Err(CUresult::ERROR_INVALID_VALUE) => {}
        Err(code) => return Err(code),
    }
    attributes.write(found)?;
    match version::major() {
        13 => attributes.at(1).cast().write([0_u8; RESERVED_IN_13]),
        _ => Ok(()),
    }
}

pub(crate) fn cudaMemAdvise(
    pointer: CUdeviceptr,
    bytes: usize,
    advice: c_int,
    place: u64,
) -> Outcome {
    call!(entered()?, cuMemAdvise_v2(pointer, bytes, advice, location(place)))
}

pub(crate) fn cudaMemPrefetchAsync(
    pointer: CUdeviceptr,
    bytes: usize,
    place: u64,
    flags_or_stream: usize,
    stream: CUstream,
) -> Outcome {
    let (flags, stream) = match version::major() {
        12 => (0, CUstream(flags_or_stream)),
        _ => (flags_or_stream as c_uint, stream),
    };
    let driver = entered()?;
    call!(driver, cuMemPrefetchAsync_v2(pointer, bytes, location(place), flags, stream))
}

/// Converts an argument to a location. In CUDA 12, the argument is a device's ordinal, or -1 for
/// the host. In CUDA 13, it is a location.
fn location(place: u64) -> CUmemLocation {
    let (low, high) = (place as u32, (place >> 32) as u32);
    match (version::major(), low.cast_signed()) {
        (12, -1) => CUmemLocation { kind: CUmemLocationType::HOST, id: 0 },
        (12, device) => CUmemLocation::device(device),
        (_, kind) => CUmemLocation { kind: CUmemLocationType(kind), id: high.cast_signed() },
    }
}
