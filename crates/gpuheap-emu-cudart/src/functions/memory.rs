//! Allocations and pointers.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gpuheap_driver::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemoryPool, CUmemorytype, CUpointer_attribute,
    CUresult, CUstream, Driver,
};

use super::{entered, write};
use crate::abi;
use crate::error::{Outcome, check};
use crate::types::PointerAttributes;

/// Elements of pitched memory, bytes. The pitch is aligned for every size that the driver takes.
const ELEMENT: c_uint = 16;
/// Device of a pointer that belongs to none.
const NO_DEVICE: c_int = -2;
/// Kinds of memory behind a pointer.
const UNREGISTERED: c_int = 0;
const MANAGED: c_int = 3;
/// Bytes of zeros that CUDA 13 has behind the attributes of a pointer.
const RESERVED_IN_13: usize = 64;

pub(crate) unsafe fn cudaMalloc(pointer: *mut CUdeviceptr, bytes: usize) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        // SAFETY: the caller promises the pointer.
        return unsafe { write(pointer, 0) };
    }
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver.cuMemAlloc_v2(pointer, bytes) })
}

pub(crate) unsafe fn cudaMallocPitch(
    pointer: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Outcome {
    let driver = entered()?;
    if width == 0 || height == 0 {
        // SAFETY: the caller promises the pointers.
        return unsafe { write(pointer, 0).and_then(|()| write(pitch, 0)) };
    }
    // SAFETY: the caller promises the pointers.
    check(unsafe { driver.cuMemAllocPitch_v2(pointer, pitch, width, height, ELEMENT) })
}

pub(crate) unsafe fn cudaMallocHost(pointer: *mut *mut c_void, bytes: usize) -> Outcome {
    // SAFETY: the caller promises the pointer.
    unsafe { cudaHostAlloc(pointer, bytes, 0) }
}

pub(crate) unsafe fn cudaHostAlloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        // SAFETY: the caller promises the pointer.
        return unsafe { write(pointer, ptr::null_mut()) };
    }
    // SAFETY: the caller promises the pointer.
    check(unsafe { driver.cuMemHostAlloc(pointer, bytes, flags) })
}

pub(crate) unsafe fn cudaFreeHost(pointer: *mut c_void) -> Outcome {
    let driver = entered()?;
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: the caller promises a pointer of pinned memory.
    check(unsafe { driver.cuMemFreeHost(pointer) })
}

pub(crate) unsafe fn cudaMallocAsync(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        // SAFETY: the caller promises the pointer.
        return unsafe { write(pointer, 0) };
    }
    // SAFETY: the caller promises the pointer and the handle.
    check(unsafe { driver.cuMemAllocAsync(pointer, bytes, stream) })
}

pub(crate) unsafe fn cudaMallocFromPoolAsync(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    let driver = entered()?;
    if bytes == 0 {
        // SAFETY: the caller promises the pointer.
        return unsafe { write(pointer, 0) };
    }
    // SAFETY: the caller promises the pointer and the handles.
    check(unsafe { driver.cuMemAllocFromPoolAsync(pointer, bytes, pool, stream) })
}

pub(crate) unsafe fn cudaPointerGetAttributes(
    attributes: *mut PointerAttributes,
    pointer: CUdeviceptr,
) -> Outcome {
    let driver = entered()?;
    let mut found = PointerAttributes {
        kind: UNREGISTERED,
        device: NO_DEVICE,
        device_pointer: ptr::null_mut(),
        host_pointer: ptr::with_exposed_provenance_mut(pointer as usize),
    };
    let (mut kind, mut managed) = (0_u32, 0_u32);
    type A = CUpointer_attribute;
    // SAFETY: each result has the type of its attribute, as `CUpointer_attribute` says.
    unsafe {
        let code = driver.cuPointerGetAttribute((&raw mut kind).cast(), A::MEMORY_TYPE, pointer);
        if code.is_success() {
            let get = |attribute, to| check(driver.cuPointerGetAttribute(to, attribute, pointer));
            get(A::IS_MANAGED, (&raw mut managed).cast())?;
            get(A::DEVICE_ORDINAL, (&raw mut found.device).cast())?;
            found.kind = if managed != 0 { MANAGED } else { kind.cast_signed() };
            let is_device = found.kind == CUmemorytype::DEVICE.0;
            // Either address is missing for memory that the other side alone sees.
            if get(A::DEVICE_POINTER, (&raw mut found.device_pointer).cast()).is_err() {
                found.device_pointer = ptr::null_mut();
            }
            if is_device || get(A::HOST_POINTER, (&raw mut found.host_pointer).cast()).is_err() {
                found.host_pointer = ptr::null_mut();
            }
        } else if code != CUresult::ERROR_INVALID_VALUE {
            return check(code);
        }
        write(attributes, found)?;
        if abi::major() == 13 {
            attributes.add(1).cast::<[u8; RESERVED_IN_13]>().write([0; RESERVED_IN_13]);
        }
    }
    Ok(())
}

pub(crate) unsafe fn cudaMemAdvise(
    pointer: CUdeviceptr,
    bytes: usize,
    advice: c_int,
    place: u64,
) -> Outcome {
    // SAFETY: no pointers that are followed.
    check(unsafe { entered()?.cuMemAdvise_v2(pointer, bytes, advice, location(place)) })
}

pub(crate) unsafe fn cudaMemPrefetchAsync(
    pointer: CUdeviceptr,
    bytes: usize,
    place: u64,
    flags_or_stream: usize,
    stream: CUstream,
) -> Outcome {
    let (flags, stream) = match abi::major() {
        12 => (0, CUstream(flags_or_stream)),
        _ => (flags_or_stream as c_uint, stream),
    };
    let driver = entered()?;
    // SAFETY: the caller promises the handle.
    check(unsafe { driver.cuMemPrefetchAsync_v2(pointer, bytes, location(place), flags, stream) })
}

/// Returns the location that an argument is: a device's ordinal or -1 for the host in CUDA 12, a
/// location in CUDA 13.
fn location(place: u64) -> CUmemLocation {
    let (low, high) = (place as u32, (place >> 32) as u32);
    match (abi::major(), low.cast_signed()) {
        (12, -1) => CUmemLocation { kind: CUmemLocationType::HOST, id: 0 },
        (12, device) => CUmemLocation::device(device),
        (_, kind) => CUmemLocation { kind: CUmemLocationType(kind), id: high.cast_signed() },
    }
}
