//! C functions that report a heap's memory and its outstanding allocations. Their documentation
//! goes into the header. Pointers follow the preconditions that `calls.rs` states.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions of calls.rs"
)]

use std::ffi::c_char;
use std::mem::size_of;

use gpuheap::{Diff, Fit, FlushReport, Snapshot};

use crate::entry::{Failure, enter, gpuheap_status, write, write_if_wanted};
use crate::handle::gpuheap_heap;
use crate::sized::{size_of_optional, sized, write_result};
use crate::texts::{Room, formatted};

/// Value of a size in bytes that the driver does not report.
pub const GPUHEAP_UNKNOWN: u64 = u64::MAX;

/// Result of a flush, in bytes unless stated otherwise. Set size to sizeof(gpuheap_flushed) before
/// calling gpuheap_flush.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpuheap_flushed {
    /// sizeof(gpuheap_flushed).
    pub size: usize,
    /// Bytes returned to the driver.
    pub given_back: u64,
    /// Bytes still allocated, including rounding.
    pub live: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Free bytes that could not be returned: held_free, and bytes kept because of a graph capture,
    /// a failed call or the driver's own pool.
    pub still_cached: u64,
    /// Bytes that other heaps of this process hold on the device.
    pub other_heaps: u64,
    /// Free bytes of other_heaps. A flush of those heaps returns these bytes.
    pub other_heaps_cached: u64,
    /// Bytes of the device in use outside this process's heaps: contexts, other libraries, other
    /// processes. GPUHEAP_UNKNOWN if the driver does not report the free bytes.
    pub context_and_others: u64,
    /// Bytes that the driver reports as free, or GPUHEAP_UNKNOWN.
    pub device_free: u64,
    /// Size of the device's memory, in bytes.
    pub device_total: u64,
    /// Bytes of the pieces in which at least one block is live. A piece is memory taken from the
    /// driver in one call. 0 for the pool "driver", because its pieces are unknown.
    pub held: u64,
    /// Free bytes among the bytes of held.
    pub held_free: u64,
    /// Number of pieces that live blocks hold.
    pub held_pieces: u64,
}

/// Forecast of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpuheap_fit {
    /// The request would fail, even after all cached memory was returned.
    No = 0,
    /// The driver reports enough free memory but may refuse the request, or reports no figures.
    Perhaps = 1,
    /// The request would succeed.
    Yes = 2,
}

/// The outstanding allocations of a heap at one moment. gpuheap_take_snapshot makes a snapshot, and
/// gpuheap_drop_snapshot ends it.
#[derive(Debug)]
pub struct gpuheap_snapshot(Snapshot);

/// Returns all cached memory to the driver. Reports how much memory the heap keeps, and why. Waits
/// for frees in flight. Live memory is not changed.
///
/// flushed: receives the figures. Set flushed->size before the call. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_flush(
    heap: *mut gpuheap_heap,
    flushed: *mut gpuheap_flushed,
) -> gpuheap_status {
    enter("gpuheap_flush", || {
        let size = size_of_optional(flushed)?;
        let report = gpuheap_heap::get(heap)?.heap().flush()?;
        if let Some(size) = size {
            write_result(gpuheap_flushed::new(&report), flushed, size);
        }
        Ok(())
    })
}

/// Forecasts whether gpuheap_allocate would serve a request of the given size now. Takes no memory,
/// returns none, and does not wait. Other threads and processes may change the outcome at any time.
///
/// fit: receives the forecast. buffer, capacity, length: receive the reason, with figures, by the
/// rules of gpuheap_memory_status. All three may be null or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_would_fit(
    heap: *mut gpuheap_heap,
    bytes: u64,
    fit: *mut gpuheap_fit,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> gpuheap_status {
    enter("gpuheap_would_fit", || {
        let room = Room { buffer, capacity, length }.check()?;
        let forecast = gpuheap_heap::get(heap)?.heap().would_fit(bytes)?;
        let answer = match forecast {
            Fit::Yes { .. } => gpuheap_fit::Yes,
            Fit::Perhaps { .. } => gpuheap_fit::Perhaps,
            _ => gpuheap_fit::No,
        };
        write(fit, "where the forecast goes", answer)?;
        room.write(&forecast.to_string());
        Ok(())
    })
}

/// Writes the status of the heap and its device: the memory taken, allocated and cached, the limits
/// and, with tracking on, the outstanding allocations. Does not wait for the device.
///
/// format: a gpuheap_format. buffer: receives the text, in UTF-8. The text is cut to fit capacity
/// and always ends with a null. If capacity is 0, nothing is written and buffer may be null.
/// length: receives the length of the whole text without the null. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_memory_status(
    heap: *mut gpuheap_heap,
    format: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> gpuheap_status {
    enter("gpuheap_memory_status", || {
        let room = Room { buffer, capacity, length }.check()?;
        let status = gpuheap_heap::get(heap)?.heap().memory_status()?;
        let text = formatted(format, &status, || status.to_json())?;
        room.write(&text);
        Ok(())
    })
}

/// Writes the outstanding allocations, grouped by the place and the thread that allocated them,
/// most bytes first. Does not wait. Returns GPUHEAP_STATUS_REFUSED if the heap was opened without
/// tracking. Lines of a C program are known only with the tracking "backtraces".
///
/// format, buffer, capacity, length: as for gpuheap_memory_status. allocations: receives the number
/// of outstanding allocations. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_leaks(
    heap: *mut gpuheap_heap,
    format: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    allocations: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_leaks", || {
        let room = Room { buffer, capacity, length }.check()?;
        let leaks = gpuheap_heap::get(heap)?.heap().leaks()?;
        let text = formatted(format, &leaks, || leaks.to_json())?;
        room.write(&text);
        write_if_wanted(allocations, leaks.allocations);
        Ok(())
    })
}

/// Records the outstanding allocations of this moment, for gpuheap_snapshot_difference. Does not
/// wait. Returns GPUHEAP_STATUS_REFUSED if the heap was opened without tracking.
///
/// snapshot: receives the snapshot; null on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_take_snapshot(
    heap: *mut gpuheap_heap,
    snapshot: *mut *mut gpuheap_snapshot,
) -> gpuheap_status {
    enter("gpuheap_take_snapshot", || {
        write(snapshot, "where the snapshot goes", std::ptr::null_mut())?;
        let taken = gpuheap_heap::get(heap)?.heap().snapshot()?;
        let taken = Box::into_raw(Box::new(gpuheap_snapshot(taken)));
        write(snapshot, "where the snapshot goes", taken)
    })
}

/// Writes the changes between two snapshots of one heap, grouped by the place that allocated,
/// largest growth first. Both snapshots stay valid. The heap may already be closed.
///
/// format, buffer, capacity, length: as for gpuheap_memory_status. growth: receives the growth of
/// the outstanding bytes. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_snapshot_difference(
    earlier: *const gpuheap_snapshot,
    later: *const gpuheap_snapshot,
    format: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    growth: *mut i64,
) -> gpuheap_status {
    enter("gpuheap_snapshot_difference", || {
        let room = Room { buffer, capacity, length }.check()?;
        let change = gpuheap_snapshot::difference(earlier, later)?;
        let text = formatted(format, &change, || change.to_json())?;
        room.write(&text);
        write_if_wanted(growth, change.bytes);
        Ok(())
    })
}

/// Ends a snapshot. A null snapshot is allowed. Do not use a snapshot after its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_drop_snapshot(snapshot: *mut gpuheap_snapshot) -> gpuheap_status {
    enter("gpuheap_drop_snapshot", || {
        if !snapshot.is_null() {
            drop(Box::from_raw(snapshot));
        }
        Ok(())
    })
}

impl gpuheap_snapshot {
    /// Returns the changes between two snapshots.
    ///
    /// # Safety
    ///
    /// Each snapshot is null, or `gpuheap_take_snapshot` returned it and it was not dropped.
    pub(crate) unsafe fn difference(
        earlier: *const gpuheap_snapshot,
        later: *const gpuheap_snapshot,
    ) -> Result<Diff, Failure> {
        match (earlier.as_ref(), later.as_ref()) {
            (Some(earlier), Some(later)) => Ok(later.0.diff(&earlier.0)),
            _ => Err(Failure::refused(
                "a snapshot is a null pointer: pass one from gpuheap_take_snapshot; in C++, a gpuheap::snapshot that was moved from has none",
            )),
        }
    }
}

sized!(gpuheap_flushed, device_total: u64, "figures of the flush");

impl gpuheap_flushed {
    fn new(report: &FlushReport) -> gpuheap_flushed {
        let sum = |figure: fn(&gpuheap::FlushedKind) -> u64| report.kinds.iter().map(figure).sum();
        gpuheap_flushed {
            size: size_of::<gpuheap_flushed>(),
            given_back: report.given_back(),
            live: sum(|kind| kind.live),
            live_allocations: sum(|kind| kind.live_allocations),
            still_cached: sum(|kind| kind.still_cached),
            other_heaps: report.other_heaps,
            other_heaps_cached: report.other_heaps_cached,
            context_and_others: report.context_and_others.unwrap_or(GPUHEAP_UNKNOWN),
            device_free: report.device_free.unwrap_or(GPUHEAP_UNKNOWN),
            device_total: report.device_total,
            held: sum(|kind| kind.held),
            held_free: sum(|kind| kind.held_free),
            held_pieces: sum(|kind| kind.held_pieces),
        }
    }
}
