//! Allocations and frees of the program, by a heap.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuheap_capi::{
    gpuheap_allocate, gpuheap_free, gpuheap_free_on, gpuheap_status as Status, gpuheap_stream_ended,
};
use gpuheap_driver::{CUdeviceptr, CUresult, CUstream, CUstreamCaptureStatus};

use crate::devices::{self, Served, raw};
use crate::{counts, real, settings};

/// Place of an allocation or a free in the order of the device's work.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// Usable on all streams at once; freed after all work.
    Plain,
    Stream(CUstream),
}

impl Order {
    fn is_plain(self) -> bool {
        matches!(self, Order::Plain)
    }
}

/// `true` once a stream began to capture a graph. Before that, no call asks.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Notes that a stream begins to capture a graph.
pub(crate) fn begins_capture() {
    CAPTURES.store(true, Ordering::Relaxed);
}

/// Allocates memory; `None` if the call is to be passed on.
///
/// # Safety
///
/// `pointer` is null or valid for a write, and the stream is alive.
pub(crate) unsafe fn allocate(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    order: Order,
) -> Option<CUresult> {
    if pointer.is_null() || bytes == 0 {
        return None;
    }
    let (served, stream) = match order {
        Order::Plain => {
            let served = devices::current()?;
            (served, served.plain().raw())
        }
        // The allocation becomes a node of the graph, which the heap knows nothing of.
        // SAFETY: the stream is alive.
        Order::Stream(stream) if unsafe { is_capturing(stream) } => return None,
        // SAFETY: the stream is alive.
        Order::Stream(stream) => (unsafe { devices::of_stream(stream) }?, stream),
    };
    let is_plain = order.is_plain();
    let handle = served.handle(is_plain);
    let mut address = ptr::null_mut();
    // SAFETY: the heap is open, the stream is alive, and the pointer valid for a write.
    match unsafe { gpuheap_allocate(handle, bytes as u64, raw(stream), &mut address) } {
        Status::Ok => {}
        Status::OutOfMemory => return Some(out_of_memory()),
        Status::Refused if bytes as u64 > served.device().total_memory() => {
            return Some(out_of_memory());
        }
        // The driver's own call says what the matter is, or helps.
        _ => return None,
    }
    if is_plain {
        if served.plain_may_wait.load(Ordering::Acquire) && wait_for_plain(served).is_err() {
            // SAFETY: allocated above.
            unsafe { gpuheap_free(handle, address) };
            return None;
        }
        served.plain_bytes.allocated(bytes as u64);
    }
    // SAFETY: not null, so valid for a write.
    unsafe { pointer.write(address as CUdeviceptr) };
    Some(CUresult::SUCCESS)
}

/// Waits until memory that was just allocated in no stream's order is out of use.
fn wait_for_plain(served: &Served) -> Result<(), gpuheap::Error> {
    let is_done = match CAPTURES.load(Ordering::Relaxed) {
        true => served.plain().is_done()?,
        // SAFETY: the stream is alive.
        false => unsafe { real::cuStreamQuery(served.plain().raw()) }.is_success(),
    };
    if is_done { Ok(()) } else { served.plain().synchronize() }
}

#[cold]
fn out_of_memory() -> CUresult {
    counts::refused_request();
    CUresult::ERROR_OUT_OF_MEMORY
}

/// Frees memory; `None` if it is not from a heap, and the call is to be passed on.
///
/// # Safety
///
/// The stream is alive. The program's work on the memory is ordered before the free, as CUDA asks.
pub(crate) unsafe fn free(address: CUdeviceptr, order: Order) -> Option<CUresult> {
    if address == 0 {
        return None;
    }
    let found = devices::all().find_map(|served| {
        served.find(address, order.is_plain()).map(|allocation| (served, allocation))
    });
    let Some((served, allocation)) = found else {
        // The driver would free the memory under the heap.
        let is_heaps = devices::all().any(|served| served.heap().holds(address));
        return is_heaps.then(|| {
            counts::refused_free();
            CUresult::ERROR_INVALID_VALUE
        });
    };
    let handle = served.handle(allocation.is_plain);
    let pointer = ptr::without_provenance_mut::<c_void>(address as usize);
    let status = match order {
        Order::Plain if settings::get().is_some_and(|settings| settings.waits) => {
            let waited = wait_for_device(served);
            if !waited.is_success() {
                return Some(waited);
            }
            let plain = raw(served.plain().raw());
            // SAFETY: all work of the device is done, so it is before any point of this stream.
            unsafe { gpuheap_free_on(handle, pointer, plain) }
        }
        // SAFETY: the heap is open.
        Order::Plain => unsafe { gpuheap_free(handle, pointer) },
        // SAFETY: the stream is alive.
        Order::Stream(stream) if unsafe { is_capturing(stream) } => {
            return Some(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        Order::Stream(stream) => {
            served.plain_may_wait.store(true, Ordering::Release);
            // SAFETY: the stream is alive, and the program ordered it after all work on the memory.
            unsafe { gpuheap_free_on(handle, pointer, raw(stream)) }
        }
    };
    Some(match status {
        Status::Ok => {
            if allocation.is_plain {
                served.plain_bytes.freed(allocation.bytes);
            }
            CUresult::SUCCESS
        }
        // Another thread freed it first, or the stream is of another device.
        Status::UnknownAddress | Status::Refused => {
            counts::refused_free();
            CUresult::ERROR_INVALID_VALUE
        }
        _ => CUresult::ERROR_UNKNOWN,
    })
}

/// Waits for all work of a device, as the driver's own free does.
fn wait_for_device(served: &Served) -> CUresult {
    if !CAPTURES.load(Ordering::Relaxed) {
        return match served.device().synchronize() {
            Ok(()) => CUresult::SUCCESS,
            Err(error) => error.driver().map_or(CUresult::ERROR_UNKNOWN, |error| error.code()),
        };
    }
    // A wait for the context would break a capture on another stream, where a free of the driver
    // does as the capture's mode says.
    let freed = served.device().with_current(|driver| {
        let mut address = 0;
        // SAFETY: the pointer is valid for a write, and the memory is freed once.
        unsafe {
            match driver.cuMemAlloc_v2(&mut address, 1) {
                CUresult::SUCCESS => driver.cuMemFree_v2(address),
                failed => failed,
            }
        }
    });
    freed.unwrap_or(CUresult::ERROR_UNKNOWN)
}

/// Reads the free and the total memory as the heap leaves it to the program; `None` if the call is
/// to be passed on.
///
/// # Safety
///
/// The pointers are null or valid for writes.
pub(crate) unsafe fn memory(free: *mut usize, total: *mut usize) -> Option<CUresult> {
    let served = devices::current()?;
    if free.is_null() || total.is_null() {
        return None;
    }
    let (mut device_free, mut device_total) = (0, 0);
    // SAFETY: the pointers are valid for writes.
    let asked = unsafe { real::cuMemGetInfo_v2(&mut device_free, &mut device_total) };
    let usage = served.heap().usage().ok()?;
    if !asked.is_success() {
        return Some(asked);
    }
    let limit = served.heap().limits().hard.unwrap_or(u64::MAX);
    let cached = usage.reserved.saturating_sub(usage.live_blocks);
    let room = limit.saturating_sub(usage.live_blocks);
    // SAFETY: not null, so valid for writes.
    unsafe {
        free.write((device_free as u64 + cached).min(room) as usize);
        total.write((device_total as u64).min(limit) as usize);
    }
    Some(CUresult::SUCCESS)
}

/// Announces the end of a stream to the heaps. Returns `false` if the stream has to live on.
pub(crate) fn ends(stream: CUstream) -> bool {
    devices::all().all(|served| {
        let announce = || {
            [false, true].into_iter().all(|is_plain| {
                // SAFETY: the heap is open, and the stream still alive.
                let status = unsafe { gpuheap_stream_ended(served.handle(is_plain), raw(stream)) };
                status == Status::Ok
            })
        };
        // A stream that captures a graph cannot be announced, and one whose work failed may not be.
        announce() || (served.heap().retire_all().is_ok() && announce())
    })
}

/// Returns `true` if an address is that of a live allocation of a heap.
pub(crate) fn has(address: CUdeviceptr) -> bool {
    devices::all().any(|served| served.has(address))
}

/// Returns `true` if a stream is capturing a graph.
///
/// # Safety
///
/// The stream is alive.
unsafe fn is_capturing(stream: CUstream) -> bool {
    if !CAPTURES.load(Ordering::Relaxed) {
        return false;
    }
    let mut status = CUstreamCaptureStatus::NONE;
    // SAFETY: the stream is alive, and the pointer valid for a write.
    let asked = unsafe { real::cuStreamIsCapturing(stream, &mut status) };
    !asked.is_success() || status != CUstreamCaptureStatus::NONE
}
