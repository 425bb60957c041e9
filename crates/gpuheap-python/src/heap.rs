//! Heaps as Python objects, and their figures.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gpuheap::{
    Access, Bytes, Fit, HeapBuilder, Limits, MemoryKind, PoolKind, Size, TotalLimit, Tracking,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString};

use crate::addresses::Addresses;
use crate::array::Array;
use crate::buffer::Buffer;
use crate::count::Count;
use crate::device::{Device, default_device, parse_name};
use crate::failure::{call, call_detached, in_python, refused};
use crate::host::HostBuffer;
use crate::kind::read_index;
use crate::libraries::{LIBRARIES, live_of};
use crate::lines::LineMemory;
use crate::memory::Memory;
use crate::owner::Owner;
use crate::reserve;
use crate::scope::{Account, Budget, adopt, charge};
use crate::streams::Stream;

/// Values of `GPUHEAP_TRACK` that make a Python heap record lines.
const TRACKS: [&str; 2] = ["counts", "backtraces"];

/// A caching pool of one device's memory, with limits and statistics.
///
/// `limit` and `soft_limit` are bytes, or a text: `"512MiB"`, or `"80%"` of the device's memory.
/// `total_limit` bounds the memory of several heaps together, on one device or several. Pass a size
/// to the first heap, and pass this heap to all further heaps. `pool` is `"stitched"` (default),
/// `"split"`, `"binned"`, `"simple"`, `"driver"` or `"none"`. With `publish=True`, other processes
/// of the user can read the heap's figures and lines; with `publish="control"` they can also flush
/// it and set its limit. With `track="lines"` the heap records the Python line that made each
/// allocation. If `track` is not passed, the heap also records lines if the variable
/// `GPUHEAP_TRACK` is `counts` or `backtraces`.
///
/// >>> import gpuheap
/// >>> heap = gpuheap.Heap("emulated:1GiB", limit="512MiB")
/// >>> with heap.alloc(1000) as buffer:
/// ...     heap.stats()["live"]
/// 1000
/// >>> heap.stats()["live"]
/// 0
#[pyclass(frozen, subclass, module = "gpuheap", weakref)]
pub(crate) struct Heap {
    pub(crate) owner: Arc<Owner>,
    /// Memory that hooks allocated, keyed by address.
    pub(crate) addresses: Arc<Addresses>,
}

#[pymethods]
impl Heap {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // The collector does not see other holders of the heap, such as arrays, and could clear
        // objects that they need. So visit the objects only if this is the last holder.
        match Arc::strong_count(&self.owner) {
            1 => self.owner.streams.traverse(&visit),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        self.owner.streams.clear();
    }

    #[new]
    #[pyo3(signature = (device=None, *, limit=None, soft_limit=None, total_limit=None, pinned_limit=None, pool=None, track=None, zero_on_alloc=None, zero_on_free=None, publish=None, _beside=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        limit: Option<&Bound<'_, PyAny>>,
        soft_limit: Option<&Bound<'_, PyAny>>,
        total_limit: Option<&Bound<'_, PyAny>>,
        pinned_limit: Option<&Bound<'_, PyAny>>,
        pool: Option<&str>,
        track: Option<&str>,
        zero_on_alloc: Option<bool>,
        zero_on_free: Option<bool>,
        publish: Option<&Bound<'_, PyAny>>,
        _beside: Option<PyRef<'_, Heap>>,
    ) -> PyResult<Heap> {
        reserve::check(py)?;
        let device = opened(py, device)?;
        let tracks = match track {
            Some("off") => false,
            Some("lines") => true,
            None => TRACKS.contains(&std::env::var("GPUHEAP_TRACK").unwrap_or_default().trim()),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "track={other:?} is unknown; pass \"off\" or \"lines\""
                )));
            }
        };
        let total = device.total_memory();
        // The core would record Rust lines of this module instead of Python lines.
        let builder = gpuheap::Heap::builder(&device).track(Tracking::Off);
        let bytes = |given: Option<&Bound<'_, PyAny>>| {
            given.map(|given| parse_size(given, total)).transpose()
        };
        let pool = pool.map(PoolKind::parse).transpose();
        let pool = pool.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let builder = with(builder, bytes(limit)?, HeapBuilder::hard_limit);
        let builder = with(builder, bytes(soft_limit)?, HeapBuilder::soft_limit);
        let builder = with(builder, bytes(pinned_limit)?, HeapBuilder::pinned_limit);
        let total_limit = match total_limit.map(|given| (given, given.cast::<Heap>())) {
            Some((_, Ok(heap))) => {
                let shared = heap.get().owner.heap.total_limit();
                Some(shared.ok_or_else(|| {
                    PyValueError::new_err("total_limit= names a heap that has no total limit")
                })?)
            }
            Some((given, Err(_))) => Some(TotalLimit::new(parse_size(given, total)?)),
            None => None,
        };
        let builder = with(builder, total_limit, HeapBuilder::total_limit);
        let builder = with(builder, pool, HeapBuilder::pool);
        let builder = with(builder, zero_on_alloc, HeapBuilder::zero_on_alloc);
        let builder = with(builder, zero_on_free, HeapBuilder::zero_on_free);
        let builder = with(builder, publish.map(parse_access).transpose()?, HeapBuilder::publish);
        let (heap, default) =
            call_detached(py, || Ok((builder.build()?, device.default_stream()?)))?;
        let addresses = Arc::new(Addresses::new(heap.clone()));
        let beside = _beside.as_ref().map(|other| &*other.owner);
        Ok(Heap { owner: Owner::new(heap, device, default, tracks, beside), addresses })
    }

    /// Allocates device memory for use on `stream`. `stream` is an object with `__cuda_stream__`
    /// (gpuheap, cuda.core, CuPy, PyTorch, RMM) or a handle as a number. Without `stream`, uses the
    /// default stream. If a number is passed, its stream has to live until the memory is freed.
    ///
    /// If memory runs out, raises `gpuheap.OutOfMemory`, a `MemoryError` with the figures.
    #[pyo3(signature = (nbytes, stream=None))]
    fn alloc<'py>(
        &self,
        py: Python<'py>,
        nbytes: Count,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Buffer>> {
        let Count(nbytes) = nbytes;
        let stream = self.owner.named_stream(py, stream)?;
        let (charge, scope) = charge(py, &self.owner.scopes, nbytes)?;
        let on = stream.as_ref().unwrap_or(&self.owner.default);
        let (block, record) = self.owner.allocate(py, nbytes, on)?;
        let memory = Memory::new(block, record, charge, self.owner.clone(), stream);
        let buffer = Bound::new(py, Buffer::new(Box::new(memory)))?;
        adopt(py, scope, || Buffer::holder(&buffer))?;
        Ok(buffer)
    }

    /// Allocates pinned host memory. Copies between this memory and the device need no staging
    /// buffer. NumPy reads and writes the memory in place:
    /// `numpy.frombuffer(memoryview(heap.pinned(800)), "f8")`.
    fn pinned<'py>(&self, py: Python<'py>, nbytes: Count) -> PyResult<Bound<'py, HostBuffer>> {
        self.host(py, MemoryKind::Pinned, nbytes.length())
    }

    /// Allocates managed memory. Both the host and the device can address it.
    fn managed<'py>(&self, py: Python<'py>, nbytes: Count) -> PyResult<Bound<'py, HostBuffer>> {
        self.host(py, MemoryKind::Unified, nbytes.length())
    }

    /// Makes an array of numbers, nested lists of numbers, an object with the buffer protocol
    /// (NumPy's arrays, `array.array`, `bytes`), or a copy of another array. `dtype` converts the
    /// elements.
    ///
    /// >>> import gpuheap
    /// >>> gpuheap.Heap("emulated:1GiB").array([[1, 2], [3, 4]], "float32").sum()
    /// 10.0
    #[pyo3(signature = (source, dtype=None, stream=None))]
    fn array(
        &self,
        source: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Array>> {
        Array::from_data(&self.owner, source, dtype, stream)
    }

    /// Makes an array of zeros. Without `dtype`, the elements are float64.
    #[pyo3(signature = (shape, dtype=None, stream=None))]
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Array>> {
        Array::filled(py, &self.owner, shape, None, dtype, stream)
    }

    /// Makes an array with every element set to `value`. Without `dtype`, the element type follows
    /// from `value`.
    #[pyo3(signature = (shape, value, dtype=None, stream=None))]
    fn full(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Array>> {
        Array::filled(py, &self.owner, shape, Some(value), dtype, stream)
    }

    /// Makes a stream on the heap's device. The stream does not wait for the default stream.
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        Ok(Stream { inner: call(py, || self.owner.device.stream())? })
    }

    /// The heap's device.
    #[getter]
    fn device(&self) -> Device {
        Device { inner: self.owner.device.clone() }
    }

    /// Name of the pool.
    #[getter]
    fn pool(&self) -> &'static str {
        self.owner.heap.pool().name()
    }

    /// `True` if the heap records allocations by line.
    #[getter]
    fn tracks(&self) -> bool {
        self.owner.tracks()
    }

    /// The limits in bytes, as `(hard, soft)`; `None` for no limit.
    #[getter]
    fn limits(&self) -> (Option<u64>, Option<u64>) {
        let Limits { soft, hard } = self.owner.heap.limits();
        (hard, soft)
    }

    /// The limit in bytes that the heap shares with other heaps; `None` without a total limit.
    #[getter]
    fn total_limit(&self) -> Option<u64> {
        Some(self.owner.heap.total_limit()?.bytes())
    }

    /// Sets the limits. Each is a size, or `None` for no limit. An omitted limit does not change.
    /// Returns cached memory above the limits to the driver at once. The result is the number of
    /// bytes returned.
    #[pyo3(signature = (limit=Given::Nothing, soft_limit=Given::Nothing), text_signature = "($self, limit=..., soft_limit=...)")]
    fn set_limits(&self, py: Python<'_>, limit: Given<'_>, soft_limit: Given<'_>) -> PyResult<u64> {
        let total = self.owner.device.total_memory();
        let Limits { soft, hard } = self.owner.heap.limits();
        let hard = limit.resolve(hard, total)?;
        let soft = soft_limit.resolve(soft, total)?;
        call_detached(py, || self.owner.heap.set_limits(Limits { soft, hard }))
    }

    /// Figures of the device memory. In bytes: `live`, as requested; `live_blocks`, the size of the
    /// live blocks; `pending` and `cached`; `largest_cached_block`, the largest contiguous cached
    /// block; `largest_stitchable`, the most cached bytes that the pool can map together as one
    /// block; `reserved`; and the peaks of live and reserved memory. Counts: `allocations`, `frees`
    /// and `driver_calls`. Does not wait for the GPU.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let usage = call(py, || self.owner.heap.usage())?;
        let stats = PyDict::new(py);
        let counts = &usage.stats;
        set_fields!(stats, usage: live, live_blocks, live_peak, pending, cached);
        set_fields!(stats, usage: largest_cached_block, largest_stitchable, reserved, reserved_peak);
        set_fields!(stats, counts: allocations, frees);
        set_fields!(stats, usage: driver_calls);
        Ok(stats)
    }

    /// The status as JSON and as text.
    fn _status(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let status = call_detached(py, || self.owner.heap.memory_status())?;
        Ok((status.to_json(), status.to_string()))
    }

    /// Returns all cached memory to the driver. Returns the report as JSON and as text.
    fn _flush(&self, py: Python<'_>) -> PyResult<(String, String)> {
        self.owner.streams.sweep(py, &self.owner.heap)?;
        let report = call_detached(py, || self.owner.heap.flush())?;
        Ok((report.to_json(), report.to_string()))
    }

    /// Returns at least `nbytes` of cached memory to the driver. If `nbytes` is `None`, returns all
    /// cached memory. Waits for frees in flight. The result is the number of bytes returned.
    #[pyo3(signature = (nbytes=None))]
    fn reclaim(&self, py: Python<'_>, nbytes: Option<Count>) -> PyResult<u64> {
        call_detached(py, || match nbytes {
            Some(Count(bytes)) => self.owner.heap.reclaim(bytes),
            None => self.owner.heap.reclaim_all(),
        })
    }

    /// Forecasts whether a request of `nbytes` would succeed now: `"yes"`, `"perhaps"` or `"no"`,
    /// with a sentence. Applies the limits of the open scopes too. Allocates nothing.
    fn would_fit(&self, py: Python<'_>, nbytes: Count) -> PyResult<(&'static str, String)> {
        let budget = Budget::for_caller(py, &self.owner.scopes)?;
        if let Some((scope, left, limit)) =
            budget.as_ref().and_then(|budget| budget.shortage(nbytes.0))
        {
            let figures = (scope, nbytes.0, left, limit);
            let text = py.import("gpuheap._errors")?.getattr("scope_shortage")?.call1(figures)?;
            return Ok(("no", text.extract()?));
        }
        let fit = call_detached(py, || self.owner.heap.would_fit(nbytes.0))?;
        let word = match fit {
            Fit::Yes { .. } => "yes",
            Fit::Perhaps { .. } => "perhaps",
            _ => "no",
        };
        Ok((word, in_python(fit.to_string())))
    }

    /// The lines that hold memory, most bytes first, as tuples
    /// `(file, line, function, allocations, bytes, threads)`. Needs `track="lines"`.
    fn _outstanding<'py>(&self, py: Python<'py>) -> PyResult<Vec<LineMemory<'py>>> {
        self.check_tracks(py)?;
        self.owner.lines.outstanding(py)
    }

    /// All outstanding allocations as dictionaries, the oldest first. Needs `track="lines"`.
    fn _records<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.check_tracks(py)?;
        self.owner.lines.records(py, None, |_, _| true)
    }

    /// Returns the live bytes of each library that allocates through a hook, with the library's
    /// name. Leaves out libraries without memory.
    fn _libraries(&self) -> Vec<(&'static str, u64)> {
        live_of(&self.owner.libraries).collect()
    }

    /// Allocates for a hook that keeps only the address. Returns 0 if `nbytes` is 0. `library` is
    /// the name under which `_libraries` counts the memory. With `below`, the caller is a foreign
    /// allocator whose lock this thread may hold. To avoid a deadlock, this call then runs no
    /// Python code and does not release the interpreter's lock.
    #[pyo3(signature = (nbytes, stream=None, below=false, library=None))]
    fn _allocate_address(
        &self,
        py: Python<'_>,
        nbytes: u64,
        stream: Option<&Bound<'_, PyAny>>,
        below: bool,
        library: Option<&str>,
    ) -> PyResult<u64> {
        if nbytes == 0 {
            return Ok(0);
        }
        let stream = self.owner.named_stream(py, stream)?;
        let on = stream.as_ref().unwrap_or(&self.owner.default);
        // If a scope's limit is exceeded, `charge` runs Python's collector. With `below`, no Python
        // code may run, so these requests are not charged.
        let charge = if below { None } else { charge(py, &self.owner.scopes, nbytes)?.0 };
        let (block, record) = match below {
            false => self.owner.allocate(py, nbytes, on)?,
            true => {
                let block = call(py, || self.owner.heap.allocate(nbytes, on))?;
                let record = self.owner.tracked_below(block.address(), nbytes);
                (block, record)
            }
        };
        let address = block.address();
        let memory = Memory::new(block, record, charge, self.owner.clone(), stream);
        let memory = match LIBRARIES.iter().position(|name| Some(*name) == library) {
            Some(library) => memory.of(library),
            None => memory,
        };
        call(py, || self.addresses.keep(address, memory))?;
        Ok(address)
    }

    /// Frees memory that `_allocate_address` allocated, in the order of its stream. If `stream` is
    /// given, the free is ordered after the work of `stream` too. Does not wait for the GPU.
    #[pyo3(signature = (address, stream=None))]
    fn _free_address(
        &self,
        py: Python<'_>,
        address: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if address == 0 {
            return Ok(());
        }
        let stream = stream.map(|stream| self.owner.stream(py, Some(stream))).transpose()?;
        call(py, || self.addresses.free(address, stream.as_ref()).transpose())?
            .ok_or_else(|| unknown(py, address))
    }

    /// Orders the free of the memory at an address after the work of `stream`.
    fn _address_used_on(&self, address: u64, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = stream.py();
        let stream = self.owner.stream(py, Some(stream))?;
        let is_known = call(py, || self.addresses.use_on(address, &stream))?;
        if is_known { Ok(()) } else { Err(unknown(py, address)) }
    }

    /// Opens a scope in the calling context. `resumable` contains weak references to the generators
    /// and coroutines on the stack, the innermost first.
    fn _open_scope(
        &self,
        py: Python<'_>,
        name: String,
        limit: Option<&Bound<'_, PyAny>>,
        resumable: Vec<Py<PyAny>>,
        total: u64,
    ) -> PyResult<Account> {
        let limit = limit.map(|given| parse_size(given, total)).transpose()?;
        Account::open(py, &self.owner.scopes, name, limit, resumable)
    }

    /// Makes a meter of the heap's device memory.
    fn _meter(&self, py: Python<'_>) -> PyResult<Meter> {
        Ok(Meter { inner: call(py, || self.owner.heap.meter())? })
    }

    /// Records all allocations and frees of the heap into a file, until the result is stopped.
    fn _record(&self, py: Python<'_>, path: PathBuf) -> PyResult<Recording> {
        let recording = call_detached(py, || self.owner.heap.record(&path))?;
        let path = recording.path().to_owned();
        Ok(Recording { inner: Mutex::new(Some(recording)), path })
    }

    fn __repr__(&self) -> String {
        format!("<gpuheap.Heap {} on {}>", self.owner.heap.pool().name(), self.owner.device.name())
    }
}

impl Heap {
    fn host<'py>(
        &self,
        py: Python<'py>,
        kind: MemoryKind,
        bytes: usize,
    ) -> PyResult<Bound<'py, HostBuffer>> {
        // Budgets count device memory only, so host memory is charged as 0 bytes.
        let (_, scope) = charge(py, &self.owner.scopes, 0)?;
        let buffer = Bound::new(py, HostBuffer::new(py, &self.owner, kind, bytes)?)?;
        adopt(py, scope, || HostBuffer::holder(&buffer))?;
        Ok(buffer)
    }

    fn check_tracks(&self, py: Python<'_>) -> PyResult<()> {
        if self.owner.tracks() {
            return Ok(());
        }
        Err(refused(py, "NotTracked", "this heap records no lines; make it with track=\"lines\""))
    }
}

fn unknown(py: Python<'_>, address: u64) -> PyErr {
    refused(
        py,
        "BadPointer",
        &format!(
            "{address:#x} is no memory of this heap, or was freed before; free each address once"
        ),
    )
}

/// A meter of a heap's live bytes.
#[pyclass(frozen, module = "gpuheap")]
pub(crate) struct Meter {
    inner: gpuheap::Meter,
}

#[pymethods]
impl Meter {
    /// Returns the live bytes when the meter was made, the live bytes now, and the peak in between.
    fn read(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let reading = call(py, || self.inner.read())?;
        Ok((reading.live_before, reading.live, reading.live_peak))
    }
}

/// A recording of a heap.
#[pyclass(frozen, module = "gpuheap")]
pub(crate) struct Recording {
    inner: Mutex<Option<gpuheap::Recording>>,
    path: PathBuf,
}

#[pymethods]
impl Recording {
    /// Path of the file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Ends the recording. Returns the reason if it had ended early. A second call does nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let recording = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        call_detached(py, || Ok(recording.and_then(|recording| recording.stopped())))
    }
}

/// Sets an option of a builder, if it is given.
fn with<T>(
    builder: HeapBuilder,
    option: Option<T>,
    set: impl FnOnce(HeapBuilder, T) -> HeapBuilder,
) -> HeapBuilder {
    match option {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// Parses the argument `publish`: a switch, or `"control"`.
fn parse_access(given: &Bound<'_, PyAny>) -> PyResult<Option<Access>> {
    if let Ok(is_on) = given.extract::<bool>() {
        return Ok(is_on.then_some(Access::Read));
    }
    match given.cast::<PyString>() {
        Ok(text) if *text == "control" => Ok(Some(Access::Control)),
        _ => Err(PyValueError::new_err(format!(
            "publish={} is unknown; pass True, False or \"control\"",
            given.repr()?
        ))),
    }
}

/// Opens the device that a caller passed: a `Device`, a name, or `None`.
fn opened(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<gpuheap::Device> {
    let Some(given) = given.filter(|given| !given.is_none()) else {
        return default_device(py);
    };
    if let Ok(device) = given.cast::<Device>() {
        return Ok(device.get().inner.clone());
    }
    let name = match given.cast::<PyString>() {
        Ok(name) => parse_name(&name.to_string()).to_owned(),
        Err(_) if given.is_instance_of::<PyInt>() => format!("cuda:{given}"),
        Err(_) => {
            return Err(PyTypeError::new_err(format!(
                "{} is no device; pass a name (\"cuda:0\", \"emulated:16GiB\"), a number, or a \
                 gpuheap.Device",
                given.get_type()
            )));
        }
    };
    call_detached(py, || gpuheap::Device::open(&name))
}

/// Reads a size in the notation of a heap's limits. A percentage refers to `total`. Returns bytes.
#[pyfunction]
#[pyo3(signature = (size, total=0))]
pub(crate) fn _size(size: &Bound<'_, PyAny>, total: u64) -> PyResult<u64> {
    parse_size(size, total)
}

/// Writes bytes for people: `512 MiB`.
#[pyfunction]
pub(crate) fn _size_text(nbytes: u64) -> String {
    Bytes(nbytes).to_string()
}

/// Reads a size: bytes, or a text such as `"512MiB"` or `"80%"` of `total`.
fn parse_size(given: &Bound<'_, PyAny>, total: u64) -> PyResult<u64> {
    if let Ok(text) = given.cast::<PyString>() {
        let size = Size::parse(&text.to_string());
        return size
            .map(|size| size.to_bytes(total))
            .map_err(|error| PyValueError::new_err(error.to_string()));
    }
    let refused = |given: String| {
        PyValueError::new_err(format!(
            "{given} is no size; pass bytes as a whole number, or a text (\"512MiB\", \"80%\")"
        ))
    };
    match read_index(given)? {
        Some(number) => number.extract::<u64>().map_err(|_| refused(number.to_string())),
        None => Err(refused(given.repr()?.to_string())),
    }
}

/// An argument that distinguishes "left out" from `None`.
enum Given<'py> {
    Nothing,
    Object(Bound<'py, PyAny>),
}

impl Given<'_> {
    /// Returns the new limit. If the argument was left out, returns `before`.
    fn resolve(&self, before: Option<u64>, total: u64) -> PyResult<Option<u64>> {
        match self {
            Given::Nothing => Ok(before),
            Given::Object(object) if object.is_none() => Ok(None),
            Given::Object(object) => parse_size(object, total).map(Some),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Given<'py>> {
        Ok(Given::Object(object.to_owned()))
    }
}
