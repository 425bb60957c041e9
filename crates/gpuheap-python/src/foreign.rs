//! Makes arrays over the memory of other libraries, through DLPack and the CUDA array interface.
//!
//! When an array is freed, the producer's deleter is called after all work on the array. Neither
//! protocol can pass a stream to the deleter, so the host waits for the work first.

use std::sync::Arc;

use gpuheap::Stream;
use gpuheap::ndarray::Ix1;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::{Array, Held, Window, length, read_numbers};
use crate::buffer::Buffer;
use crate::exchange::{
    self, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, Described, Managed, SHOWN, check_strides,
    dlpack_device, unknown_type,
};
use crate::failure::{call, call_detached, wait_detached};
use crate::heap::Heap;
use crate::kind::{Kind, MOST_AXES, read_index};
use crate::owner::Owner;

/// Makes an array over another library's memory, without a copy. `source` has `__dlpack__`
/// (PyTorch, CuPy, JAX, gpuheap) or `__cuda_array_interface__` (Numba).
///
/// `heap` allocates the results of operations on the array. The heap must belong to the memory's
/// device. Without `heap`, results for a gpuheap array or buffer come from that object's heap.
/// Results for other objects come from the default heap. `stream` waits for the work that the
/// library enqueued on the memory, and the array's first operation runs on `stream`. The library
/// keeps the memory until the array is freed and the work on it has completed. Freeing the array
/// waits for that work.
///
/// Page-locked and managed memory is accepted too. Pageable host memory, strides with gaps, and
/// other element types raise `BufferError`.
#[pyfunction]
#[pyo3(signature = (source, heap=None, stream=None))]
pub(crate) fn from_dlpack(
    source: &Bound<'_, PyAny>,
    heap: Option<&Bound<'_, Heap>>,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<Array>> {
    let py = source.py();
    let owner = owner_for(source, heap)?;
    let stream = owner.stream(py, stream)?;
    if source.hasattr(intern!(py, "__dlpack__"))? {
        let device = source.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
        check_device(&owner, device)?;
        let asked = if device.0 == DL_CUDA_HOST { None } else { Some(&stream) };
        let capsule = request_capsule(source, asked)?;
        if ignores_streams(source)? {
            call_detached(py, || owner.device.synchronize())?;
        }
        if asked.is_none() && stream.id() != owner.default.id() {
            // Without a stream, a producer only orders its work before later work of the default
            // stream. So `stream` waits for the default stream.
            call(py, || stream.wait(&owner.default.record()?))?;
        }
        return match exchange::is_versioned(&capsule)? {
            true => from_capsule::<exchange::Versioned>(&owner, &capsule, &stream),
            false => from_capsule::<exchange::Plain>(&owner, &capsule, &stream),
        };
    }
    match source.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
        Some(interface) => from_interface(&owner, source, interface.cast::<PyDict>()?, &stream),
        None => Err(PyTypeError::new_err(format!(
            "{} has neither __dlpack__ nor __cuda_array_interface__; for data of the host use \
             heap.array(x)",
            source.get_type()
        ))),
    }
}

fn owner_for(source: &Bound<'_, PyAny>, heap: Option<&Bound<'_, Heap>>) -> PyResult<Arc<Owner>> {
    if let Some(heap) = heap {
        return Ok(heap.get().owner.clone());
    }
    if let Ok(array) = source.cast::<Array>() {
        return Ok(array.get().owner().clone());
    }
    if let Ok(buffer) = source.cast::<Buffer>() {
        return Ok(buffer.get().share(source.py())?.owner.clone());
    }
    let default = source.py().import("gpuheap._heap")?.getattr("default_heap")?.call0()?;
    Ok(default.cast::<Heap>()?.get().owner.clone())
}

fn check_device(owner: &Owner, (kind, number): (i32, i32)) -> PyResult<()> {
    let ours = dlpack_device(&owner.device);
    let is_of_host = matches!(kind, DL_CUDA_HOST | DL_CUDA_MANAGED) && ours.0 == DL_CUDA;
    if (kind, number) == ours || is_of_host {
        return Ok(());
    }
    let advice = match kind {
        1 => "it is in the host's memory: use heap.array(x)",
        DL_CUDA => "pass a heap of that device: from_dlpack(x, gpuheap.Heap(\"cuda:N\"))",
        _ => "gpuheap reads CUDA memory alone",
    };
    Err(PyBufferError::new_err(format!(
        "the memory is on the DLPack device {:?}, and the heap on {:?} ({}); {advice}",
        (kind, number),
        ours,
        owner.device.name()
    )))
}

/// Returns whether an object's `__dlpack__` ignores the stream argument. Buffers of cuda.core
/// ignore the argument, and do not name a stream.
fn ignores_streams(source: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = source.py();
    for class in source.get_type().mro() {
        let module = class.getattr_opt(intern!(py, "__module__"))?;
        let module = module.and_then(|module| module.extract::<String>().ok());
        if module.is_some_and(|module| module.starts_with("cuda.core.")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Calls `__dlpack__` so that `stream` waits for the library's work. Pass `None` for page-locked
/// memory, because libraries accept no stream for it. They then make the default stream wait for
/// their work.
fn request_capsule<'py>(
    source: &Bound<'py, PyAny>,
    stream: Option<&Stream>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = source.py();
    let arguments = PyDict::new(py);
    let is_own = source.is_instance_of::<Array>() || source.is_instance_of::<Buffer>();
    match stream {
        None => arguments.set_item("stream", py.None())?,
        Some(stream) if is_own && stream.raw().0 > 2 => {
            // Passes the stream object, because the handle could name another stream later.
            let stream = Bound::new(py, crate::streams::Stream { inner: stream.clone() })?;
            arguments.set_item("stream", stream)?;
        }
        // DLPack's number of the default stream is 1.
        Some(stream) => arguments.set_item("stream", stream.raw().0.max(1))?,
    }
    let old = arguments.copy()?;
    arguments.set_item("max_version", (1, 3))?;
    match source.call_method(intern!(py, "__dlpack__"), (), Some(&arguments)) {
        // A library that implements DLPack before version 1 refuses the argument `max_version`.
        // Repeat the call without it.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            source.call_method(intern!(py, "__dlpack__"), (), Some(&old))
        }
        answer => answer,
    }
}

fn from_capsule<M: Managed>(
    owner: &Arc<Owner>,
    capsule: &Bound<'_, PyAny>,
    stream: &Stream,
) -> PyResult<Py<Array>> {
    let py = capsule.py();
    let tensor = exchange::peek::<M>(capsule)?;
    let end = tensor.end();
    // If an error occurs before `consume`, the capsule still owns the tensor and releases it.
    let described = tensor.describe()?;
    // Checks the tensor's device too, because it may differ from the device that the object named.
    check_device(owner, tensor.device())?;
    let wrapped = Wrapped::new(py, owner, described, stream, move || end.call())?;
    // From here on, `wrapped` releases the tensor, and the capsule must not.
    if let Err(error) = tensor.consume(capsule) {
        std::mem::forget(wrapped);
        return Err(error);
    }
    wrapped.into_array(py, owner)
}

fn from_interface(
    owner: &Arc<Owner>,
    source: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyDict>,
    stream: &Stream,
) -> PyResult<Py<Array>> {
    let py = source.py();
    let entry =
        |name: &str| interface.get_item(name).map(|entry| entry.filter(|entry| !entry.is_none()));
    let needed = |name: &str| {
        entry(name)?.ok_or_else(|| {
            PyBufferError::new_err(format!("__cuda_array_interface__ has no {name:?}"))
        })
    };
    let shape: Vec<usize> = read_numbers(&needed("shape")?)?;
    let typestr: String = needed("typestr")?.extract()?;
    let (address, is_read_only): (u64, bool) = needed("data")?.extract()?;
    let Some(kind) = Kind::parse(&typestr) else { return Err(unknown_type(&typestr)) };
    if entry("mask")?.is_some() {
        return Err(PyBufferError::new_err("the memory has a mask, which arrays have not"));
    }
    if let Some(strides) = entry("strides")? {
        let strides: Vec<i64> = read_numbers(strides.cast::<PyTuple>()?)?;
        check_strides(&shape, &strides, kind.size())?;
    }
    match interface.get_item("stream")? {
        // Before its version 3, the CUDA array interface named no stream. The work on the memory
        // may be on any stream, so wait for the whole device.
        None => call_detached(py, || owner.device.synchronize())?,
        Some(theirs) => {
            let number = if theirs.is_none() { Some(0) } else { handle_number(&theirs)? };
            let theirs = match number {
                // If Numba names no stream, its work is on the default stream. The legacy (1) and
                // per-thread (2) default streams wait for each other, so one stands for both.
                Some(0..=2) => owner.default.clone(),
                _ => owner.stream(py, Some(&theirs))?,
            };
            if theirs.id() != stream.id() {
                call(py, || stream.wait(&theirs.record()?))?;
            }
        }
    }
    let described = Described { address, shape, kind, is_read_only };
    let kept = source.clone().unbind();
    Wrapped::new(py, owner, described, stream, move || drop(kept))?.into_array(py, owner)
}

/// Returns the handle of a stream that was passed as a number. Returns `None` if the stream was
/// passed as an object.
fn handle_number(given: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if given.hasattr(intern!(given.py(), "__cuda_stream__"))? {
        return Ok(None);
    }
    Ok(read_index(given)?.and_then(|number| number.extract().ok()))
}

/// A window of another library's memory, before it becomes a Python object.
struct Wrapped {
    window: Window,
    is_read_only: bool,
}

impl Wrapped {
    /// Wraps the memory. On success, `end` is called after the work on the memory. On failure,
    /// `end` is never called.
    fn new(
        py: Python<'_>,
        owner: &Arc<Owner>,
        Described { address, shape, kind, is_read_only }: Described,
        stream: &Stream,
        end: impl FnOnce() + Send + 'static,
    ) -> PyResult<Wrapped> {
        let most = isize::MAX as usize;
        let axes = shape.iter().try_fold(kind.size(), |bytes, length| bytes.checked_mul(*length));
        if shape.len() > MOST_AXES || axes.is_none_or(|bytes| bytes > most) {
            return Err(PyBufferError::new_err(format!(
                "the shape {shape:?} is larger than any memory, or has more than {MOST_AXES} axes"
            )));
        }
        let bytes = length(&shape) * kind.size();
        if !address.is_multiple_of(kind.size() as u64) {
            return Err(PyBufferError::new_err(format!(
                "{address:#x} is no address of an element of {} bytes; copy it with its own library",
                kind.size()
            )));
        }
        let array = call(py, || {
            if bytes > 0 {
                SHOWN.order(owner, address, bytes as u64, stream)?;
            }
            // SAFETY: DLPack and the CUDA array interface require that the library describes its
            // memory correctly, and that the memory exists until `end` is called. `stream` waits
            // for the work enqueued on the memory.
            unsafe {
                owner.heap.on(stream).wrap_owned::<u8, _>(address, Ix1(bytes), move |_, stream| {
                    finish(stream, end);
                })
            }
        })?;
        Ok(Wrapped { window: Window::from_bytes(array, shape, kind), is_read_only })
    }

    fn into_array(self, py: Python<'_>, owner: &Arc<Owner>) -> PyResult<Py<Array>> {
        let held = Held::new(&self.window, owner, None, None, self.is_read_only);
        Array::from_parts(py, self.window, held)
    }
}

/// Waits for the work on another library's memory, then calls `end`. The wait releases the
/// interpreter's lock, because the stream may wait for a function that needs the lock. `end` runs
/// with the lock, because a library frees its objects in `end`.
fn finish(stream: &Stream, end: impl FnOnce()) {
    // If the stream has failed, no work of it can use the memory, so the error is ignored.
    let _ = wait_detached(|| stream.synchronize());
    let mut end = Some(end);
    let mut call_end = || end.take().map_or((), |end| end());
    Python::try_attach(|_| call_end()).unwrap_or_else(call_end);
}
