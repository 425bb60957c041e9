//! C functions for memory that the host uses too, and for the device as a whole. The header gets
//! their documentation. The preconditions of `calls.rs` hold for the pointers here.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::c_void;

use gpuheap::MemoryKind;

use crate::dry_run;
use crate::entry::{Failure, enter, gpuheap_status, note, write};
use crate::handle::gpuheap_heap;
use crate::sized::{size_of_result, write_result};
use crate::statistics::gpuheap_statistics;
use crate::streams::LiveStream;

/// Kind of memory.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpuheap_kind {
    /// Device memory. The host reaches it by copies.
    Device = 0,
    /// Managed memory (cudaMallocManaged): the driver moves its pages to where they are used.
    Unified = 1,
    /// Page-locked host memory (cudaMallocHost). The device uses it by the same address.
    Pinned = 2,
    /// Memory of the program that gpuheap_register page-locked. It is not allocated, and has
    /// statistics alone.
    Registered = 3,
}

/// Allocates memory of a kind, as gpuheap_allocate does device memory: in the order of the stream,
/// to be freed by gpuheap_free. The host may use unified and pinned memory once the stream has
/// reached this point: call gpuheap_wait_for_stream before the first use, because work before may
/// still use the memory. The host is done with it before the free.
///
/// If the device has no concurrent access to unified memory (WSL2), no work of the device may run
/// while the host uses any. Limits and gpuheap_get_statistics count device memory alone.
///
/// kind: a gpuheap_kind. The others: as for gpuheap_allocate.
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
            MemoryKind::Device => dry_run::reported(heap.heap(), bytes, address, allocated)?,
            _ => allocated?,
        };
        address.write(std::ptr::with_exposed_provenance_mut(allocated as usize));
        Ok(())
    })
}

/// Reads the statistics of one kind of memory, as gpuheap_get_statistics does for device memory.
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

/// Page-locks memory of the program (cudaHostRegister), so that the device reads and writes it in
/// place. The memory stays valid until gpuheap_unregister succeeded or the heap is closed. If the
/// driver locks no more memory, cached pinned memory is returned first. Does not wait otherwise.
///
/// memory: begins anywhere. bytes: at least 1. device_address: receives the address for the device.
/// It equals the host's, except with Windows drivers. May be null.
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
        note(device_address, std::ptr::with_exposed_provenance_mut(device as usize));
        Ok(())
    })
}

/// Unlocks registered memory, after all work of the device, for which it waits. If a stream of the
/// device is capturing a graph, the wait breaks the capture.
///
/// memory: as for gpuheap_register. GPUHEAP_STATUS_UNKNOWN_ADDRESS: nothing is registered there.
/// GPUHEAP_STATUS_DRIVER: the device may still use the memory: never free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_unregister(
    heap: *mut gpuheap_heap,
    memory: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_unregister", || gpuheap_heap::get(heap)?.unregister(memory))
}

/// Waits for all work that was enqueued on a stream so far. GPUHEAP_STATUS_REFUSED if the stream is
/// capturing a graph.
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

/// Ends everything that the process has on the heap's device, as cudaDeviceReset does, and closes
/// the heap. For a device that an error made unusable, and for the end of tests. Waits for the
/// device's work. Open a heap afterwards to use the device again.
///
/// The device's memory, streams and events end, other libraries' too. Other heaps of the device
/// return GPUHEAP_STATUS_GONE from now on, and are to be closed all the same. No other thread may
/// use the device during the call, and no memory or handle from before may be used again, also not
/// pinned and unified memory by the host.
///
/// With any status but GPUHEAP_STATUS_OK the device may be as before. The heap is closed all the
/// same, unless the status is GPUHEAP_STATUS_GONE.
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
            // The test below fails for a kind that has no number.
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
