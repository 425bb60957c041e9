//! During a dry run, reports each request of a heap to the emulated driver.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

/// Name (with a final null) of a function that an emulated libcuda exports. The function has the
/// type [`EmulatedRequest`] and receives reports of requests. It is not part of the driver API.
pub const EMULATED_REQUEST: &str = "gpuheap_emulated_request\0";

/// Type of the function [`EMULATED_REQUEST`]. It takes the arguments of [`RequestReports::report`]
/// in the same order. An unknown place is 0, an unknown line is null, and a granted request is 1.
pub type EmulatedRequest = unsafe extern "C" fn(u64, u64, *const c_char, c_int);

/// The function of a loaded, emulated libcuda that receives reports of requests.
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

    /// Reports a request for device memory. `place` is an address that identifies the requesting
    /// line or the result's variable; 0 if unknown. If `line` is `None`, the emulated driver finds
    /// the caller on the stack.
    pub fn report(&self, bytes: u64, place: u64, line: Option<&CStr>, is_granted: bool) {
        let line = line.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the only pointer that the function reads is the line, a C string or null. The
        // contract of `new` keeps the function's library loaded.
        unsafe { (self.function)(bytes, place, line, is_granted.into()) };
    }
}
