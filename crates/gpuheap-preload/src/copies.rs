//! Calls that copy between host and device.

use std::time::Instant;

use gpuheap_capture::CopyDirection;
use gpuheap_driver::CUresult;

use crate::allocate::stack;
use crate::copy_sums::Copy;
use crate::threads::Guard;
use crate::{real, recorder, settings};

/// Passes on a copy, and records it if copies are recorded. `direction` is `None` if the driver
/// finds it by the addresses.
pub(crate) fn copied(
    direction: Option<CopyDirection>,
    is_async: bool,
    (to, from, bytes): (u64, u64, usize),
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if !settings::get().copies || bytes == 0 {
        return call();
    }
    let Some(_guard) = Guard::enter() else { return call() };
    let Some(recorder) = recorder::current() else { return call() };
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
        let bytes = bytes as u64;
        recorder.copied(Copy { direction, host, bytes, call_ns, is_async }, &stack());
    }
    code
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
    const MEMORY_TYPE: i32 = 2;
    const DEVICE: u32 = 2;
    let mut found = 0_u32;
    let code = real::cuPointerGetAttribute((&raw mut found).cast(), MEMORY_TYPE, address);
    // An address that the driver does not know is pageable memory of the host.
    code.is_success() && found == DEVICE
}
