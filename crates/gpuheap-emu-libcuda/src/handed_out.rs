//! Exports that are not the driver's. The allocator of a program that is traced reports by them the
//! parts that it hands out of its allocations.

use gpuheap_driver::{CUdeviceptr, CUresult};

use crate::process;

/// Makes the memory of a part that an allocator hands out read as never written.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_handed_out(address: CUdeviceptr) {
    let _ = process::call(|device| {
        device.handed_out(address);
        CUresult::SUCCESS
    });
}

/// Records that an allocator took back a part.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_taken_back(address: CUdeviceptr) {
    let _ = process::call(|device| {
        device.taken_back(address);
        CUresult::SUCCESS
    });
}
