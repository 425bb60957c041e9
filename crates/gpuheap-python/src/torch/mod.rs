//! Functions that PyTorch calls by address, and the heaps that serve them.
//!
//! PyTorch calls these functions on any thread, with or without the interpreter's lock. If the heap
//! records lines, the first allocation of a line or of a thread waits for the lock. Later ones
//! wait for it only if the interpreter's frames cannot be read without it. `torch_entry.cpp`
//! contains the functions with C++ interfaces. These are the functions for pools of CUDA graphs,
//! and the allocation, because it throws a C++ exception if memory runs out.

mod pools;

use std::ffi::{c_char, c_double, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use gpuheap::{Error, Limits};
use gpuheap_driver::CUstream;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashMap;

use crate::addresses::Addresses;
use crate::failure::{PANICKED, refused, text, write_text};
use crate::heap::Heap;
use crate::libraries::PYTORCH;
use crate::locked::locked;
use crate::memory::Memory;
use crate::owner::Owner;
use pools::{PoolId, Pools};

/// Heaps, indexed by device ordinal.
static HEAPS: RwLock<Vec<Option<Arc<Served>>>> = RwLock::new(Vec::new());

/// Error text for a capture without a pool. Other tensors would reuse memory that the capture
/// frees. Each replay of the graph would then overwrite those tensors.
const CAPTURING: &str = "a CUDA graph is captured on this stream, and PyTorch has begun no memory pool for it, so \
     gpuheap cannot keep the graph's memory; capture by torch.cuda.graph() with a recent PyTorch, or allocate \
     before the capture";

/// A heap that PyTorch allocates from.
struct Served {
    owner: Arc<Owner>,
    addresses: Arc<Addresses>,
    /// PyTorch's streams, keyed by handle. The streams live as long as the process.
    streams: Mutex<FxHashMap<usize, gpuheap::Stream>>,
    /// Pools of CUDA graphs on the device.
    pools: Pools,
}

impl Served {
    /// Returns the stream of a handle; `None` for the default stream.
    fn stream(&self, raw: *mut c_void) -> Result<Option<gpuheap::Stream>, Error> {
        let raw = CUstream(raw as usize);
        if raw == CUstream::NULL || raw == CUstream::LEGACY {
            return Ok(None);
        }
        let mut streams = locked(&self.owner.heap, &self.streams)?;
        if let Some(known) = streams.get(&raw.0).filter(|known| !known.is_retired()) {
            return Ok(Some(known.clone()));
        }
        // SAFETY: PyTorch takes its streams from pools that live as long as the process.
        let stream = unsafe { self.owner.device.foreign_stream(raw) }?;
        // The id of a stream within a capture is valid only until the capture ends, so the table
        // does not store it.
        if !stream.is_of_capture() {
            streams.insert(raw.0, stream.clone());
        }
        Ok(Some(stream))
    }

    /// Allocates `bytes` on the stream `raw`. `finds_line` is set for a tensor's memory: the line
    /// is recorded, and a stream that is capturing is refused, because the heap cannot keep memory
    /// for a graph. It is not set for a segment of a `MemPool`, because PyTorch keeps that memory.
    fn allocate(&self, bytes: u64, raw: *mut c_void, finds_line: bool) -> Result<u64, String> {
        let stream = self.stream(raw).map_err(|error| text(&error))?;
        if finds_line && let Some(stream) = &stream {
            let captures = stream.is_of_capture() || stream.is_capturing().map_err(|e| text(&e))?;
            if captures {
                return Err(CAPTURING.to_owned());
            }
        }
        self.allocate_on(bytes, stream, finds_line).map_err(|error| error_text(&error))
    }

    fn allocate_on(
        &self,
        bytes: u64,
        stream: Option<gpuheap::Stream>,
        finds_line: bool,
    ) -> Result<u64, Error> {
        let on = stream.as_ref().unwrap_or(&self.owner.default);
        let block = self.owner.heap.allocate(bytes, on)?;
        let address = block.address();
        let record = if finds_line { self.owner.tracked_below(address, bytes) } else { None };
        let memory = Memory::new(block, record, None, self.owner.clone(), stream).of(PYTORCH);
        self.addresses.keep(address, memory)?;
        Ok(address)
    }
}

/// Makes PyTorch's functions allocate from `heap` on its device. Returns an error if the device
/// already has a heap.
#[pyfunction]
pub(crate) fn _torch_serve(py: Python<'_>, heap: &Heap) -> PyResult<()> {
    let ordinal = usize::try_from(heap.owner.device.ordinal()).unwrap_or(0);
    let served = Served {
        owner: heap.owner.clone(),
        addresses: heap.addresses.clone(),
        streams: Mutex::default(),
        pools: Pools::new(heap.owner.clone()),
    };
    if serve(ordinal, Arc::new(served)) {
        return Ok(());
    }
    let text = format!("PyTorch takes its memory of cuda:{ordinal} from gpuheap already");
    Err(refused(py, "InvalidArgument", &text))
}

/// Undoes `_torch_serve` before PyTorch has allocated anything.
#[pyfunction]
pub(crate) fn _torch_leave(ordinal: usize) {
    let left = {
        let mut heaps = HEAPS.write().unwrap_or_else(PoisonError::into_inner);
        heaps.get_mut(ordinal).and_then(Option::take)
    };
    drop(left);
}

/// Stores the heap of a device. Returns `false` if the device already has one. No Python code may
/// run under the lock, because PyTorch takes the lock while it holds the interpreter's lock.
fn serve(ordinal: usize, served: Arc<Served>) -> bool {
    let mut heaps = HEAPS.write().unwrap_or_else(PoisonError::into_inner);
    if heaps.len() <= ordinal {
        heaps.resize_with(ordinal + 1, || None);
    }
    let is_free = heaps[ordinal].is_none();
    if is_free {
        heaps[ordinal] = Some(served);
    }
    is_free
}

/// Returns the addresses of the functions, keyed by name. Without the feature `wheel`, the C++
/// functions are missing.
#[pyfunction]
pub(crate) fn _torch_functions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let functions = PyDict::new(py);
    #[cfg(feature = "wheel")]
    {
        unsafe extern "C" {
            fn gpuheap_torch_entry(bytes: isize, device: c_int, stream: *mut c_void)
            -> *mut c_void;
            // The declarations omit the C++ parameters. Only PyTorch calls these functions.
            fn gpuheap_torch_begin_pool();
            fn gpuheap_torch_end_pool();
            fn gpuheap_torch_release_pool();
        }
        functions.set_item("entry", gpuheap_torch_entry as *const () as usize)?;
        functions.set_item("begin_pool", gpuheap_torch_begin_pool as *const () as usize)?;
        functions.set_item("end_pool", gpuheap_torch_end_pool as *const () as usize)?;
        functions.set_item("release_pool", gpuheap_torch_release_pool as *const () as usize)?;
    }
    functions.set_item("allocate", gpuheap_torch_allocate as *const () as usize)?;
    functions.set_item("segment", segment as *const () as usize)?;
    functions.set_item("free", free as *const () as usize)?;
    functions.set_item("record_stream", record_stream as *const () as usize)?;
    functions.set_item("reset", reset as *const () as usize)?;
    functions.set_item("fraction", fraction as *const () as usize)?;
    Ok(functions)
}

/// Allocates for PyTorch. If `pool` is not null, allocates in that pool. Returns null for 0 bytes.
/// On failure, returns null and writes the reason to `text`.
///
/// # Safety
///
/// `stream` is a stream of PyTorch on `device`, and `text` has `room` writable bytes. `pool` is
/// null or points to the two numbers of a pool.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_torch_allocate(
    bytes: isize,
    device: c_int,
    stream: *mut c_void,
    pool: *const PoolId,
    text: *mut c_char,
    room: usize,
) -> *mut c_void {
    // SAFETY: the caller passes null or a pool.
    let pool = unsafe { pool.as_ref() }.copied();
    let done = allocate_for(bytes, device, |served, bytes| match pool {
        Some(id) => {
            served.pools.allocate(id, bytes, stream as usize).map_err(|error| error_text(&error))
        }
        None => served.allocate(bytes, stream, true),
    });
    match done {
        Ok(address) => address as *mut c_void,
        Err(why) => {
            // SAFETY: the caller passes `room` writable bytes.
            unsafe { write_text(&why, text, room) };
            std::ptr::null_mut()
        }
    }
}

/// Allocates a segment for a `MemPool`. Returns null if memory runs out.
unsafe extern "C" fn segment(bytes: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    allocate_for(bytes, device, |served, bytes| served.allocate(bytes, stream, false))
        .map_or(std::ptr::null_mut(), |address| address as *mut c_void)
}

/// Frees memory that [`gpuheap_torch_allocate`] or [`segment`] allocated, in the order of its
/// stream.
unsafe extern "C" fn free(address: *mut c_void, _: usize, device: c_int, _: *mut c_void) {
    let _ = guarded(|| {
        if let Some(served) = served(device) {
            // PyTorch accepts no error here. The heap counts memory that it could not free.
            if served.addresses.free(address as u64, None).is_none() {
                let _ = served.pools.free(address as u64);
            }
        }
    });
}

/// Orders the free of the memory at an address after the work of a stream.
unsafe extern "C" fn record_stream(address: *mut c_void, stream: *mut c_void) {
    let _ = guarded(|| {
        let heaps = HEAPS.read().unwrap_or_else(PoisonError::into_inner);
        for served in heaps.iter().flatten() {
            if served.addresses.has(address as u64) {
                if let Ok(stream) = served.stream(stream) {
                    // `record_stream` cannot return an error to PyTorch, so ignore it. An error
                    // occurs only in a forked child, and a forked child frees nothing.
                    let on = stream.as_ref().unwrap_or(&served.owner.default);
                    let _ = served.addresses.use_on(address as u64, on);
                }
                return;
            }
            if let Ok(true) = served.pools.share(address as u64) {
                return;
            }
        }
    });
}

/// Begins a capture into a pool.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_torch_pool_began(device: c_int, first: u64, second: u64) {
    on_pools(device, |pools| pools.begin([first, second]));
}

/// Ends a capture into a pool.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_torch_pool_ended(device: c_int) {
    on_pools(device, Pools::end);
}

/// Removes one use of a pool. PyTorch calls this after it destroyed a graph that was captured into
/// the pool.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_torch_pool_released(device: c_int, first: u64, second: u64) {
    on_pools(device, |pools| pools.release([first, second]));
}

/// Runs `work` on a device's pools. Ignores errors of `work`, because PyTorch accepts none here.
fn on_pools(device: c_int, work: impl FnOnce(&Pools) -> Result<(), Error>) {
    let _ = guarded(|| {
        if let Some(served) = served(device) {
            let _ = work(&served.pools);
        }
    });
}

/// Returns the cached memory of all heaps to the driver. `torch.cuda.empty_cache()` calls this.
unsafe extern "C" fn reset() {
    let _ = guarded(|| {
        let heaps = HEAPS.read().unwrap_or_else(PoisonError::into_inner).clone();
        for served in heaps.iter().flatten() {
            // Memory that cannot be returned stays cached, and is counted as cached.
            let _ = served.pools.return_released();
            let _ = served.owner.heap.reclaim_all();
        }
    });
}

/// Sets the limit of a device, for `torch.cuda.set_per_process_memory_fraction()`.
unsafe extern "C" fn fraction(fraction: c_double, device: c_int) {
    let _ = guarded(|| {
        if let Some(served) = served(device) {
            let heap = &served.owner.heap;
            let hard = (served.owner.device.total_memory() as f64 * fraction) as u64;
            // If the heap refuses the limit, the earlier limit stays.
            let _ = heap.set_limits(Limits { hard: Some(hard), ..heap.limits() });
        }
    });
}

fn allocate_for(
    bytes: isize,
    device: c_int,
    allocate: impl FnOnce(&Served, u64) -> Result<u64, String>,
) -> Result<u64, String> {
    let bytes = u64::try_from(bytes).unwrap_or(0);
    if bytes == 0 {
        return Ok(0);
    }
    let done = guarded(|| match served(device) {
        Some(served) => allocate(&served, bytes),
        None => Err(format!(
            "gpuheap serves no heap of cuda:{device}; pass one to gpuheap.torch.install(), or make \
             another device current"
        )),
    });
    done.unwrap_or_else(|| Err(PANICKED.to_owned()))
}

/// Returns an error's text. The text for out of memory begins with the same words as PyTorch's own.
fn error_text(error: &Error) -> String {
    match error.out_of_memory() {
        Some(_) => format!("CUDA out of memory. {}", text(error)),
        None => text(error),
    }
}

fn served(device: c_int) -> Option<Arc<Served>> {
    let heaps = HEAPS.read().unwrap_or_else(PoisonError::into_inner);
    heaps.get(usize::try_from(device).ok()?)?.clone()
}

/// Runs work that must not unwind into PyTorch. Returns `None` if it panicked.
fn guarded<R>(work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
