//! The functions. Their documentation is the header's.
//!
//! Preconditions of all of them, a C programmer's custom, are not said at each: pointers are valid
//! for what is read and written through them, texts end with a null, a heap is from `gpuheap_open`
//! and nobody closes it meanwhile.
#![allow(clippy::missing_safety_doc, reason = "see above")]

use std::ffi::{c_char, c_void};

use gpuheap::{Device, Heap, Limits};

use crate::entry::{Failure, enter, gpuheap_status, text, write};
use crate::handle::gpuheap_heap;
use crate::options::gpuheap_options;
use crate::statistics::gpuheap_statistics;

/// Opens a device and makes a heap of its memory. Takes no memory yet; blocks while the driver makes
/// the device's context, about 0.1 s.
///
/// device: "cuda:0" (a real one by its number), "emulated:16GiB" (one of this process, over host
/// memory), or null for the one of GPUHEAP_DEVICE, else the first real GPU, else an emulated one.
/// options: null for what the environment says.
/// heap: where the heap goes; null if this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_open(
    device: *const c_char,
    options: *const gpuheap_options,
    heap: *mut *mut gpuheap_heap,
) -> gpuheap_status {
    enter("gpuheap_open", || {
        // SAFETY: null or the caller's variable.
        unsafe { write(heap, "where the heap goes", std::ptr::null_mut()) }?;
        // SAFETY: null or a C string.
        let device = match unsafe { text(device, "the device") }? {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let (mut builder, mut unannounced) = (Heap::builder(&device), false);
        if !options.is_null() {
            // SAFETY: not null, so options with the size that they say, and with texts.
            let options = unsafe { gpuheap_options::read(options) }?;
            unannounced = options.has_unannounced_streams()?;
            // SAFETY: likewise.
            builder = unsafe { options.apply(builder) }?;
        }
        let opened = gpuheap_heap::with_streams(&device, &builder.build()?, unannounced);
        // SAFETY: the caller's variable, as it is not null.
        unsafe { write(heap, "where the heap goes", opened) }
    })
}

/// Ends a heap: after a wait for all work of the device everything goes back to the driver, what is
/// still allocated too. No other thread may use the heap meanwhile; what uses it afterwards gets
/// GPUHEAP_STATUS_GONE. The streams that it was used with may be gone by now, even unannounced if the
/// heap was not used since and has no idle trim, which uses it by itself. The wait breaks a capture of a
/// graph that a stream of the device is at.
///
/// The heap is gone whatever is returned: anything but GPUHEAP_STATUS_OK says what may not have gone
/// back. Null is fine. A program need not close its heaps before it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_close(heap: *mut gpuheap_heap) -> gpuheap_status {
    // SAFETY: null or from gpuheap_open, and nobody uses it any more.
    enter("gpuheap_close", || unsafe { gpuheap_heap::close(heap) })
}

/// Memory for use on a stream from this point of it on, aligned to 512 bytes, not initialised. A
/// request that the cache serves does not wait for the device. Before it gives up for want of memory
/// it waits for frees in flight and gives cached memory back, also that of the process's other heaps.
///
/// stream: a CUstream or cudaStream_t of the heap's device that is alive; null for the legacy default
/// stream. A thread's own default stream (0x2) is refused: it means another one on every thread.
/// Before a stream is destroyed, gpuheap_stream_ended has to be called, unless the heap was opened for
/// unannounced_streams.
/// address: where the address goes; null if this fails, and for 0 bytes, which need no free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_allocate(
    heap: *mut gpuheap_heap,
    bytes: u64,
    stream: *mut c_void,
    address: *mut *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_allocate", || {
        // SAFETY: null or the caller's variable.
        unsafe { write(address, "where the address goes", std::ptr::null_mut()) }?;
        // SAFETY: null or from gpuheap_open; the stream is alive; not null by now.
        unsafe {
            address.write(gpuheap_heap::get(heap)?.allocate(bytes, stream)? as *mut c_void);
        }
        Ok(())
    })
}

/// Gives memory back in the order of the stream that it was allocated on: it may still be in use
/// there, and on no other stream. That stream may have ended, if that was announced; where streams end
/// unannounced it is alive, or gpuheap_free_on is called. Any thread may free what another allocated.
/// Does not wait for the device, unless memory goes back to the driver by it.
///
/// With GPUHEAP_STATUS_UNKNOWN_ADDRESS nothing was freed; with GPUHEAP_STATUS_DRIVER it is freed all
/// the same. Null is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_free(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_free", || {
        // SAFETY: null or from gpuheap_open.
        let heap = unsafe { gpuheap_heap::get(heap) }?;
        if address.is_null() {
            return Ok(());
        }
        heap.take(address)?.free().map_err(Failure::after_free)
    })
}

/// Gives memory back in the order of another stream than the one that it was allocated on. That stream
/// comes after all work on the memory: it has waited, by an event, for the stream that the memory was
/// allocated on, at a point after the allocation, and for each other stream that used the memory.
/// Otherwise what is allocated next meets work that is not over. The stream is as for
/// gpuheap_allocate; where it is refused, nothing is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_free_on(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_free_on", || {
        // SAFETY: null or from gpuheap_open.
        let heap = unsafe { gpuheap_heap::get(heap) }?;
        if address.is_null() {
            return Ok(());
        }
        // First, so that the block stays where it is if there is no such stream.
        // SAFETY: the stream is alive.
        let stream = unsafe { heap.live_stream(stream) }?;
        // SAFETY: the stream comes after all other work on the memory, which the caller says.
        unsafe { heap.take(address)?.free_on_unchecked(stream) }.map_err(Failure::after_free)
    })
}

/// Says that a stream is about to be destroyed. To be called before that, when all work on the heap's
/// memory was given to it. Afterwards the heap does not touch the handle any more, and what was freed
/// on the stream is handed out again once the stream got there. Does not wait for the device. What
/// was allocated on the stream may live on, and be freed later.
///
/// A stream that ends unannounced is undefined behaviour: the driver may crash when the heap asks it
/// how far that stream has got, and where the driver gave the handle to a new stream, memory goes to
/// that one while the old one's work on it still runs.
///
/// Once for a stream, to each heap that it was used with, while no other thread is in a call with it, and
/// after all work on memory that was allocated before, unless that is freed on another stream. If
/// this fails the heap still needs the stream: call it again. A stream that the heap never saw, or a
/// default stream, is fine and changes nothing. With unannounced_streams it need not be called, and spares
/// the heap what it keeps of the stream; then the stream may have ended already, if its handle is not
/// another one's yet. No event marks the end of such a stream: memory that is freed on it after this call
/// is handed out again only once the heap waited for the whole device since that free, in
/// gpuheap_reclaim or gpuheap_reclaim_all, or for a request that would fail otherwise. While a
/// stream that the heap knows captures a graph, it does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_stream_ended(
    heap: *mut gpuheap_heap,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_stream_ended", || {
        // SAFETY: null or from gpuheap_open.
        unsafe { gpuheap_heap::get(heap) }?.stream_ended(stream)
    })
}

/// How many bytes were asked for at an address that is allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_allocation_size(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
    bytes: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_allocation_size", || {
        if bytes.is_null() {
            return Err(Failure::refused("where the size goes is a null pointer"));
        }
        // SAFETY: null or from gpuheap_open; the caller's variable.
        unsafe { bytes.write(gpuheap_heap::get(heap)?.bytes(address)?) };
        Ok(())
    })
}

/// Gives cached memory back to the driver until at least that many bytes went, in few pieces and little
/// more than asked for. Waits for frees in flight.
///
/// given_back: where the bytes that went are written, less than asked for where less was cached; null
/// if nobody wants to know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_reclaim(
    heap: *mut gpuheap_heap,
    bytes: u64,
    given_back: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_reclaim", || {
        // SAFETY: null or from gpuheap_open; null or the caller's variable.
        unsafe { note(given_back, gpuheap_heap::get(heap)?.heap().reclaim(bytes)?) };
        Ok(())
    })
}

/// Gives all cached memory back to the driver. Waits for frees in flight.
///
/// given_back: as for gpuheap_reclaim.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_reclaim_all(
    heap: *mut gpuheap_heap,
    given_back: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_reclaim_all", || {
        // SAFETY: null or from gpuheap_open; null or the caller's variable.
        unsafe { note(given_back, gpuheap_heap::get(heap)?.heap().reclaim_all()?) };
        Ok(())
    })
}

/// Changes the limits, in bytes taken from the driver, 0 for none, and gives cached memory above them
/// back, for which it waits for frees in flight. What is live stays: a heap above its limit takes
/// nothing more. The hard limit of the pool "driver" cannot be raised above the one that it was made
/// with. What is refused changes nothing.
///
/// given_back: as for gpuheap_reclaim.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_set_limits(
    heap: *mut gpuheap_heap,
    soft: u64,
    hard: u64,
    given_back: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_set_limits", || {
        let limit = |bytes| (bytes > 0).then_some(bytes);
        let limits = Limits { soft: limit(soft), hard: limit(hard) };
        // SAFETY: null or from gpuheap_open; null or the caller's variable.
        unsafe { note(given_back, gpuheap_heap::get(heap)?.heap().set_limits(limits)?) };
        Ok(())
    })
}

/// Reads what the heap holds at this moment. Does not wait for the device, unless there is a soft
/// limit: then cached memory above it goes back to the driver first.
///
/// statistics: its size has to be set to sizeof(gpuheap_statistics).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_get_statistics(
    heap: *mut gpuheap_heap,
    statistics: *mut gpuheap_statistics,
) -> gpuheap_status {
    enter("gpuheap_get_statistics", || {
        if statistics.is_null() {
            return Err(Failure::refused("where the statistics go is a null pointer"));
        }
        // SAFETY: not null, so statistics with the size that they say; null or from gpuheap_open.
        unsafe {
            let size = gpuheap_statistics::size_of(statistics)?;
            let usage = gpuheap_heap::get(heap)?.heap().usage()?;
            gpuheap_statistics::new(&usage).write(statistics, size);
        }
        Ok(())
    })
}

/// The heap and its device for people, in several lines of UTF-8: what is taken, allocated and
/// cached, the limits and, with tracking on, what is outstanding. Does not wait for the device.
///
/// Writes as much as there is room for and a null, which always ends the text; nothing for a capacity
/// of 0.
/// buffer: may be null if capacity is 0.
/// length: where the length of the whole text goes, its null not counted; null if nobody wants to
/// know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_memory_status(
    heap: *mut gpuheap_heap,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> gpuheap_status {
    enter("gpuheap_memory_status", || {
        if buffer.is_null() && capacity > 0 {
            return Err(Failure::refused("the buffer is a null pointer, of a capacity above 0"));
        }
        // SAFETY: null or from gpuheap_open.
        let text = unsafe { gpuheap_heap::get(heap)?.heap().memory_status() }?.to_string();
        if let Some(room) = capacity.checked_sub(1) {
            let fits = (0..=room.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            let fits = fits.unwrap_or(0);
            // SAFETY: the buffer has more than these bytes.
            unsafe {
                buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), fits);
                buffer.add(fits).write(0);
            }
        }
        // SAFETY: null or the caller's variable.
        unsafe { note(length, text.len()) };
        Ok(())
    })
}

/// Writes a result that not everybody wants.
///
/// # Safety
///
/// `result` is null or valid for a write.
unsafe fn note<T>(result: *mut T, value: T) {
    if !result.is_null() {
        // SAFETY: not null, so valid for a write.
        unsafe { result.write(value) };
    }
}
