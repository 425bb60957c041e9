//! Functions for allocations and pointers.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gpuheap_driver::{
    CUmemLocation, CUmemLocationType, CUmemorytype, CUpointer_attribute, CUresult, CUstream,
};

use crate::error::{Outcome, call};
use crate::functions::args;
use crate::types::PointerAttributes;
use crate::version;

/// Element size for pitched memory, in bytes. It is the largest size that the driver accepts, so
/// the pitch is aligned for all element sizes.
const ELEMENT: c_uint = 16;
/// Device ordinal of a pointer that belongs to no device.
const NO_DEVICE: c_int = -2;
/// Values of `cudaMemoryType`.
const UNREGISTERED: c_int = 0;
const MANAGED: c_int = 3;
/// Number of zero bytes that follow a pointer's attributes in CUDA 13.
const RESERVED_IN_13: usize = 64;

pub(crate) fn cudaMalloc((pointer, bytes): args::cudaMalloc) -> Outcome {
    if bytes == 0 { pointer.write(0) } else { call!(cuMemAlloc_v2(pointer, bytes)) }
}

pub(crate) fn cudaMallocPitch((pointer, pitch, width, height): args::cudaMallocPitch) -> Outcome {
    if width == 0 || height == 0 {
        return pointer.write(0).and_then(|()| pitch.write(0));
    }
    call!(cuMemAllocPitch_v2(pointer, pitch, width, height, ELEMENT))
}

pub(crate) fn cudaHostAlloc((pointer, bytes, flags): args::cudaHostAlloc) -> Outcome {
    if bytes == 0 {
        return pointer.write(ptr::null_mut());
    }
    call!(cuMemHostAlloc(pointer, bytes, flags))
}

pub(crate) fn cudaFreeHost(pointer: args::cudaFreeHost) -> Outcome {
    if pointer.is_null() { Ok(()) } else { call!(cuMemFreeHost(pointer)) }
}

pub(crate) fn cudaMallocAsync((pointer, bytes, stream): args::cudaMallocAsync) -> Outcome {
    if bytes == 0 { pointer.write(0) } else { call!(cuMemAllocAsync(pointer, bytes, stream)) }
}

pub(crate) fn cudaMallocFromPoolAsync(
    (pointer, bytes, pool, stream): args::cudaMallocFromPoolAsync,
) -> Outcome {
    if bytes == 0 {
        return pointer.write(0);
    }
    call!(cuMemAllocFromPoolAsync(pointer, bytes, pool, stream))
}

pub(crate) fn cudaPointerGetAttributes(
    (attributes, pointer): args::cudaPointerGetAttributes,
) -> Outcome {
    type A = CUpointer_attribute;
    let mut found = PointerAttributes {
        kind: UNREGISTERED,
        device: NO_DEVICE,
        device_pointer: ptr::null_mut(),
        host_pointer: ptr::with_exposed_provenance_mut(pointer as usize),
    };
    let get =
        |place: *mut c_void, attribute| call!(cuPointerGetAttribute(place, attribute, pointer));
    let mut kind = UNREGISTERED;
    match get((&raw mut kind).cast(), A::MEMORY_TYPE) {
        Ok(()) => {
            let mut managed = 0_u32;
            get((&raw mut managed).cast(), A::IS_MANAGED)?;
            get((&raw mut found.device).cast(), A::DEVICE_ORDINAL)?;
            found.kind = if managed != 0 { MANAGED } else { kind };
            // If the host or the device cannot access the memory, its address is null.
            let address = |attribute| {
                let mut address: *mut c_void = ptr::null_mut();
                get((&raw mut address).cast(), attribute).map_or(ptr::null_mut(), |()| address)
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
        // SAFETY: in CUDA 13, these bytes are the last field of the program's structure.
        13 => unsafe { attributes.at(1).cast() }.write([0_u8; RESERVED_IN_13]),
        _ => Ok(()),
    }
}

pub(crate) fn cudaMemPrefetchAsync(
    (pointer, bytes, place, flags_or_stream, stream): args::cudaMemPrefetchAsync,
) -> Outcome {
    let (flags, stream) = match version::major() {
        12 => (0, CUstream(flags_or_stream)),
        _ => (flags_or_stream as c_uint, stream),
    };
    call!(cuMemPrefetchAsync_v2(pointer, bytes, location(place), flags, stream))
}

/// Converts an argument to a location. In CUDA 12, `place` is a device ordinal, or -1 for the host.
/// In CUDA 13, `place` is the location.
pub(crate) fn location(place: u64) -> CUmemLocation {
    let (low, high) = (place as u32, (place >> 32) as u32);
    match (version::major(), low.cast_signed()) {
        (12, -1) => CUmemLocation { kind: CUmemLocationType::HOST, id: 0 },
        (12, device) => CUmemLocation::device(device),
        (_, kind) => CUmemLocation { kind: CUmemLocationType(kind), id: high.cast_signed() },
    }
}
