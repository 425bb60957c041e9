//! Serves the program's allocations and frees from a heap.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuheap_capi::{Failure, gpuheap_status as Status, reported};
use gpuheap_catch::messages;
use gpuheap_driver::abi::Raw;
use gpuheap_driver::{CUdeviceptr, CUresult, CUstream, CUstreamCaptureStatus};

use crate::devices::{self, Served, live, raw};
use crate::table::Out;
use crate::{counts, real, settings};

/// Order of an allocation or a free relative to the work on streams.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// No stream order. All streams can use the memory immediately. If frees wait, freed memory is
    /// reused only after all work so far.
    Plain,
    Stream(CUstream),
}

impl Order {
    fn is_plain(self) -> bool {
        matches!(self, Order::Plain)
    }
}

/// `true` once any stream has begun to capture a graph. Until then, no call queries streams for
/// captures.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Notes that a stream begins to capture a graph.
pub(crate) fn note_capture() {
    CAPTURES.store(true, Ordering::Relaxed);
}

/// Allocates memory; `None` if the call is to be passed on.
pub(crate) fn allocate(pointer: Out<CUdeviceptr>, bytes: usize, order: Order) -> Option<CUresult> {
    if pointer.is_null() || bytes == 0 {
        return None;
    }
    let (served, stream) = match order {
        Order::Plain => {
            let served = devices::current_heap()?;
            (served, served.plain.raw())
        }
        // In a capture, an allocation becomes a node of the graph, so the driver has to make it.
        Order::Stream(stream) if is_capturing(stream) => return None,
        Order::Stream(stream) => (devices::heap_of_stream(stream)?, stream),
    };
    let is_plain = order.is_plain();
    let allocate = || served.allocate(bytes as u64, stream, is_plain, pointer);
    // If the heap panics, which is a bug, the driver serves the call.
    let address = match catch_unwind(AssertUnwindSafe(allocate)).ok()? {
        Ok(address) => address,
        Err(failure) if is_out_of_memory(&failure, bytes, served) => {
            counts::count_refused_request(&failure);
            return Some(CUresult::ERROR_OUT_OF_MEMORY);
        }
        // For other failures, the call is passed on. The driver may serve it, or returns its error.
        Err(_) => return None,
    };
    if is_plain {
        if served.plain_may_wait.load(Ordering::Acquire) && wait_for_plain(served).is_err() {
            let _ = served.table(true).free(at(address));
            return None;
        }
        served.plain_bytes.allocated(bytes as u64);
    } else {
        served.plain_bytes.pool_grew();
    }
    Some(match pointer.write(address) {
        Ok(()) => CUresult::SUCCESS,
        Err(code) => code,
    })
}

fn is_out_of_memory(failure: &Failure, bytes: usize, served: &Served) -> bool {
    match failure.status() {
        Status::OutOfMemory => true,
        Status::Refused => bytes as u64 > served.device.total_memory(),
        _ => false,
    }
}

impl Served {
    /// Allocates memory for use on a stream, and reports the request to `gpuheap dry-run`.
    fn allocate(
        &self,
        bytes: u64,
        stream: CUstream,
        is_plain: bool,
        place: Out<CUdeviceptr>,
    ) -> Result<u64, Failure> {
        self.heap.check_alive()?;
        let allocated = self.table(is_plain).allocate(bytes, live(stream));
        reported(&self.heap, bytes, place.raw().cast(), allocated)
    }
}

fn at(address: CUdeviceptr) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

/// Waits until no earlier work uses the memory that was just allocated without stream order.
fn wait_for_plain(served: &Served) -> Result<(), gpuheap::Error> {
    let is_done = match CAPTURES.load(Ordering::Relaxed) {
        true => served.plain.is_done()?,
        false => real::cuStreamQuery(served.plain.raw()).is_success(),
    };
    if is_done { Ok(()) } else { served.plain.synchronize() }
}

/// Frees memory. If the memory is not from a heap, returns `None`, and the caller passes the call
/// on. The program has ordered its work on the memory before the free, as CUDA requires.
pub(crate) fn free(address: CUdeviceptr, order: Order) -> Option<CUresult> {
    if address == 0 {
        return None;
    }
    let found = devices::all().find_map(|served| {
        served.find(address, order.is_plain()).map(|allocation| (served, allocation))
    });
    let Some((served, allocation)) = found else {
        // A heap may have taken `address` from the driver for itself. The driver must not free that
        // memory for the program, so the free is refused.
        let is_heaps = devices::all().any(|served| served.heap.holds(address));
        return is_heaps.then(|| {
            counts::count_refused_free();
            CUresult::ERROR_INVALID_VALUE
        });
    };
    let (table, pointer) = (served.table(allocation.is_plain), at(address));
    let freed = match order {
        Order::Plain if settings::get().is_some_and(|settings| settings.waits) => {
            let waited = wait_for_device(served);
            if !waited.is_success() {
                return Some(waited);
            }
            // SAFETY: all work of the device is done, so no work on the memory is left.
            unsafe { table.free_on_live(pointer, live(served.plain.raw())) }
        }
        Order::Plain => table.free(pointer),
        Order::Stream(stream) if is_capturing(stream) => {
            return Some(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        Order::Stream(stream) => {
            served.plain_may_wait.store(true, Ordering::Release);
            // SAFETY: the program ordered the stream after all work on the memory, as CUDA
            // requires.
            unsafe { table.free_on_live(pointer, live(stream)) }
        }
    };
    let Err(failure) = freed else {
        if allocation.is_plain {
            served.plain_bytes.freed(allocation.bytes);
        }
        return Some(CUresult::SUCCESS);
    };
    Some(match failure.status() {
        // Another thread freed the memory first, or the stream belongs to another device.
        Status::UnknownAddress | Status::Refused => {
            counts::count_refused_free();
            CUresult::ERROR_INVALID_VALUE
        }
        _ => CUresult::ERROR_UNKNOWN,
    })
}

/// Waits for all work of a device, as the driver's own free does.
fn wait_for_device(served: &Served) -> CUresult {
    if !CAPTURES.load(Ordering::Relaxed) {
        return match served.device.synchronize() {
            Ok(()) => CUresult::SUCCESS,
            Err(error) => error.driver().map_or(CUresult::ERROR_UNKNOWN, |error| error.code()),
        };
    }
    // `Device::synchronize` would break a capture on another stream. The driver's `cuMemFree` waits
    // for the device too, but respects the capture's mode. So allocates and frees a byte.
    let freed = served.device.with_current(|driver| {
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

/// Writes the free and the total memory. The heap's cache counts as free. Neither figure exceeds
/// the heap's limits. Returns `None` if the call is to be passed on.
pub(crate) fn write_memory_info(free: Out<usize>, total: Out<usize>) -> Option<CUresult> {
    let served = devices::current_heap()?;
    if free.is_null() || total.is_null() {
        return None;
    }
    let code = real::cuMemGetInfo_v2(free, total);
    let usage = served.heap.usage().ok()?;
    if !code.is_success() {
        return Some(code);
    }
    let (of_all, elsewhere) = served.heap.total_limit().map_or((u64::MAX, 0), |limit| {
        (limit.bytes(), limit.reserved().saturating_sub(usage.reserved))
    });
    let limit = served.heap.limits().hard.unwrap_or(u64::MAX).min(of_all);
    let cached = usage.reserved.saturating_sub(usage.live_blocks);
    let room = limit.min(of_all.saturating_sub(elsewhere)).saturating_sub(usage.live_blocks);
    let change = |place: Out<usize>, more: u64, most: u64| {
        place.get().and_then(|bytes| place.write((bytes as u64 + more).min(most) as usize))
    };
    let written = change(free, cached, room).and_then(|()| change(total, 0, limit));
    Some(written.err().unwrap_or(CUresult::SUCCESS))
}

/// Announces the end of a stream to the heaps. Returns `false` if a heap still needs the stream, so
/// that the caller does not destroy the stream.
pub(crate) fn announce_end(stream: CUstream) -> bool {
    devices::all().all(|served| {
        let announce = || {
            served.heap.check_alive().is_ok()
                && [false, true]
                    .into_iter()
                    .all(|is_plain| served.table(is_plain).stream_ended(raw(stream)).is_ok())
        };
        // A heap refuses the announcement while the stream is capturing. If earlier work on the
        // stream failed, the first announcement may fail, and one after `retire_all` succeed.
        announce() || (served.heap.retire_all().is_ok() && announce())
    })
}

/// Refuses a handle for other processes if a heap has the memory, else returns `None`. The driver's
/// handle would share the heap's whole allocation, not only the program's block. Writes the reason
/// once per process.
pub(crate) fn refuse_handle(pointer: CUdeviceptr) -> Option<CUresult> {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !devices::all().any(|served| served.find(pointer, true).is_some()) {
        return None;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        messages::write(
            "a handle for other processes (cudaIpcGetMemHandle) is refused: the driver makes it for a \
             whole allocation of the heap, and not for the program's part of it; run this program \
             without libgpuheap_malloc.so",
        );
    }
    Some(CUresult::ERROR_NOT_SUPPORTED)
}

fn is_capturing(stream: CUstream) -> bool {
    if !CAPTURES.load(Ordering::Relaxed) {
        return false;
    }
    let mut status = CUstreamCaptureStatus::NONE;
    let code = real::cuStreamIsCapturing(stream, &mut status);
    !code.is_success() || status != CUstreamCaptureStatus::NONE
}
