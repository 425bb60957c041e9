//! Exports that are not the driver's. The allocator of a program that is traced reports by them the
//! memory that it hands out of its allocations, and the requests that it refused.

use std::ffi::c_int;

use gpuheap_driver::{CUdeviceptr, CUresult};
use gpuheap_emu::{Request, put_request};

use crate::process;

/// Makes a range of device memory read as never written.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_handed_out(address: CUdeviceptr, bytes: u64) {
    let _ = process::call(|device| {
        device.handed_out(address, bytes);
        CUresult::SUCCESS
    });
}

/// Makes a range of device memory read as never written, unless the program wrote all of it after
/// its last launch.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_changed(address: CUdeviceptr, bytes: u64) {
    let _ = process::call(|device| {
        device.changed(address, bytes);
        CUresult::SUCCESS
    });
}

/// Reports a request of `gpuheap_allocate`: its bytes, the place of its result, and 1 if it was
/// granted, else 0.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_request(bytes: u64, place: u64, is_granted: c_int) {
    let _ = process::call(|device| {
        let options = device.options();
        let shown = options.shown().first().and_then(|&first| options.devices.get(first));
        let total = shown.map_or(0, |first| first.memory_bytes);
        let mut request = Request::new("gpuheap_allocate", 0, bytes, place, is_granted != 0);
        request.free_bytes = total.saturating_sub(device.usage(0).in_use());
        put_request(request);
        CUresult::SUCCESS
    });
}
