//! Streams: the heap's own, and those of other libraries.
//!
//! Memory is freed in the order of a stream, so a heap needs a foreign stream for as long as it has
//! memory that was allocated on it. A handle says nothing about the life of its stream: the driver
//! may give it to another one. Two ways around this:
//!
//! * A stream given as an object (`__cuda_stream__`) is held by the heap. While the object lives,
//!   its handle means this stream. [`Streams::sweep`] releases objects that only the table holds,
//!   after the heap was told of the stream's end.
//! * A stream given as a number may end at any time. The driver is asked at each use, and each free
//!   records an event.
//!
//! A thread's own default stream (2) needs neither: a heap notices the end of the thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::Error;
use gpuheap_driver::{CUstream, check};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use rustc_hash::FxHashMap;

use crate::failure::{call, call_detached};

/// A stream of a heap's device that does not wait for the default stream. From `Heap.stream()`.
///
/// Other libraries take it by `__cuda_stream__`.
#[pyclass(frozen, module = "gpuheap", weakref)]
pub(crate) struct Stream {
    pub(crate) inner: gpuheap::Stream,
}

#[pymethods]
impl Stream {
    /// The driver's handle.
    #[getter]
    fn handle(&self) -> usize {
        self.inner.raw().0
    }

    /// Waits until all work of the stream is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        call_detached(py, || self.inner.synchronize())
    }

    /// `True` if all work of the stream is done.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        call(py, || self.inner.is_done())
    }

    /// Makes the stream wait for what another one has to do by now. Does not wait itself.
    fn wait_for(&self, py: Python<'_>, other: &Stream) -> PyResult<()> {
        call(py, || self.inner.wait(&other.inner.record()?))
    }

    fn __cuda_stream__(&self) -> (u32, usize) {
        (0, self.handle())
    }

    fn __repr__(&self) -> String {
        format!("<gpuheap.Stream {:#x}>", self.handle())
    }
}

/// The foreign streams that a heap needs, by handle.
#[derive(Default)]
pub(crate) struct Streams {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_handle: FxHashMap<usize, Entry>,
    /// Streams entered since the last sweep.
    entered: usize,
}

struct Entry {
    stream: gpuheap::Stream,
    /// Object that keeps the stream alive; `None` for a stream that was given as a number.
    owner: Option<Py<PyAny>>,
}

impl Streams {
    /// Number of new streams after which the table is swept.
    const SWEEP: usize = 10;

    /// Returns the stream that `given` means: a stream of gpuheap, an object with
    /// `__cuda_stream__`, or a number.
    pub(crate) fn get(
        &self,
        py: Python<'_>,
        heap: &gpuheap::Heap,
        default: &gpuheap::Stream,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<gpuheap::Stream> {
        if let Ok(own) = given.cast::<Stream>() {
            return Ok(own.get().inner.clone());
        }
        let (handle, is_object) = handle_of(given)?;
        if CUstream(handle) == CUstream::NULL || CUstream(handle) == CUstream::LEGACY {
            return Ok(default.clone());
        }
        if CUstream(handle) == CUstream::PER_THREAD {
            // In no table, because the handle means another stream on each thread.
            // SAFETY: a thread has this stream until it ends, which heaps notice by themselves.
            return call(py, || unsafe { default.device().foreign_stream(CUstream(handle)) });
        }
        let known = self.lock();
        if let Some(entry) = known.by_handle.get(&handle)
            && !entry.stream.is_retired()
            && (entry.owner.is_some() || call(py, || still_means(&entry.stream))?)
        {
            return Ok(entry.stream.clone());
        }
        drop(known);
        let device = default.device();
        let stream = call(py, || {
            if is_object {
                // SAFETY: the object keeps the stream alive, and the table keeps the object until
                // the heap was told of the stream's end.
                unsafe { device.foreign_stream(CUstream(handle)) }
            } else {
                // SAFETY: the stream is alive in the calls that it is given to, as the
                // documentation of numbers says; a Python program that passes another number is
                // wrong about its own memory.
                unsafe { device.unannounced_stream(CUstream(handle)) }
            }
        })?;
        let owner = is_object.then(|| given.clone().unbind());
        let mut known = self.lock();
        let old = known.by_handle.insert(handle, Entry { stream: stream.clone(), owner });
        known.entered += 1;
        let full = known.entered >= Streams::SWEEP;
        drop(known);
        if let Some(old) = old
            && !old.stream.is_retired()
            && old.stream.id() != stream.id()
        {
            call_detached(py, || heap.retire(&old.stream))?;
        }
        if full {
            self.sweep(py, heap)?;
        }
        Ok(stream)
    }

    /// Releases the streams whose objects only the table holds.
    pub(crate) fn sweep(&self, py: Python<'_>, heap: &gpuheap::Heap) -> PyResult<()> {
        let mut ended = Vec::new();
        {
            let mut known = self.lock();
            known.entered = 0;
            known.by_handle.retain(|_, entry| {
                let is_held = match &entry.owner {
                    // SAFETY: the object is alive, and the interpreter's lock is held.
                    Some(owner) => unsafe { ffi::Py_REFCNT(owner.as_ptr()) > 1 },
                    None => true,
                };
                if !is_held {
                    ended.push((entry.stream.clone(), entry.owner.take()));
                }
                is_held
            });
        }
        for (stream, owner) in ended {
            call_detached(py, || heap.retire(&stream))?;
            drop(owner);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the handle of a stream, and whether it was given as an object that keeps it alive.
pub(crate) fn handle_of(given: &Bound<'_, PyAny>) -> PyResult<(usize, bool)> {
    if given.is_instance_of::<PyInt>() {
        let handle = given.extract::<usize>();
        return handle.map(|handle| (handle, false)).map_err(|_| {
            PyValueError::new_err(format!(
                "{given} is no handle of a stream; pass 0 for the default one"
            ))
        });
    }
    if let Ok(method) = given.getattr("__cuda_stream__") {
        let answer = method.call0()?;
        let (version, handle): (u32, usize) = answer.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "__cuda_stream__ of {} returned {answer}, and not the pair (0, handle)",
                given.get_type()
            ))
        })?;
        if version == 0 {
            return Ok((handle, true));
        }
        return Err(PyTypeError::new_err(format!(
            "__cuda_stream__ of {} has version {version}; gpuheap knows version 0",
            given.get_type()
        )));
    }
    Err(PyTypeError::new_err(format!(
        "{} is no stream; pass an object with __cuda_stream__ (gpuheap, cuda.core, CuPy, PyTorch, RMM), \
         or the handle as a number",
        given.get_type()
    )))
}

/// Returns whether the handle of a stream that was given as a number still means that stream.
fn still_means(stream: &gpuheap::Stream) -> Result<bool, Error> {
    // A stream that is capturing a graph does not tell its id, and the question would break the
    // capture.
    if stream.is_capturing()? {
        return Ok(false);
    }
    let mut id = 0;
    // SAFETY: the pointer is valid for the call, and the stream is alive in this call, as the
    // documentation of numbers says.
    let asked = stream
        .device()
        .with_current(|driver| unsafe { driver.cuStreamGetId(stream.raw(), &mut id) })?;
    check("cuStreamGetId", asked)?;
    Ok(id == stream.id())
}
