//! Finds the Python frames of the calling thread, the innermost first.
//!
//! CPython's functions make an object for each frame and need the interpreter's lock. [`places`]
//! needs no object and no lock, because it reads the structures of known interpreter versions.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::{PoisonError, RwLock};

use gpuheap_capture::CPython;
use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// Layout of this interpreter; `None` if it is unknown, or after the interpreter began to exit.
static LAYOUT: RwLock<Option<CPython>> = RwLock::new(None);

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns the calling thread's frames. A frame is the address of its code object, and the offset
/// of the running instruction. Needs no lock of the interpreter. Returns `None` if the
/// interpreter's structures are unknown.
pub(crate) fn places() -> Option<impl Iterator<Item = (usize, i64)>> {
    let known = LAYOUT.read().unwrap_or_else(PoisonError::into_inner);
    let layout = (*known)?;
    // SAFETY: the call has no precondition. The thread's state exists until the thread or the
    // interpreter ends, and only this thread pushes and pops its frames.
    let mut places = unsafe { layout.frames(ffi::PyGILState_GetThisThreadState() as usize) };
    Some(std::iter::from_fn(move || {
        // Hold the lock until the last read, because the interpreter frees threads' states when it
        // exits.
        let _held = &known;
        places.next()
    }))
}

/// Turns on the function [`places`] until the interpreter exits. Does nothing if the interpreter's
/// structures are unknown.
pub(crate) fn read_places(py: Python<'_>) -> PyResult<()> {
    let version = py.version_info();
    // `_PyRuntime` is not in CPython's stable interface, so an interpreter may lack it. SAFETY:
    // null stands for all libraries, and the name ends with a zero.
    let runtime = unsafe { dlsym(null_mut(), c"_PyRuntime".as_ptr()) };
    // SAFETY: the symbol is the interpreter's state.
    let known = unsafe { CPython::new((version.major, version.minor), runtime.cast()) };
    // Debug builds and builds without the interpreter's lock set flags, and have another layout.
    let flags: String = py.import("sys")?.getattr("abiflags")?.extract()?;
    let Some(layout) = known.filter(|_| flags.is_empty()) else { return Ok(()) };
    *LAYOUT.write().unwrap_or_else(PoisonError::into_inner) = Some(layout);
    let public: Vec<usize> = frames(py).map(|frame| code_of(&frame).as_ptr() as usize).collect();
    // CPython's functions leave out frames that have not begun. So `public` may lack frames that
    // `places` finds.
    let is_right = places()
        .is_some_and(|mut read| public.iter().all(|&code| read.any(|place| place.0 == code)));
    if !is_right {
        forget_places();
    }
    let forget = wrap_pyfunction!(forget_places, py)?;
    py.import("atexit")?.call_method1("register", (forget,))?;
    Ok(())
}

/// Stops [`places`], before the interpreter exits.
#[pyfunction]
fn forget_places() {
    // Wait for threads that are reading. Wait 10 ms at most, because in a forked child these
    // threads do not exist.
    for _ in 0..100 {
        if let Ok(mut layout) = LAYOUT.try_write() {
            *layout = None;
            return;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

/// Returns the frames of the calling thread as objects.
pub(crate) fn frames(py: Python<'_>) -> impl Iterator<Item = Bound<'_, PyAny>> {
    std::iter::successors(innermost_frame(py), |frame| {
        frame.getattr(intern!(frame.py(), "f_back")).ok().filter(|back| !back.is_none())
    })
}

/// Returns the innermost frame of the calling thread; `None` if only C code is on the stack.
pub(crate) fn innermost_frame(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: the interpreter's lock is held. The frame is a new reference or null.
    unsafe {
        let frame = ffi::PyThreadState_GetFrame(ffi::PyThreadState_Get());
        Bound::from_owned_ptr_or_opt(py, frame.cast())
    }
}

pub(crate) fn code_of<'py>(frame: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    // SAFETY: the object is a frame; the code object is a new reference and never null.
    unsafe { Bound::from_owned_ptr(frame.py(), ffi::PyFrame_GetCode(frame.as_ptr().cast()).cast()) }
}

pub(crate) fn line_of(frame: &Bound<'_, PyAny>) -> i32 {
    // SAFETY: the object is a frame.
    unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) }
}
