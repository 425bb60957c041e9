//! Host memory that the device can address: pinned and managed memory.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap::ndarray::Ix1;
use gpuheap::{DeviceArray, MemoryKind};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{ffi, intern};

use crate::failure::{call, call_detached, no_host_memory, refused};
use crate::lines::RecordId;
use crate::owner::Owner;
use crate::reserve;
use crate::scope::Holder;

/// Pinned or managed memory of a heap, made by `Heap.pinned` and `Heap.managed`. The memory is
/// filled with zeros. `memoryview`, NumPy and all other users of the buffer protocol read and write
/// the memory in place.
///
/// The memory is freed at `free()`, or when the buffer is collected. While a `memoryview` of the
/// buffer is open, `free()` raises an error.
#[pyclass(frozen, module = "gpuheap", weakref)]
pub(crate) struct HostBuffer {
    owner: Arc<Owner>,
    kind: MemoryKind,
    address: u64,
    bytes: usize,
    state: Mutex<Contents>,
}

struct Contents {
    array: Option<DeviceArray<u8, Ix1>>,
    record: Option<RecordId>,
    /// Number of open views.
    views: usize,
}

impl HostBuffer {
    pub(crate) fn new(
        py: Python<'_>,
        owner: &Arc<Owner>,
        kind: MemoryKind,
        bytes: usize,
    ) -> PyResult<HostBuffer> {
        reserve::check(py)?;
        let (array, address) = call_detached(py, || {
            let target = owner.heap.on(&owner.default).kind(kind);
            let array = target.zeroed::<u8, _>(bytes)?;
            owner.default.synchronize()?;
            let address = array.device_ptr(&owner.default)?;
            Ok((array, address))
        })?;
        let record = owner.tracked(py, address, bytes as u64);
        let state = Contents { array: Some(array), record, views: 0 };
        Ok(HostBuffer { owner: owner.clone(), kind, address, bytes, state: Mutex::new(state) })
    }

    /// Counts a new view. Returns `false` if the memory was freed.
    fn begin_view(&self) -> bool {
        let mut state = self.lock();
        let is_there = state.array.is_some();
        state.views += usize::from(is_there);
        is_there
    }

    /// Makes the holder through which a scope refers to a buffer.
    pub(crate) fn holder(buffer: &Bound<'_, HostBuffer>) -> PyResult<Holder> {
        Holder::weak(buffer, |object| {
            object.cast::<HostBuffer>().is_ok_and(|buffer| buffer.get().is_freed())
        })
    }

    /// Returns whether `free` was called.
    pub(crate) fn is_freed(&self) -> bool {
        self.lock().array.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl HostBuffer {
    /// Address, valid on both the host and the device.
    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<u64> {
        if self.lock().array.is_none() { Err(freed(py)) } else { Ok(self.address) }
    }

    /// Size in bytes, as requested.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// `"pinned"` or `"unified"`.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.name()
    }

    /// `True` once `free` was called.
    #[getter]
    fn freed(&self) -> bool {
        self.is_freed()
    }

    /// Frees the memory after the work of the default stream. If `stream` is given, the free is
    /// ordered after the work of `stream` too. A second call does nothing. Raises `BufferError`
    /// while a view of the memory is open.
    #[pyo3(signature = (stream=None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = self.owner.stream(py, stream)?;
        let mut state = self.lock();
        if state.views > 0 {
            let views = state.views;
            return Err(PyBufferError::new_err(format!(
                "the memory has {views} open views (memoryview, numpy.frombuffer); let go of them first"
            )));
        }
        let (array, record) = (state.array.take(), state.record.take());
        drop(state);
        if let Some(record) = record {
            self.owner.lines.freed(record);
        }
        let Some(array) = array else { return Ok(()) };
        call(py, || {
            array.device_ptr(&stream)?;
            array.free()
        })
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    fn __enter__(slf: Py<HostBuffer>) -> Py<HostBuffer> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.free(py, None)
    }

    /// # Safety
    ///
    /// Only the interpreter calls this, with a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        // Counts the view under the lock and fills it afterwards, because no Python code may run
        // under the lock.
        if !this.begin_view() {
            return Err(freed(slf.py()));
        }
        // SAFETY: the interpreter passes a view to fill. The memory stays while the view is open:
        // `free` is refused, and the view holds this object. An empty view points to a static byte.
        let code = unsafe {
            let address = if this.bytes == 0 {
                std::ptr::dangling_mut()
            } else {
                this.address as *mut c_void
            };
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, this.bytes as isize, 0, flags)
        };
        if code != 0 {
            this.lock().views -= 1;
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// Only the interpreter calls this, once for each view that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lock().views -= 1;
    }

    fn __repr__(&self) -> String {
        let state = if self.freed() { ", freed" } else { "" };
        format!("<gpuheap.HostBuffer {} bytes, {}{state}>", self.bytes, self.kind.name())
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = state.record.take() {
            self.owner.lines.freed(record);
        }
    }
}

fn freed(py: Python<'_>) -> PyErr {
    refused(
        py,
        "Freed",
        "the memory was freed before this use; keep it until its last use, or allocate another",
    )
}

/// Bytes of host data: a copy, or a view of another object's memory.
pub(crate) enum HostBytes {
    Copy(Vec<u8>),
    View(PyUntypedBuffer),
}

impl HostBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            HostBytes::Copy(bytes) => bytes,
            HostBytes::View(view) if view.len_bytes() == 0 => &[],
            // SAFETY: an open view keeps its memory and its length. The bytes are only copied. If a
            // Python thread writes to the memory meanwhile, the copy has old and new bytes.
            HostBytes::View(view) => unsafe {
                std::slice::from_raw_parts(view.buf_ptr().cast::<u8>(), view.len_bytes())
            },
        }
    }
}

/// Reads the bytes of an object with the buffer protocol.
pub(crate) fn read_buffer(source: &Bound<'_, PyAny>) -> PyResult<HostBytes> {
    match open_view(source)? {
        Some(view) => read_view(&view),
        None => Err(PyTypeError::new_err(format!(
            "{} has no buffer protocol; pass bytes, a memoryview, a NumPy array",
            source.get_type()
        ))),
    }
}

/// Makes the `memoryview` of an object. Returns `None` if the object has no buffer protocol, and an
/// error for a masked array of NumPy. An exception of the object's own code is passed on.
pub(crate) fn open_view<'py>(source: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = source.py();
    if is_masked(source)? {
        return Err(masked(source));
    }
    if !has_buffer(source) {
        return Ok(None);
    }
    // SAFETY: the object is alive, the interpreter's lock is held, and the result is a new object
    // or null with an exception.
    let view = unsafe { ffi::PyMemoryView_FromObject(source.as_ptr()) };
    // SAFETY: `view` is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, view).map(Some) }
}

/// Returns whether an object has the buffer protocol.
pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive, and the interpreter's lock is held.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// Returns whether an object is a NumPy masked array. Its buffer would lose the mask.
fn is_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let modules = py.import("sys")?.getattr(intern!(py, "modules"))?;
    let module = modules.call_method1(intern!(py, "get"), (intern!(py, "numpy.ma"),))?;
    if module.is_none() {
        return Ok(false);
    }
    object.is_instance(&module.getattr(intern!(py, "MaskedArray"))?)
}

/// Makes the error for a masked array.
fn masked(object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "{} has a mask, which arrays have not; pass x.filled(0), or x.data and the mask as an array \
         of its own",
        object.get_type()
    ))
}

/// Reads the elements of a `memoryview` in row-major order. A contiguous view is not copied.
pub(crate) fn read_view(view: &Bound<'_, PyAny>) -> PyResult<HostBytes> {
    let py = view.py();
    let is_contiguous: bool = view.getattr(intern!(py, "c_contiguous"))?.extract()?;
    // PyO3 refuses a view without axes.
    if is_contiguous && let Ok(buffer) = PyUntypedBuffer::get(view) {
        return Ok(HostBytes::View(buffer));
    }
    let copy = match view.call_method0(intern!(py, "tobytes")) {
        Err(error) if error.is_instance_of::<PyMemoryError>(py) => {
            return Err(no_host_memory(py, view.getattr(intern!(py, "nbytes"))?.extract()?));
        }
        copy => copy?,
    };
    PyUntypedBuffer::get(&copy).map(HostBytes::View)
}
