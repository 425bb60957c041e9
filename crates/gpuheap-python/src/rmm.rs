//! The heap of a native RMM resource, and the functions that the resource calls by address.
//!
//! `gpuheap.rmm.build` compiles the resource against the installed RMM. RMM calls the functions on
//! any thread, with or without the interpreter's lock. The functions take the lock only if the heap
//! records the Python line of each allocation.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use gpuheap::{Error, ErrorKind};
use gpuheap_driver::CUstream;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::addresses::Addresses;
use crate::failure::{PANICKED, text, write_text};
use crate::heap::Heap;
use crate::libraries::RMM;
use crate::locked::locked;
use crate::memory::Memory;
use crate::owner::Owner;
use crate::streams::still_means;

/// A heap that a native resource allocates from.
#[pyclass(frozen, name = "_RmmHeap", module = "gpuheap")]
pub(crate) struct RmmHeap {
    served: Arc<Served>,
}

#[pymethods]
impl RmmHeap {
    #[new]
    fn new(heap: &Heap) -> RmmHeap {
        let (owner, addresses) = (heap.owner.clone(), heap.addresses.clone());
        RmmHeap { served: Arc::new(Served { owner, addresses, streams: Mutex::default() }) }
    }

    /// Adds a reference to the heap. Returns the addresses of three functions (allocate, free,
    /// release this reference), and the address of the heap to pass to them.
    fn share(&self) -> (usize, usize, usize, usize) {
        let heap = Arc::into_raw(self.served.clone()) as usize;
        let functions = [allocate as *const (), free as *const (), release as *const ()];
        let [allocate, free, release] = functions.map(|function| function as usize);
        (allocate, free, release, heap)
    }
}

/// State of a resource's heap.
struct Served {
    owner: Arc<Owner>,
    addresses: Arc<Addresses>,
    /// Streams of the program, keyed by handle.
    streams: Mutex<FxHashMap<usize, gpuheap::Stream>>,
}

impl Served {
    /// Returns the stream of a handle; `None` for the default stream.
    fn stream(&self, raw: *mut c_void) -> Result<Option<gpuheap::Stream>, Error> {
        let raw = CUstream(raw as usize);
        if raw == CUstream::NULL || raw == CUstream::LEGACY {
            return Ok(None);
        }
        let known = locked(&self.owner.heap, &self.streams)?.get(&raw.0).cloned();
        if let Some(known) = &known
            && still_means(known)? == Some(true)
        {
            return Ok(Some(known.clone()));
        }
        // SAFETY: RMM's callers pass a stream that is alive, and free the memory of a stream before
        // the stream ends.
        let stream = unsafe { self.owner.device.unannounced_stream(raw) }?;
        // The table stores no per-thread default stream, because its handle names a different
        // stream on each thread. The table stores no stream of a capture either, because the
        // stream's id is valid only until the capture ends.
        if raw != CUstream::PER_THREAD && !stream.is_of_capture() {
            locked(&self.owner.heap, &self.streams)?.insert(raw.0, stream.clone());
            if let Some(ended) = known {
                self.owner.heap.retire(&ended)?;
            }
        }
        Ok(Some(stream))
    }

    fn allocate(&self, bytes: u64, raw: *mut c_void) -> Result<u64, Error> {
        let stream = self.stream(raw)?;
        let block =
            self.owner.heap.allocate(bytes, stream.as_ref().unwrap_or(&self.owner.default))?;
        let address = block.address();
        let record = self.owner.tracked_below(address, bytes);
        let memory = Memory::new(block, record, None, self.owner.clone(), stream).of(RMM);
        self.addresses.keep(address, memory)?;
        Ok(address)
    }

    fn free(&self, address: u64, raw: *mut c_void) -> Result<(), Error> {
        let stream = self.stream(raw)?;
        let on = stream.as_ref().unwrap_or(&self.owner.default);
        self.addresses.free(address, Some(on)).unwrap_or(Ok(()))
    }
}

/// Allocates for RMM. On failure, returns null and writes the reason to `to`. If memory ran out,
/// sets `is_full`.
///
/// # Safety
///
/// `heap` is an address of [`RmmHeap::share`] that is not released, `stream` is alive, `to` has
/// `room` writable bytes, and `is_full` is writable.
unsafe extern "C" fn allocate(
    heap: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    to: *mut c_char,
    room: usize,
    is_full: *mut bool,
) -> *mut c_void {
    // SAFETY: the caller passes a heap that is alive.
    let served = unsafe { &*heap.cast::<Served>() };
    let done = catch_unwind(AssertUnwindSafe(|| served.allocate(bytes as u64, stream)));
    let (kind, why) = match done {
        Ok(Ok(address)) => return address as *mut c_void,
        Ok(Err(error)) => (Some(error.kind()), text(&error)),
        Err(_) => (None, PANICKED.to_owned()),
    };
    // SAFETY: the caller passes a writable address.
    unsafe { is_full.write(kind == Some(ErrorKind::OutOfMemory)) };
    // SAFETY: the caller passes `room` writable bytes.
    unsafe { write_text(&why, to, room) };
    std::ptr::null_mut()
}

/// Frees memory that [`allocate`] returned, in the order of `stream`.
///
/// # Safety
///
/// [`RmmHeap::share`] returned `heap`, and `heap` is not released yet. `stream` is alive.
unsafe extern "C" fn free(heap: *const c_void, address: *mut c_void, stream: *mut c_void) {
    // SAFETY: the caller passes a heap that is alive.
    let served = unsafe { &*heap.cast::<Served>() };
    // RMM accepts no error here. The heap counts memory that it could not free.
    let _ = catch_unwind(AssertUnwindSafe(|| served.free(address as u64, stream)));
}

/// Releases a reference that [`RmmHeap::share`] added.
///
/// # Safety
///
/// [`RmmHeap::share`] returned `heap`, and `heap` is not released yet.
unsafe extern "C" fn release(heap: *const c_void) {
    // SAFETY: `Arc::into_raw` returned the address, and the caller releases it only once.
    let _ = catch_unwind(|| drop(unsafe { Arc::from_raw(heap.cast::<Served>()) }));
}
