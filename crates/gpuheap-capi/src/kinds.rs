//! The C functions for memory that the host uses too, and for the device as a whole. Their
//! documentation becomes that of the header. What `calls.rs` says of pointers holds here too.
#![allow(clippy::missing_safety_doc, reason = "see calls.rs")]

use std::ffi::c_void;

use gpuheap::MemoryKind;

use crate::entry::{Failure, enter, gpuheap_status, write};
use crate::handle::gpuheap_heap;
use crate::sized::write_result;
use crate::statistics::gpuheap_statistics;

/// Kind of memory.
#[allow(non_camel_case_types, reason = "named as in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpuheap_kind {
    /// Device memory, which the host reaches by copies.
    Device = 0,
    /// Managed memory (cudaMallocManaged): the driver moves its pages to where they are used.
    Unified = 1,
    /// Page-locked host memory (cudaMallocHost), which the device uses by the same address.
    Pinned = 2,
}

/// Allocates memory of a kind, as gpuheap_allocate does device memory: in the order of the stream,
/// to be freed by gpuheap_free. The host may use unified and pinned memory once the stream has
/// reached this point: call gpuheap_wait_for_stream before the first use, because work before may
/// still use the memory. The host is done with it before the free.
///
/// If the device has no concurrent access to unified memory (WSL2), no work of the device may run
/// while the host uses any. Limits and gpuheap_get_statistics are those of device memory.
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
        // SAFETY: `address` is null or valid for a write.
        unsafe { write(address, "where the address goes", std::ptr::null_mut()) }?;
        let kind = kind_of(kind)?;
        // SAFETY: `heap` is null or from gpuheap_open, the stream is alive, and `address` is not
        // null by now.
        unsafe {
            let allocated = gpuheap_heap::get(heap)?.allocate_kind(kind, bytes, stream)?;
            address.write(std::ptr::with_exposed_provenance_mut(allocated as usize));
        }
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
        // SAFETY: `statistics` is null, or has the size stated there. `heap` is null or from
        // gpuheap_open.
        unsafe {
            let size = gpuheap_statistics::size_of(statistics)?;
            let usage = gpuheap_heap::get(heap)?.heap().usage_of(kind_of(kind)?)?;
            write_result(gpuheap_statistics::new(&usage), statistics, size);
        }
        Ok(())
    })
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
        // SAFETY: `heap` is null or from gpuheap_open, and the stream is alive.
        Ok(unsafe { gpuheap_heap::get(heap)?.live_stream(stream) }?.synchronize()?)
    })
}

/// Ends everything that the process has on the heap's device, as cudaDeviceReset does, and closes
/// the heap. For a device that an error made unusable, and for the end of tests. Waits for the
/// device's work. Open a heap afterwards to use the device again.
///
/// The device's memory, streams and events end, those of other libraries too. Other heaps of the
/// device return GPUHEAP_STATUS_GONE from now on, and are to be closed all the same. No other
/// thread may use the device during the call, and no memory or handle from before may be used
/// again, also not pinned and unified memory by the host.
///
/// With any status but GPUHEAP_STATUS_OK the device may be as before. The heap is closed all the
/// same, unless the status is GPUHEAP_STATUS_GONE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_reset_device(heap: *mut gpuheap_heap) -> gpuheap_status {
    // SAFETY: `heap` is null or from gpuheap_open, and the caller ends all use of the device.
    enter("gpuheap_reset_device", || unsafe { gpuheap_heap::reset(heap) })
}

fn kind_of(number: u32) -> Result<MemoryKind, Failure> {
    match number {
        kind if kind == gpuheap_kind::Device as u32 => Ok(MemoryKind::Device),
        kind if kind == gpuheap_kind::Unified as u32 => Ok(MemoryKind::Unified),
        kind if kind == gpuheap_kind::Pinned as u32 => Ok(MemoryKind::Pinned),
        other => Err(Failure::refused(format!(
            "the kind is {other}; pass GPUHEAP_KIND_DEVICE (0), GPUHEAP_KIND_UNIFIED (1) or \
             GPUHEAP_KIND_PINNED (2)"
        ))),
    }
}
