//! C functions for allocations, frees, streams and limits. Their documentation goes into the
//! header.
//!
//! Preconditions of every function, not repeated in its comment: pointers are valid for the reads
//! and writes made through them. Texts end with a null. A heap comes from `gpuheap_open`, and no
//! thread closes it during the call.
#![allow(
    clippy::missing_safety_doc,
    unsafe_op_in_unsafe_fn,
    reason = "the pointers are the caller's, under the preconditions above"
)]

use std::ffi::{c_char, c_void};

use gpuheap::{Device, Heap, Limits};

use crate::entry::{Failure, enter, gpuheap_status, reported, text, write, write_if_wanted};
use crate::handle::gpuheap_heap;
use crate::options::gpuheap_options;
use crate::sized::{size_of_result, write_result};
use crate::statistics::gpuheap_statistics;
use crate::streams::LiveStream;

/// Opens a device and makes a heap of its memory. Takes no device memory yet. Blocks while the
/// driver makes the device's context, about 0.1 s.
///
/// device: name of the device. "cuda:0" is the real device number 0. "emulated:16GiB" is an
/// emulated device over host memory of this process. If device is null, GPUHEAP_DEVICE names the
/// device. If that variable is unset too, opens the first real GPU or, without a GPU, an emulated
/// device. options: null takes every option from the environment. heap: receives the heap; null on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_open(
    device: *const c_char,
    options: *const gpuheap_options,
    heap: *mut *mut gpuheap_heap,
) -> gpuheap_status {
    enter("gpuheap_open", || {
        write(heap, "where the heap goes", std::ptr::null_mut())?;
        let device = match text(device, "the device")? {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let (mut builder, mut unannounced) = (Heap::builder(&device), false);
        if !options.is_null() {
            let options = gpuheap_options::read(options)?;
            unannounced = options.has_unannounced_streams()?;
            builder = options.apply(builder)?;
        }
        let opened = gpuheap_heap::with_streams(&device, &builder.build()?, unannounced);
        write(heap, "where the heap goes", opened)
    })
}

/// Ends a heap. Waits for all work of the device, then returns all of the heap's memory to the
/// driver, including live allocations.
///
/// No other thread may use the heap during the call. Later calls with the heap return
/// GPUHEAP_STATUS_GONE. The heap's streams may already be destroyed. If a stream was destroyed
/// without the required call of gpuheap_stream_ended, the heap must not have been used since then.
/// In this case, the heap must have no idle trim (gpuheap_options), because the trim uses the heap
/// in the background. If a stream of the device is capturing a graph, the wait breaks the capture.
///
/// The heap is closed whatever status is returned. If the status is not GPUHEAP_STATUS_OK, the text
/// names the memory that may not have been returned to the driver. A null heap is allowed. A
/// program need not close its heaps before it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_close(heap: *mut gpuheap_heap) -> gpuheap_status {
    enter("gpuheap_close", || gpuheap_heap::close(heap))
}

/// Allocates memory for use on a stream, ordered after the work already enqueued there. The memory
/// is aligned to 512 bytes and not initialised. A request that the cache serves does not wait for
/// the device. Before a request fails for lack of memory, the heap waits for frees in flight. It
/// also returns cached memory to the driver, from all heaps of the process.
///
/// stream: a live CUstream or cudaStream_t of the heap's device; null for the legacy default
/// stream. Before a stream is destroyed, call gpuheap_stream_ended, unless the heap was opened with
/// unannounced_streams. address: receives the address; null on failure, and for 0 bytes. A null
/// address needs no free.
///
/// The stream 0x2 is the calling thread's own default stream. It ends with the thread, without a
/// call of gpuheap_stream_ended. Destructors of the thread's thread-local variables must not use
/// memory of the heap. In another thread, 0x2 means another stream. To order work after the first
/// thread's stream, the other thread uses the legacy default stream. A heap with the pool "driver"
/// refuses 0x2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_allocate(
    heap: *mut gpuheap_heap,
    bytes: u64,
    stream: *mut c_void,
    address: *mut *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_allocate", || {
        write(address, "where the address goes", std::ptr::null_mut())?;
        let heap = gpuheap_heap::get(heap)?;
        let allocated = heap.allocate(bytes, LiveStream::new(stream));
        let allocated = reported(heap.heap(), bytes, address, allocated)?;
        address.write(allocated as *mut c_void);
        Ok(())
    })
}

/// Allocates several blocks on one stream, each as gpuheap_allocate does. If one allocation fails,
/// the blocks before it are freed, and all addresses are null.
///
/// count: number of blocks. bytes: the sizes of the blocks. addresses: receives count addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_allocate_batch(
    heap: *mut gpuheap_heap,
    count: usize,
    bytes: *const u64,
    stream: *mut c_void,
    addresses: *mut *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_allocate_batch", || {
        let heap = gpuheap_heap::get(heap)?;
        if count == 0 {
            return Ok(());
        }
        if bytes.is_null() || addresses.is_null() {
            return Err(Failure::refused("the sizes or where the addresses go is a null pointer"));
        }
        for at in 0..count {
            addresses.add(at).write(std::ptr::null_mut());
        }
        for at in 0..count {
            let (bytes, address) = (bytes.add(at).read(), addresses.add(at));
            let allocated = heap.allocate(bytes, LiveStream::new(stream));
            match reported(heap.heap(), bytes, address, allocated) {
                Ok(allocated) => address.write(allocated as *mut c_void),
                Err(failure) => {
                    for made in (0..at).map(|made| addresses.add(made)) {
                        let address = made.replace(std::ptr::null_mut());
                        // The batch fails because of an allocation, and reports that failure. If
                        // this free fails too, the heap counts the failed free.
                        let _ = heap.free(address);
                    }
                    return Err(failure);
                }
            }
        }
        Ok(())
    })
}

/// Frees several blocks, each as gpuheap_free does. Null addresses are allowed. If one free fails,
/// the other blocks are still freed. The status and the text describe the first failure.
///
/// count: number of blocks. addresses: array of the count addresses, not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_free_batch(
    heap: *mut gpuheap_heap,
    count: usize,
    addresses: *const *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_free_batch", || {
        let heap = gpuheap_heap::get(heap)?;
        if count > 0 && addresses.is_null() {
            return Err(Failure::refused("the addresses are a null pointer"));
        }
        let mut first = Ok(());
        for at in 0..count {
            let address = addresses.add(at).read();
            if address.is_null() {
                continue;
            }
            first = first.and(heap.free(address));
        }
        first
    })
}

/// Frees memory in the order of the stream that it was allocated on. Work already enqueued on that
/// stream may still use the memory, but work on other streams must not. Any thread may free memory
/// that another thread allocated. Does not wait for the device, unless the free returns memory to
/// the driver.
///
/// If gpuheap_stream_ended was called for the stream, the stream may already be destroyed. With
/// unannounced_streams, the stream must still be alive; if it is not, call gpuheap_free_on.
///
/// GPUHEAP_STATUS_UNKNOWN_ADDRESS: nothing was freed. GPUHEAP_STATUS_DRIVER: the memory was freed,
/// but a driver call failed. A null address is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_free(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_free", || {
        let heap = gpuheap_heap::get(heap)?;
        if address.is_null() {
            return Ok(());
        }
        heap.free(address)
    })
}

/// Frees memory in the order of a given stream, not of the stream that it was allocated on. The
/// given stream must be ordered after all work on the memory. Before this call, make the given
/// stream wait, by events, for the stream of the allocation and for each other stream that used the
/// memory. Without these waits, a later allocation may overlap work that is still running.
///
/// The rules of gpuheap_allocate for streams hold here too. If the driver refuses the stream,
/// nothing is freed. If only the heap's pool refuses it, the memory is freed in the order of its
/// own stream, and the call returns an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_free_on(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_free_on", || {
        let heap = gpuheap_heap::get(heap)?;
        if address.is_null() {
            return Ok(());
        }
        heap.free_on_live(address, LiveStream::new(stream))
    })
}

/// Records that another stream uses an allocation. The later gpuheap_free is then also ordered
/// after the work enqueued on that stream before the free. Call this function once for each such
/// stream, before the free. Does not wait.
///
/// At the free, each recorded stream waits, by an event, for the stream recorded before it. The
/// memory is then reused in the order of the stream recorded last. If gpuheap_stream_ended was
/// called for a recorded stream, the free first waits for the whole device. gpuheap_free_on
/// ignores the recorded streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_used_on(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_used_on", || {
        let heap = gpuheap_heap::get(heap)?;
        let stream = heap.live_stream(LiveStream::new(stream))?;
        heap.use_on(address, &stream)
    })
}

/// Enqueues a fill on the stream. It sets bytes of an allocation, from an offset on, to the lowest
/// byte of value. The stream must be ordered after other work on these bytes. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_fill(
    heap: *mut gpuheap_heap,
    address: *mut c_void,
    offset: u64,
    bytes: u64,
    value: i32,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_fill", || {
        let heap = gpuheap_heap::get(heap)?;
        let stream = heap.live_stream(LiveStream::new(stream))?;
        heap.fill(address, offset, bytes, value as u8, &stream)
    })
}

/// Waits for all work on the heap's device, including work of other libraries of the process. If a
/// stream of the device is capturing a graph, the wait breaks the capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_wait(heap: *mut gpuheap_heap) -> gpuheap_status {
    enter("gpuheap_wait", || Ok(gpuheap_heap::get(heap)?.device().synchronize()?))
}

/// Announces that a stream is about to be destroyed. Call it before the stream is destroyed, after
/// all work on the heap's memory was enqueued there. Does not wait for the device. The heap does
/// not use the handle afterwards. Memory freed on the stream is handed out again once the stream
/// has reached the free. Memory allocated on the stream may stay live and be freed later.
///
/// Destroying a stream without announcing it is undefined behaviour. The driver may crash when the
/// heap queries the stream's progress. If the driver gives the handle to a new stream, the new
/// stream may get memory that work of the old stream still uses.
///
/// Call this function once for each heap that the stream was used with. No other thread may be in a
/// call with the stream. Work on memory allocated on the stream must be enqueued before the call,
/// unless that memory is freed on another stream. If the call fails, the heap still needs the
/// stream: repeat the call. For a default stream, or a stream that the heap never saw, the call
/// changes nothing.
///
/// With unannounced_streams, the call is optional, and releases the objects that the heap keeps for
/// the stream. The stream may already have ended, if the driver has not given its handle to a new
/// stream. No event marks the end of such a stream. Memory that is freed on the stream after this
/// call is therefore reused only after a later wait for the whole device. The heap makes that wait
/// in gpuheap_reclaim, in gpuheap_reclaim_all, and before a request would fail. While a stream that
/// the heap knows is capturing a graph, the heap does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_stream_ended(
    heap: *mut gpuheap_heap,
    stream: *mut c_void,
) -> gpuheap_status {
    enter("gpuheap_stream_ended", || gpuheap_heap::get(heap)?.stream_ended(stream))
}

/// Reads the requested size, in bytes, of the allocation at an address. Does not wait for the
/// device.
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
        bytes.write(gpuheap_heap::get(heap)?.bytes(address)?);
        Ok(())
    })
}

/// Returns cached memory to the driver until at least the given bytes are returned. Chooses few
/// segments, and returns little more than the given bytes. Waits for frees in flight.
///
/// given_back: receives the bytes returned, fewer than requested if less was cached. May be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_reclaim(
    heap: *mut gpuheap_heap,
    bytes: u64,
    given_back: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_reclaim", || {
        write_if_wanted(given_back, gpuheap_heap::get(heap)?.heap().reclaim(bytes)?);
        Ok(())
    })
}

/// Returns all cached memory to the driver. Waits for frees in flight.
///
/// given_back: receives the bytes returned; may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_reclaim_all(
    heap: *mut gpuheap_heap,
    given_back: *mut u64,
) -> gpuheap_status {
    enter("gpuheap_reclaim_all", || {
        write_if_wanted(given_back, gpuheap_heap::get(heap)?.heap().reclaim_all()?);
        Ok(())
    })
}

/// Changes the limits, in bytes taken from the driver; 0 removes a limit. Cached memory above the
/// new limits is returned to the driver, after a wait for frees in flight. Live memory is not
/// changed: if it exceeds the hard limit, the heap takes no more memory. The hard limit of the pool
/// "driver" cannot be raised above the limit that the heap was opened with. A refused call changes
/// nothing.
///
/// given_back: receives the bytes returned; may be null.
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
        write_if_wanted(given_back, gpuheap_heap::get(heap)?.heap().set_limits(limits)?);
        Ok(())
    })
}

/// Reads the heap's statistics at this moment. Does not wait for the device, with one exception: if
/// the heap has a soft limit, cached memory above the limit is returned to the driver first.
///
/// statistics: receives the figures. Set statistics->size to sizeof(gpuheap_statistics) before the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuheap_get_statistics(
    heap: *mut gpuheap_heap,
    statistics: *mut gpuheap_statistics,
) -> gpuheap_status {
    enter("gpuheap_get_statistics", || {
        let size = size_of_result(statistics)?;
        let usage = gpuheap_heap::get(heap)?.heap().usage()?;
        write_result(gpuheap_statistics::new(&usage), statistics, size);
        Ok(())
    })
}
