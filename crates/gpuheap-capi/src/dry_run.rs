//! Reports of requests to `gpuheap dry-run`. A C caller passes the variable that receives the
//! address. Only this library knows the variable, so it makes the report instead of the heap.

use std::ffi::c_void;

use gpuheap::Heap;

use crate::entry::{Failure, gpuheap_status};

/// Reports the result of a request, and returns the result.
#[inline]
pub fn reported(
    heap: &Heap,
    bytes: u64,
    place: *mut *mut c_void,
    result: Result<u64, Failure>,
) -> Result<u64, Failure> {
    let is_refused =
        result.as_ref().is_err_and(|failure| failure.status() == gpuheap_status::OutOfMemory);
    if is_refused || result.is_ok() {
        heap.report_request(bytes, place.addr() as u64, !is_refused);
    }
    result
}
