//! Physical memory of the virtual memory management. It is freed when it is released and no range
//! maps it.
#![allow(non_snake_case, reason = "named as in C")]

use std::ffi::c_void;

use gpuheap_capture::MemoryKind;
use gpuheap_driver::{CUdeviceptr, CUmemAllocationProp, CUmemLocationType, CUresult, CUstream};

use crate::allocate::{Freed, Request, free_of};
use crate::real;
use crate::recorder;
use crate::table::{In, Out};
use crate::threads::Guard;

/// Space of handles of physical memory.
const HANDLES: u32 = 1;

pub(crate) fn cuMemCreate(
    handle: Out<u64>,
    bytes: usize,
    properties: In<CUmemAllocationProp>,
    flags: u64,
) -> CUresult {
    let call = || real::cuMemCreate(handle, bytes, properties, flags);
    // Physical memory of the host is no device memory.
    let Some(location) = properties.get().ok().map(|all| all.location) else { return call() };
    if location.kind != CUmemLocationType::DEVICE {
        return call();
    }
    let request = Request::new(MemoryKind::Physical, bytes, CUstream::NULL);
    request.run_on(Some(location.id), call, || {
        let handle = handle.get()?;
        if let Some(recorder) = recorder::existing() {
            recorder.mappings(|mappings| mappings.references.insert(handle, 1));
        }
        Ok((handle, bytes))
    })
}

pub(crate) fn cuMemRelease(handle: u64) -> CUresult {
    let call = || real::cuMemRelease(handle);
    let Some(_guard) = Guard::enter() else { return call() };
    let Some(recorder) = recorder::existing() else { return call() };
    let code = match recorder.mappings(|mappings| mappings.is_last(handle)) {
        true => free_of(recorder, Freed::new(HANDLES, handle, CUstream::NULL), call),
        false => call(),
    };
    if code.is_success() {
        recorder.mappings(|mappings| mappings.remove(handle));
    }
    code
}

pub(crate) fn cuMemRetainAllocationHandle(handle: Out<u64>, address: *mut c_void) -> CUresult {
    let code = real::cuMemRetainAllocationHandle(handle, address);
    if code.is_success()
        && let Some(_guard) = Guard::enter()
        && let Some(recorder) = recorder::existing()
        && let Ok(handle) = handle.get()
    {
        recorder.mappings(|mappings| mappings.add(handle));
    }
    code
}

pub(crate) fn cuMemMap(
    pointer: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CUresult {
    let code = real::cuMemMap(pointer, bytes, offset, handle, flags);
    if code.is_success()
        && let Some(_guard) = Guard::enter()
        && let Some(recorder) = recorder::existing()
    {
        recorder.mappings(|mappings| {
            if mappings.add(handle) {
                mappings.ranges.insert(pointer, (handle, bytes as u64));
            }
        });
    }
    code
}

pub(crate) fn cuMemUnmap(pointer: CUdeviceptr, bytes: usize) -> CUresult {
    let code = real::cuMemUnmap(pointer, bytes);
    if code.is_success()
        && let Some(_guard) = Guard::enter()
        && let Some(recorder) = recorder::existing()
    {
        let end = pointer.saturating_add(bytes as u64);
        let unmapped: Vec<_> = recorder.mappings(|mappings| {
            let found: Vec<_> = mappings
                .ranges
                .range(pointer..end)
                .map(|(start, range)| (*start, range.0))
                .collect();
            mappings.ranges.retain(|start, _| !(pointer..end).contains(start));
            found.into_iter().map(|(_, handle)| (handle, mappings.is_last(handle))).collect()
        });
        for (handle, is_last) in unmapped {
            if is_last {
                let freed = Freed::new(HANDLES, handle, CUstream::NULL);
                let _ = free_of(recorder, freed, || CUresult::SUCCESS);
            }
            recorder.mappings(|mappings| mappings.remove(handle));
        }
    }
    code
}
