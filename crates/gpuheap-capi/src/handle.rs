//! Handle of a heap that C holds.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpuheap::{Block, Device, Heap, Stream};
use gpuheap_driver::CUstream;

use crate::blocks::Blocks;
use crate::entry::{Failure, gpuheap_status};
use crate::streams::Streams;

/// The memory of one device. From gpuheap_open; ended by gpuheap_close.
///
/// 128 bytes stay of each that was closed, so that its use is an error and no crash.
#[allow(non_camel_case_types, reason = "named as in C")]
// Cache lines of its own, because every call of every thread reads it.
#[repr(align(128))]
pub struct gpuheap_heap {
    /// Null once it is closed.
    open: AtomicPtr<Open>,
    /// The one that was closed before it.
    closed_before: AtomicPtr<gpuheap_heap>,
}

/// The one that was closed last: they can be reached, so that no search for leaks finds them.
static CLOSED: AtomicPtr<gpuheap_heap> = AtomicPtr::new(ptr::null_mut());

/// A heap that was not closed.
pub(crate) struct Open {
    blocks: Blocks<Block>,
    streams: Streams,
    heap: Heap,
    device: Device,
}

impl gpuheap_heap {
    /// A handle over a heap of `device`, to be given to C and ended by
    /// [`gpuheap_close`](crate::gpuheap_close). That lets go of the foreign streams of all who hold the
    /// heap ([`Heap::retire_all`]): their [`Stream`]s refuse work after it. Whoever closes the handle
    /// sees to it that the driver's streams get no more work on memory that was allocated before.
    pub fn new(device: &Device, heap: &Heap) -> *mut gpuheap_heap {
        gpuheap_heap::with_streams(device, heap, false)
    }

    /// Makes a handle as [`new`](gpuheap_heap::new) does, for streams that may end `unannounced`,
    /// as [`Device::unannounced_stream`] has them.
    pub fn with_streams(device: &Device, heap: &Heap, unannounced: bool) -> *mut gpuheap_heap {
        let open = Open {
            blocks: Blocks::new(),
            streams: Streams::new(unannounced),
            heap: heap.clone(),
            device: device.clone(),
        };
        Box::into_raw(Box::new(gpuheap_heap {
            open: AtomicPtr::new(Box::into_raw(Box::new(open))),
            closed_before: AtomicPtr::default(),
        }))
    }

    /// The device and the heap behind it; none once it is closed.
    pub fn inside(&self) -> Option<(Device, Heap)> {
        // SAFETY: null, or what `with_streams` made; nobody closes it while it is used.
        let open = unsafe { self.open.load(Ordering::Acquire).as_ref() };
        open.map(|open| (open.device.clone(), open.heap.clone()))
    }

    /// Returns what a pointer from C points to, if it may be used. Called before any lock is taken:
    /// a thread of a forked child's parent may have held it.
    ///
    /// # Safety
    ///
    /// `heap` is null or from [`new`](gpuheap_heap::new), and is not closed during `'a`. It may have
    /// been closed before.
    #[inline]
    pub(crate) unsafe fn get<'a>(heap: *const gpuheap_heap) -> Result<&'a Open, Failure> {
        // SAFETY: as the caller says; what was once opened is never freed.
        let heap = unsafe { heap.as_ref() };
        let heap = heap.ok_or_else(|| Failure::refused("the heap is a null pointer"))?;
        // SAFETY: null, or what `with_streams` made and nobody closes meanwhile.
        let open = unsafe { heap.open.load(Ordering::Acquire).as_ref() };
        let open = open.ok_or_else(closed)?;
        open.heap.check_alive()?;
        Ok(open)
    }

    /// Ends it: what is still allocated is freed, on no stream, after a wait for the device.
    ///
    /// # Safety
    ///
    /// `heap` is null or from [`new`](gpuheap_heap::new), and nobody uses it meanwhile.
    pub(crate) unsafe fn close(heap: *mut gpuheap_heap) -> Result<(), Failure> {
        // SAFETY: as the caller says; what was once opened is never freed.
        let Some(handle) = (unsafe { heap.as_ref() }) else { return Ok(()) };
        let open = handle.open.swap(ptr::null_mut(), Ordering::AcqRel);
        if open.is_null() {
            return Err(closed());
        }
        let mut last = CLOSED.load(Ordering::Relaxed);
        loop {
            handle.closed_before.store(last, Ordering::Relaxed);
            match CLOSED.compare_exchange_weak(last, heap, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => last = now,
            }
        }
        // SAFETY: made by `with_streams`, and nobody had it since the exchange.
        unsafe { Box::from_raw(open) }.close()
    }
}

impl Open {
    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Memory for use on a stream; a null address for no bytes.
    ///
    /// # Safety
    ///
    /// The stream is as [`Streams::get`] asks.
    #[inline]
    pub(crate) unsafe fn allocate(&self, bytes: u64, stream: *mut c_void) -> Result<u64, Failure> {
        // SAFETY: as the caller says.
        let found = unsafe { self.stream(stream) }?;
        let block = match self.heap.allocate(bytes, found) {
            Err(_) if found.is_retired() => {
                // SAFETY: as the caller says.
                self.heap.allocate(bytes, unsafe { self.stream_anew(stream, found.id()) }?)?
            }
            allocated => allocated?,
        };
        let address = block.address();
        if address != 0 {
            self.blocks.put(address, bytes, block);
        }
        Ok(address)
    }

    /// Takes the block at an address out, to be freed.
    #[inline]
    pub(crate) fn take(&self, address: *mut c_void) -> Result<Block, Failure> {
        self.blocks.take(address as u64).ok_or_else(|| unknown(address))
    }

    /// The size of the allocation at an address as requested, bytes.
    pub(crate) fn bytes(&self, address: *mut c_void) -> Result<u64, Failure> {
        self.blocks.bytes(address as u64).ok_or_else(|| unknown(address))
    }

    /// The stream of a handle.
    ///
    /// # Safety
    ///
    /// As [`Streams::get`].
    #[inline]
    pub(crate) unsafe fn stream(&self, raw: *mut c_void) -> Result<&Stream, Failure> {
        // SAFETY: as the caller says.
        Ok(unsafe { self.streams.get(&self.device, &self.heap, CUstream(raw as usize)) }?)
    }

    /// The stream of a handle, made anew if somebody retired all streams of the heap.
    ///
    /// # Safety
    ///
    /// As [`Streams::get`].
    pub(crate) unsafe fn live_stream(&self, raw: *mut c_void) -> Result<&Stream, Failure> {
        // SAFETY: as the caller says.
        let found = unsafe { self.stream(raw) }?;
        if !found.is_retired() {
            return Ok(found);
        }
        // SAFETY: as the caller says.
        unsafe { self.stream_anew(raw, found.id()) }
    }

    /// The stream of a handle, made anew in place of the retired one with the driver's `id`.
    ///
    /// # Safety
    ///
    /// As [`Streams::get`].
    #[cold]
    unsafe fn stream_anew(&self, raw: *mut c_void, id: u64) -> Result<&Stream, Failure> {
        self.streams.supersede(CUstream(raw as usize), id);
        // SAFETY: as the caller says.
        unsafe { self.stream(raw) }
    }

    /// The stream is about to end.
    pub(crate) fn stream_ended(&self, raw: *mut c_void) -> Result<(), Failure> {
        let raw = CUstream(raw as usize);
        // One that was never used here is of no interest.
        let Some(stream) = self.streams.find(raw) else { return Ok(()) };
        self.heap.retire(&stream)?;
        self.streams.forget(raw, stream.id());
        Ok(())
    }

    fn close(self: Box<Open>) -> Result<(), Failure> {
        let waited = self.heap.retire_all();
        if self.heap.check_alive().is_err() {
            // A forked child, in which another thread of the parent may have been changing what it is
            // made of; or the device was reset, and there is nothing to be freed.
            std::mem::forget(self);
            return Ok(waited?);
        }
        let Open { blocks, streams, heap, device } = *self;
        drop((blocks, streams));
        heap.close();
        drop(device);
        Ok(waited?)
    }
}

#[cold]
fn closed() -> Failure {
    Failure::new(
        gpuheap_status::Gone,
        "the heap was closed; use it before gpuheap_close, or open another one",
    )
}

#[cold]
fn unknown(address: *mut c_void) -> Failure {
    Failure::new(
        gpuheap_status::UnknownAddress,
        format!(
            "no allocation of this heap begins at {address:p}: it was freed before, or comes from \
             another heap or library; free each address once, by the heap that it is from"
        ),
    )
}

impl fmt::Debug for gpuheap_heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.load(Ordering::Relaxed);
        write!(f, "gpuheap_heap ({})", if open.is_null() { "closed" } else { "open" })
    }
}

#[cfg(test)]
mod tests {
    use gpuheap_driver::{CU_STREAM_NON_BLOCKING, check};

    use super::*;

    fn stream_of_the_program(device: &Device) -> CUstream {
        let mut raw = CUstream::NULL;
        let made = device.with_current(|driver| {
            // SAFETY: the pointer is valid.
            unsafe { driver.cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) }
        });
        check("cuStreamCreate", made.unwrap()).unwrap();
        raw
    }

    #[test]
    fn nothing_is_kept_of_a_stream_that_ended() {
        let device = Device::open("emulated:1GiB").unwrap();
        let handle = gpuheap_heap::new(&device, &Heap::new(&device).unwrap());
        // SAFETY: not closed before the end.
        let open = unsafe { gpuheap_heap::get(handle) }.ok().unwrap();
        let raw = stream_of_the_program(&device);
        let pointer = raw.0 as *mut c_void;
        // SAFETY: the stream is alive.
        assert!(unsafe { open.allocate(1000, pointer) }.is_ok());
        assert!(open.streams.find(raw).is_some());
        assert!(open.stream_ended(pointer).is_ok());
        assert!(open.streams.find(raw).is_none());
    }

    #[test]
    fn retired_stream_stays_while_another_thread_may_hold_it() {
        let device = Device::open("emulated:1GiB").unwrap();
        let heap = Heap::new(&device).unwrap();
        let handle = gpuheap_heap::new(&device, &heap);
        // SAFETY: not closed before the end.
        let open = unsafe { gpuheap_heap::get(handle) }.ok().unwrap();
        let raw = stream_of_the_program(&device);
        let pointer = raw.0 as *mut c_void;
        // SAFETY: the stream is alive to the end of the test.
        assert!(unsafe { open.allocate(1000, pointer) }.is_ok());
        // SAFETY: as above.
        let found: &Stream = unsafe { open.stream(pointer) }.ok().unwrap();
        let alive = std::sync::Arc::downgrade(&open.streams.find(raw).unwrap());
        heap.retire_all().unwrap();
        // What another thread does, between this one's search and its question.
        // SAFETY: as above.
        assert!(unsafe { open.allocate(1000, pointer) }.is_ok());
        assert!(alive.upgrade().is_some());
        assert!(found.is_retired());
    }
}
