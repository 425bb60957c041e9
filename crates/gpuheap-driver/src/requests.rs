//! Reports of a heap's requests to an emulated driver in a dry run.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

/// Symbol by which an emulated libcuda takes reports of requests, with a null at its end. Its type
/// is [`EmulatedRequest`]. It is not part of the driver API.
pub const EMULATED_REQUEST: &str = "gpuheap_emulated_request\0";

/// Function behind [`EMULATED_REQUEST`]: bytes, place of the result, the requesting line or null,
/// and 1 if the request was granted, else 0.
pub type EmulatedRequest = unsafe extern "C" fn(u64, u64, *const c_char, c_int);

/// An emulated libcuda that takes reports of requests, while that library is loaded.
#[derive(Clone, Copy)]
pub struct RequestReports<'d> {
    function: EmulatedRequest,
    driver: PhantomData<&'d ()>,
}

impl RequestReports<'_> {
    /// # Safety
    ///
    /// `function` is the symbol [`EMULATED_REQUEST`] of a library that is not unloaded while the
    /// result lives.
    pub(crate) unsafe fn new(function: EmulatedRequest) -> Self {
        RequestReports { function, driver: PhantomData }
    }

    /// Reports a request for device memory. `place` is a number that requests for the same variable
    /// share, or 0. Without a line, the emulated driver finds the caller on the stack.
    pub fn report(&self, bytes: u64, place: u64, line: Option<&CStr>, is_granted: bool) {
        let line = line.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the function reads no pointer but the line, a C string. Its library is loaded by
        // the contract of `new`.
        unsafe { (self.function)(bytes, place, line, is_granted.into()) };
    }
}
