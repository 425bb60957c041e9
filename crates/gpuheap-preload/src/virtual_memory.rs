//! Records `cuMemCreate`, `cuMemMap` and the calls that undo them. Physical memory is freed once it
//! is released and no range maps it.
#![allow(non_snake_case, reason = "named as in C")]

use std::ffi::c_void;

use gpuheap_capture::MemoryKind;
use gpuheap_driver::{CUdeviceptr, CUmemAllocationProp, CUmemLocationType, CUresult, CUstream};

use crate::allocate::{Request, has_freed};
use crate::mappings::{Mappings, Reference};
use crate::real;
use crate::recorder::{self, Recorder};
use crate::table::{In, Out};
use crate::threads::Guard;

pub(crate) fn cuMemCreate(
    handle: Out<u64>,
    bytes: usize,
    properties: In<CUmemAllocationProp>,
    flags: u64,
) -> CUresult {
    let call = || real::cuMemCreate(handle, bytes, properties, flags);
    // Records only memory of a device. Without properties, the driver refuses the call.
    let Some(location) = properties.get().ok().map(|all| all.location) else { return call() };
    if location.kind != CUmemLocationType::DEVICE {
        return call();
    }
    let request = Request::new(MemoryKind::Physical, bytes, CUstream::NULL);
    request.run_on(Some(location.id), call, || Ok((handle.get()?, bytes)))
}

pub(crate) fn cuMemRelease(handle: u64) -> CUresult {
    let call = || real::cuMemRelease(handle);
    let Some(_guard) = Guard::enter() else { return call() };
    let Some(recorder) = recorder::existing() else { return call() };
    remove(recorder, |mappings| mappings.remove(handle).into_iter().collect(), call)
}

/// Removes references to physical memory here, and then makes the driver call that removes them. In
/// the reverse order, another thread could get the same handle or address in between.
fn remove(
    recorder: &'static Recorder,
    remove: impl FnOnce(&mut Mappings) -> Vec<Reference>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let removed = recorder.remove_references(remove);
    let code = call();
    if has_freed(code) {
        removed.iter().filter_map(|(_, block)| *block).for_each(|block| block.charge.give_back());
    } else {
        recorder.restore_references(&removed);
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
    let call = || real::cuMemMap(pointer, bytes, offset, handle, flags);
    let Some(_guard) = Guard::enter() else { return call() };
    let Some(recorder) = recorder::existing() else { return call() };
    // Adds the reference before the call, because another thread may release the handle meanwhile.
    let is_recorded = recorder.mappings(|mappings| mappings.add(handle));
    let code = call();
    if code.is_success() && is_recorded {
        recorder.mappings(|mappings| mappings.map(pointer, handle));
        recorder.mapped(pointer, bytes as u64, Some(handle));
    } else if is_recorded {
        let added = |mappings: &mut Mappings| mappings.remove(handle).into_iter().collect();
        let _ = remove(recorder, added, || CUresult::SUCCESS);
    }
    code
}

pub(crate) fn cuMemUnmap(pointer: CUdeviceptr, bytes: usize) -> CUresult {
    let call = || real::cuMemUnmap(pointer, bytes);
    let Some(_guard) = Guard::enter() else { return call() };
    let Some(recorder) = recorder::existing() else { return call() };
    recorder.mapped(pointer, bytes as u64, None);
    let end = pointer.saturating_add(bytes as u64);
    remove(recorder, |mappings| mappings.unmap(pointer..end), call)
}
