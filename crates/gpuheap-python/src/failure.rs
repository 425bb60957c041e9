//! Turns errors of the library into Python exceptions. `gpuheap/_errors.py` declares the classes.

use std::collections::TryReserveError;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpuheap::{Error, OutOfMemory};
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Runs calls of the library. Errors become exceptions. Panics become exceptions of class `Bug`.
pub(crate) fn call<R>(py: Python<'_>, work: impl FnOnce() -> Result<R, Error>) -> PyResult<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(exception(py, &error)),
        Err(panic) => Err(bug(py, &*panic)),
    }
}

/// Releases the interpreter's lock and runs calls of the library that may wait.
pub(crate) fn call_detached<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, Error> + Send,
) -> PyResult<R> {
    detached(py, work)?.map_err(|error| exception(py, &error))
}

/// Releases the interpreter's lock and runs long work. A panic becomes an exception of class `Bug`.
pub(crate) fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> PyResult<R> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work))).map_err(|panic| bug(py, &*panic))
}

/// Runs work that may wait. If this thread holds the interpreter's lock, releases the lock first.
/// Destructors use this function, because they run with or without the lock.
pub(crate) fn wait_detached<R: Send>(wait: impl Fn() -> R + Send + Sync) -> R {
    // If there is no interpreter, or if it is shutting down, there is no lock to release.
    Python::try_attach(|py| py.detach(&wait)).unwrap_or_else(&wait)
}

pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    try_exception(py, error).unwrap_or_else(|failed| failed)
}

/// Makes an exception with `text`. `kind` is the name of a [`gpuheap::ErrorKind`].
pub(crate) fn refused(py: Python<'_>, kind: &str, text: &str) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let made = errors(py)?.getattr("from_kind")?.call1((kind, text))?;
        Ok(PyErr::from_value(made))
    };
    make().unwrap_or_else(|failed| match failed.is_instance_of::<PyMemoryError>(py) {
        // The host has too little memory to load the exception's class.
        true => PyMemoryError::new_err(text.to_owned()),
        false => failed,
    })
}

/// Returns gpuheap's own error for a failed conversion, with `error` as its cause. An exception of
/// another type was raised by the caller's code, and is returned unchanged.
pub(crate) fn conversion(py: Python<'_>, error: PyErr, own: impl FnOnce() -> PyErr) -> PyErr {
    let is_of_conversion = error.is_instance_of::<PyTypeError>(py)
        || error.is_instance_of::<PyValueError>(py)
        || error.is_instance_of::<PyOverflowError>(py);
    if !is_of_conversion {
        return error;
    }
    let own = own();
    own.set_cause(py, Some(error));
    own
}

/// Reserves host memory for `more` elements. A plain `push` would end the process if the host has
/// no memory.
pub(crate) fn reserve<T>(py: Python<'_>, elements: &mut Vec<T>, more: usize) -> PyResult<()> {
    let wanted = elements.len().saturating_add(more).saturating_mul(size_of::<T>());
    elements.try_reserve(more).map_err(|_| no_host_memory(py, wanted))
}

/// Makes the exception for a copy that failed because the host has no memory for `bytes` bytes.
pub(crate) fn no_host_memory(py: Python<'_>, bytes: usize) -> PyErr {
    refused(
        py,
        "HostResources",
        &format!(
            "the host has no memory for the {bytes} bytes of a copy between it and the device; copy a \
             part at a time, as gpuheap.batches does"
        ),
    )
}

/// Makes the exception for a request beyond a scope's budget.
pub(crate) fn scope_exceeded(py: Python<'_>, figures: Bound<'_, PyDict>) -> PyResult<PyErr> {
    let made = errors(py)?.getattr("scope_exceeded")?.call1((figures,))?;
    Ok(PyErr::from_value(made))
}

fn errors(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || py.import("gpuheap._errors").map(Bound::unbind))?;
    Ok(errors.bind(py).clone())
}

fn try_exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let kind = format!("{:?}", error.kind());
    let Some(evidence) = error.out_of_memory() else {
        return Ok(refused(py, &kind, &text(error)));
    };
    let made = errors(py)?.getattr("out_of_memory")?;
    Ok(PyErr::from_value(made.call1((text(error), figures(py, evidence)?))?))
}

/// Returns the text of an error. Replaces names of the Rust interface with Python names.
pub(crate) fn text(error: &Error) -> String {
    if let Some(evidence) = error.out_of_memory() {
        let limits = "Heap(limit=), Heap.set_limits(limit=) or GPUHEAP_MEMORY_LIMIT";
        return in_python(evidence.text_naming(limits));
    }
    if error.is_freed() {
        // The error's own text would name a line of this extension module's Rust code.
        return FREED.to_owned();
    }
    in_python(error.to_string())
}

/// Writes a text and a final 0 to a C buffer. Cuts the text to fit into `room` bytes.
///
/// # Safety
///
/// `to` has `room` writable bytes.
pub(crate) unsafe fn write_text(text: &str, to: *mut c_char, room: usize) {
    let length = text.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: `to` has `room` writable bytes, and `length` is less than `room`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), length);
            to.add(length).write(0);
        }
    }
}

/// Replaces names of the Rust interface in an error text with Python names.
pub(crate) fn in_python(text: String) -> String {
    IN_PYTHON.iter().fold(text, |text, (in_rust, in_python)| text.replace(in_rust, in_python))
}

/// Error text for a use of an array whose memory was freed.
pub(crate) const FREED: &str = "the array was freed before this use, by free() or at the end of a scope; free it after its last \
     use, keep it beyond the scope with scope.keep(array), or make a copy first";

/// Error text for a panic within a function that another library calls by address.
pub(crate) const PANICKED: &str = "gpuheap failed in a way that is a bug of its own";

/// Replacements in error texts. An entry has words for Rust programs and words for Python programs.
const IN_PYTHON: [(&str, &str); 10] = [
    (
        "copy one of them to the other's device with copy_to first",
        "copy one of them first: heap.array(a), with a heap of the other's device",
    ),
    (
        "copy it there with copy_to, or allocate it as unified memory",
        "copy it there: heap.array(a), with a heap of that device",
    ),
    ("copy it there with copy_to", "copy it there: heap.array(a), with a heap of that device"),
    (
        "use a target of a heap of that device, and copy_to to bring it here",
        "pass a heap of that device, and copy the array here: heap.array(a)",
    ),
    ("build another heap", "make another heap with that limit"),
    ("build a heap with a limit", "make a heap with a limit"),
    (
        "fork before opening a device, or start the child by exec (as std::process::Command does)",
        "open no device in the parent before it forks, or start the child by the subprocess module or \
         after multiprocessing.set_start_method(\"spawn\")",
    ),
    (
        "make it again on the device that Device::reset returned",
        "make a new gpuheap.Heap, and with it what was on the device",
    ),
    (
        "or wrap the handle again by Device::foreign_stream if it is alive",
        "or pass the object of the stream again if it is alive",
    ),
    ("or read the bytes with reinterpret::<u8>()", "or read the bytes with to_bytes()"),
];

/// Returns the figures of an out-of-memory error, keyed by their Rust names.
fn figures<'py>(py: Python<'py>, evidence: &OutOfMemory) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("kind", evidence.kind.name())?;
    figures.set_item("pool", evidence.pool.name())?;
    figures.set_item("cause", evidence.cause.name())?;
    set_fields!(figures, evidence: requested, short_by, limit_short_by, total_short_by);
    set_fields!(figures, evidence: device_short_by, needed, total_limit, device_name);
    set_fields!(figures, evidence: live, live_blocks, pending, cached, largest_cached_block);
    set_fields!(figures, evidence: largest_stitchable, cached_on_other_streams, reserved);
    set_fields!(figures, evidence: other_heaps, other_heaps_cached, foreign, device, device_free);
    set_fields!(figures, evidence: limit, limit_is_fixed, on_wsl2);
    figures.set_item("devices", evidence.devices.clone())?;
    let tried: Vec<_> =
        evidence.tried.iter().map(|(step, bytes)| (format!("{step:?}"), *bytes)).collect();
    figures.set_item("tried", tried)?;
    Ok(figures)
}

fn bug(py: Python<'_>, panic: &(dyn std::any::Any + Send)) -> PyErr {
    if panic.is::<TryReserveError>() {
        // The memory of an emulated device is host memory, and the host has too little.
        return refused(
            py,
            "HostResources",
            "the host has no memory for the emulated device's; use less of it, or a smaller device",
        );
    }
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text");
    refused(
        py,
        "Bug",
        &format!(
            "gpuheap {} failed in a way that is a bug of its own ({text}); what it holds may no longer \
             be right: save your work, restart, and report this text with what led to it",
            env!("CARGO_PKG_VERSION")
        ),
    )
}
