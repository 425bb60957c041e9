//! Calls that copy between host and device.

use std::time::Instant;

use gpuheap_capture::{CopyDirection, CopyMemory};
use gpuheap_driver::CUresult;

use crate::allocate::stack;
use crate::copy_sums::{self, Copy};
use crate::threads::Guard;
use crate::{real, recorder};

/// Passes on a copy, and records it. `direction` is `None` if the driver finds it by the addresses.
pub(crate) fn copied(
    direction: Option<CopyDirection>,
    is_async: bool,
    (to, from, bytes): (u64, u64, usize),
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if bytes == 0 {
        return call();
    }
    let Some(_guard) = Guard::enter() else { return call() };
    let current = recorder::current().filter(|recorder| recorder.has_copies());
    let Some(recorder) = current else { return call() };
    let began = Instant::now();
    let code = call();
    let call_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let direction = direction.or_else(|| direction_of(to, from));
    if let Some(direction) = direction.filter(|_| code.is_success()) {
        let host = match direction {
            CopyDirection::ToDevice => Some(from),
            CopyDirection::ToHost => Some(to),
            _ => None,
        };
        let (memory, is_readable) = host.map_or((CopyMemory::None, false), |address| {
            memory_at(address, recorder.memory_of_copy(address))
        });
        let is_hashed = is_readable && direction == CopyDirection::ToDevice;
        // SAFETY: the driver has just accepted this memory of the host for the copy, and the
        // program keeps it until this call returns.
        let hash = |address| unsafe { copy_sums::hash(address, bytes) };
        let hash = host.filter(|_| is_hashed).map(hash);
        let bytes = bytes as u64;
        recorder.copied(Copy { direction, memory, bytes, call_ns, is_async, hash }, &stack());
    }
    code
}

/// Returns the kind of memory at an address that a copy used on the host, by the recorded kind if
/// there is one, and `true` if the host can read the memory.
fn memory_at(address: u64, recorded: Option<CopyMemory>) -> (CopyMemory, bool) {
    if let Some(recorded) = recorded {
        // Some devices and the host cannot access managed memory at once: the read would fault.
        return (recorded, recorded != CopyMemory::Managed);
    }
    match attribute(address, IS_MANAGED) {
        Err(CUresult::ERROR_INVALID_VALUE) => (CopyMemory::Pageable, true),
        Err(_) => (CopyMemory::Pageable, false),
        // A variable of the program's kernels, or memory of a pool.
        Ok(managed) if managed != 0 => (CopyMemory::Managed, false),
        // The memory may be mapped for devices alone.
        Ok(_) if is_on_device(address) => (CopyMemory::None, false),
        Ok(_) => (CopyMemory::Pinned, false),
    }
}

/// Returns the direction of a copy by its addresses. `None` for a copy within the host.
fn direction_of(to: u64, from: u64) -> Option<CopyDirection> {
    match (is_on_device(to), is_on_device(from)) {
        (true, true) => Some(CopyDirection::InDevice),
        (true, false) => Some(CopyDirection::ToDevice),
        (false, true) => Some(CopyDirection::ToHost),
        (false, false) => None,
    }
}

fn is_on_device(address: u64) -> bool {
    const DEVICE: u32 = 2;
    attribute(address, MEMORY_TYPE) == Ok(DEVICE)
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: i32 = 2;

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: i32 = 8;

/// Returns an attribute of an address. The code of the error is
/// [`ERROR_INVALID_VALUE`](CUresult::ERROR_INVALID_VALUE) if the driver does not know the address:
/// it is pageable memory of the host.
fn attribute(address: u64, attribute: i32) -> Result<u32, CUresult> {
    // A driver may write a boolean as one byte.
    let mut found = 0_u32;
    match real::cuPointerGetAttribute((&raw mut found).cast(), attribute, address) {
        CUresult::SUCCESS => Ok(found),
        code => Err(code),
    }
}
