//! C functions for memory that the host also uses, and for the whole device. Their documentation
//! goes into the header. Pointers follow the preconditions that `calls.rs` states.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::c_void;

use gpuheap::MemoryKind;

use crate::entry::{Failure, enter, gpuheap_status, reported, write, write_if_wanted};
use crate::handle::gpuheap_heap;
use crate::sized::{size_of_result, write_result};
use crate::statistics::gpuheap_statistics;
use crate::streams::LiveStream;

/// Kind of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpuheap_kind {
    /// Device memory. The host accesses it only by copies.
    Device = 0,
    /// Managed memory (cudaMallocManaged): the driver moves each page to the side that uses it.
    Unified = 1,
    /// Page-locked host memory (cudaMallocHost). The device uses this memory at the same address.
    Pinned = 2,
    /// Host memory that belongs to the program and that gpuheap_register page-locked. This kind
    /// cannot be allocated. It is used only for statistics.
    Registered = 3,
}

/// Allocates memory of a kind for use on a stream, by the rules of gpuheap_allocate. gpuheap_free
/// frees the memory. Earlier work on the stream may still access a block of unified or pinned
/// memory, because blocks are reused. So call gpuheap_wait_for_stream before the host first uses
/// the block. The host must have finished using the memory before the free.
///
/// If the device does not support concurrent access to unified memory (WSL2), no work of the device
/// may run while the host uses unified memory. Limits and gpuheap_get_statistics count only device
/// memory.
///
/// kind: a gpuheap_kind. Other parameters: as for gpuheap_allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_allocate_kind(
    heap: *mut gpuheap_heap,
    kind: u32,
    bytes: u64,
    stream: *mut c_void,
    address: *mut *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_allocate_kind", || {
        write(address, "where the address goes", std::ptr::null_mut())?;
        let kind = parse_kind(kind)?;
        if kind == MemoryKind::Registered {
            return Err(Failure::refused(
                "registered memory is the program's own and cannot be allocated; call \
                 gpuheap_register, or allocate GPUHEAP_KIND_PINNED",
            ));
        }
        let heap = gpuheap_heap::get(heap)?;
        let allocated = heap.allocate_kind(kind, bytes, LiveStream::new(stream));
        let allocated = match kind {
            MemoryKind::Device => reported(heap.heap(), bytes, address, allocated)?,
            _ => allocated?,
        };
        address.write(std::ptr::with_exposed_provenance_mut(allocated as usize));
        Ok(())
    })
}

/// Reads the statistics of one kind of memory, by the rules of gpuheap_get_statistics.
///
/// kind: a gpuheap_kind. statistics: as for gpuheap_get_statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_get_kind_statistics(
    heap: *mut gpuheap_heap,
    kind: u32,
    statistics: *mut gpuheap_statistics,
) -> gpuheap_status {
    enter("gpuheap_get_kind_statistics", || {
        let size = size_of_result(statistics)?;
        let usage = gpuheap_heap::get(heap)?.heap().usage_of(parse_kind(kind)?)?;
        write_result(gpuheap_statistics::new(&usage), statistics, size);
        Ok(())
    })
}

/// Page-locks memory of the program (cudaHostRegister), so that the device can read and write it in
/// place. The memory must stay valid until gpuheap_unregister succeeds or the heap is closed. Does
/// not wait, except in one case: if the driver refuses to lock more memory, the heap first returns
/// cached pinned memory.
///
/// memory: any address, without alignment. bytes: at least 1. device_address: receives the address
/// for the device. It equals the host's address, except with Windows drivers. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_register(
    heap: *mut gpuheap_heap,
    memory: *mut c_void,
    bytes: u64,
    device_address: *mut *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_register", || {
        let heap = gpuheap_heap::get(heap)?;
        if memory.is_null() || bytes == 0 {
            return Err(Failure::refused("the memory is a null pointer, or has no bytes"));
        }
        let device = heap.register(memory, bytes)?;
        write_if_wanted(device_address, std::ptr::with_exposed_provenance_mut(device as usize));
        Ok(())
    })
}

/// Waits for all work of the device, then unlocks registered memory. If a stream of the device is
/// capturing a graph, the wait breaks the capture.
///
/// memory: as for gpuheap_register. GPUHEAP_STATUS_UNKNOWN_ADDRESS: nothing is registered there.
/// GPUHEAP_STATUS_DRIVER: the device may still use the memory, so never free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_unregister(
    heap: *mut gpuheap_heap,
    memory: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_unregister", || gpuheap_heap::get(heap)?.unregister(memory))
}

/// Waits for all work that was enqueued on a stream so far. Returns GPUHEAP_STATUS_REFUSED if the
/// stream is capturing a graph.
///
/// stream: as for gpuheap_allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_wait_for_stream(
    heap: *mut gpuheap_heap,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_wait_for_stream", || {
        Ok(gpuheap_heap::get(heap)?.live_stream(LiveStream::new(stream))?.synchronize()?)
    })
}

/// Resets the heap's device as cudaDeviceReset does, and closes the heap. Use it for a device that
/// an error made unusable, and at the end of tests. Waits for the device's work. To use the device
/// again, open a new heap.
///
/// Ends all memory, streams and events that the process has on the device, also if another library
/// made them. Other heaps of the device then return GPUHEAP_STATUS_GONE, and must still be closed.
/// No other thread may use the device during the call. From the start of the call, no earlier
/// memory or handle may be used. This includes use of pinned or unified memory by the host.
///
/// If the status is not GPUHEAP_STATUS_OK, the device may not have been reset. The heap is closed
/// anyway, unless the status is GPUHEAP_STATUS_GONE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_reset_device(heap: *mut gpuheap_heap) -> gpuheap_status {
    enter("gpuheap_reset_device", || gpuheap_heap::reset(heap))
}

impl gpuheap_kind {
    pub(crate) fn from_kind(kind: MemoryKind) -> gpuheap_kind {
        match kind {
            MemoryKind::Unified => gpuheap_kind::Unified,
            MemoryKind::Pinned => gpuheap_kind::Pinned,
            MemoryKind::Registered => gpuheap_kind::Registered,
            // If a kind has no number here, the test below fails.
            _ => gpuheap_kind::Device,
        }
    }
}

fn parse_kind(number: u32) -> Result<MemoryKind, Failure> {
    match number {
        kind if kind == gpuheap_kind::Device as u32 => Ok(MemoryKind::Device),
        kind if kind == gpuheap_kind::Unified as u32 => Ok(MemoryKind::Unified),
        kind if kind == gpuheap_kind::Pinned as u32 => Ok(MemoryKind::Pinned),
        kind if kind == gpuheap_kind::Registered as u32 => Ok(MemoryKind::Registered),
        other => Err(Failure::refused(format!(
            "the kind is {other}; pass GPUHEAP_KIND_DEVICE (0), GPUHEAP_KIND_UNIFIED (1), \
             GPUHEAP_KIND_PINNED (2) or GPUHEAP_KIND_REGISTERED (3)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_number() {
        for kind in MemoryKind::ALL {
            assert_eq!(parse_kind(gpuheap_kind::from_kind(kind) as u32).ok(), Some(kind));
        }
    }
}
