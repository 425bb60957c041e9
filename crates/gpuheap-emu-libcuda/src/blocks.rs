//! An export that is not the driver's. Heaps report their blocks by it.

use std::ffi::c_int;

use gpuheap_driver::{
    BlockEvent, BlockNote, CUcontext, CUdeviceptr, CUresult, CUstream, Driver, EmulatedBlock,
};

use crate::process;

/// Checks that the export has the type that heaps look up.
const _: EmulatedBlock = gpuheap_emulated_block;

/// Reports an event of a heap's block to the checks. Returns 1 if the checks are on, else 0. The
/// events are numbered by `BlockEvent` of crate `gpuheap-driver`. An unknown number does nothing.
// SAFETY: no other library has a symbol of that name.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_emulated_block(
    event: c_int,
    context: CUcontext,
    address: CUdeviceptr,
    bytes: u64,
    room: u64,
    stream: CUstream,
) -> c_int {
    let mut are_on = false;
    let _ = process::call(|device| {
        if let Some(checks) = device.block_checks() {
            are_on = true;
            let block = BlockNote { context, address, bytes, room, stream };
            match BlockEvent::from_number(event) {
                None | Some(BlockEvent::Ask) => {}
                Some(BlockEvent::Allocated) => checks.allocated(&block),
                Some(BlockEvent::Resized) => checks.resized(&block),
                Some(BlockEvent::Divided) => checks.divided(&block),
                Some(BlockEvent::Freed) => checks.freed(&block, false),
                Some(BlockEvent::FreedZeroed) => checks.freed(&block, true),
            }
        }
        CUresult::SUCCESS
    });
    c_int::from(are_on)
}
