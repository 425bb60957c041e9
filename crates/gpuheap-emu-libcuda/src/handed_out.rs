//! An export that is not the driver's. The allocator of a program that is traced reports by it the
//! memory that it hands out of its allocations.

use gpuheap_driver::{CUdeviceptr, CUresult};

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
