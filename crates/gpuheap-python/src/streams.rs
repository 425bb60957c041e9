//! Streams: the heap's own, and other libraries'.
//!
//! A handle says nothing about the life of its stream: the driver may give it to another one. An
//! object (`__cuda_stream__`) says no more, because many are views of a stream that another object
//! keeps. So each free on a foreign stream records an event, and a heap needs the stream no longer
//! than there is memory that was allocated on it. For as long, the table holds the objects by which
//! the memory was allocated: one of them may keep the stream alive.
//!
//! A thread's own default stream (2) needs no object: a heap notices the end of the thread.

use std::collections::hash_map;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::Error;
use gpuheap_driver::{CUstream, check};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use rustc_hash::FxHashMap;

use crate::failure::{call, call_detached, conversion};
use crate::kind::index_of;

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

    /// Makes the stream wait for the work that another one has so far. The call does not wait.
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
    /// Streams that were first seen in a capture, by the name that they have in it.
    in_captures: FxHashMap<u64, Entry>,
    /// Streams entered since the last sweep.
    entered: usize,
}

/// A stream, with the objects and numbers that the program passed for it.
struct Entry {
    stream: gpuheap::Stream,
    /// By the object's address; 0 for the handle as a number.
    users: FxHashMap<usize, User>,
    /// Number of users at which unneeded ones are dropped.
    prune_at: usize,
}

/// An object or a number that was given as a stream. Memory that was allocated by it has clones of
/// its stream.
struct User {
    stream: gpuheap::Stream,
    /// Object that may keep the stream alive; `None` for a number.
    object: Option<Py<PyAny>>,
}

/// The finding for a handle.
enum Found {
    /// The object was given before.
    Object(gpuheap::Stream),
    /// The stream. An object keeps it alive if the table holds one. Its handle may mean another
    /// stream by now.
    Stream { stream: gpuheap::Stream, has_objects: bool },
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
            // In no table, because the handle means another stream on each thread. SAFETY: a thread
            // has this stream until it ends, and heaps notice the end themselves.
            return call(py, || unsafe { default.device().foreign_stream(CUstream(handle)) });
        }
        let object = is_object.then_some(given);
        match self.find(handle, object) {
            Some(Found::Object(stream)) => return Ok(stream),
            Some(Found::Stream { stream, has_objects }) => {
                // The id of a stream that is capturing a graph cannot be read.
                if call(py, || still_means(&stream))?.unwrap_or(has_objects)
                    && let Some(known) = self.join(handle, &stream, object)
                {
                    return Ok(known);
                }
            }
            None => {}
        }
        // SAFETY: the stream is alive in this call, and while there is memory of it, as the
        // documentation of streams says. The table holds an object for as long. A Python program
        // that destroys the stream before is wrong about its own memory.
        let made = call(py, || unsafe { default.device().unannounced_stream(CUstream(handle)) })?;
        if made.is_of_capture() {
            let known = self.join_in_capture(made, object);
            self.sweep_captures();
            return Ok(known);
        }
        let (mut entry, stream) = Entry::new(made, object);
        let (old, is_full) = {
            let mut known = self.lock();
            known.entered += 1;
            if let Some(same) = known.by_handle.get_mut(&handle)
                && same.stream.id() == stream.id()
            {
                // Its memory still needs the earlier objects.
                let before = std::mem::take(&mut same.users);
                entry.users.extend(before.into_iter().filter(|(of, _)| *of != address(object)));
            }
            (known.by_handle.insert(handle, entry), known.entered >= Streams::SWEEP)
        };
        if let Some(old) = old
            && old.stream.id() != stream.id()
        {
            self.retire(py, heap, old)?;
        }
        if is_full {
            self.sweep(py, heap)?;
        }
        Ok(stream)
    }

    /// Enters a stream that is named within a capture. Returns the stream for its memory.
    fn join_in_capture(
        &self,
        made: gpuheap::Stream,
        object: Option<&Bound<'_, PyAny>>,
    ) -> gpuheap::Stream {
        let mut known = self.lock();
        let entry = known.in_captures.entry(made.id());
        entry.or_insert_with(|| Entry::without_users(made)).join(object)
    }

    /// Releases the objects of captures that no memory needs. The heap itself notices the end of
    /// each capture's graph.
    fn sweep_captures(&self) {
        let ended: Vec<Entry> = {
            let mut known = self.lock();
            if known.in_captures.len() < Streams::SWEEP {
                return;
            }
            let ended = known.in_captures.extract_if(|_, entry| entry.is_unneeded());
            ended.map(|(_, entry)| entry).collect()
        };
        // Outside of the lock: the end of an object is code of Python.
        drop(ended);
    }

    /// Finds the stream of a handle.
    fn find(&self, handle: usize, object: Option<&Bound<'_, PyAny>>) -> Option<Found> {
        let known = self.lock();
        let entry = known.by_handle.get(&handle).filter(|entry| !entry.stream.is_retired())?;
        if object.is_some()
            && let Some(user) = entry.users.get(&address(object))
        {
            return Some(Found::Object(user.stream.clone()));
        }
        let has_objects = entry.users.values().any(|user| user.object.is_some());
        Some(Found::Stream { stream: entry.stream.clone(), has_objects })
    }

    /// Notes that a stream of the table was passed as `object` too: the object may keep it alive.
    /// Returns the stream for its memory; `None` if the table has another one by now.
    fn join(
        &self,
        handle: usize,
        stream: &gpuheap::Stream,
        object: Option<&Bound<'_, PyAny>>,
    ) -> Option<gpuheap::Stream> {
        let (joined, unneeded) = {
            let mut known = self.lock();
            let entry = known.by_handle.get_mut(&handle)?;
            if entry.stream.id() != stream.id() || entry.stream.is_retired() {
                return None;
            }
            let unneeded = entry.prune();
            (entry.join(object), unneeded)
        };
        // Outside of the lock: the end of an object is code of Python.
        drop(unneeded);
        Some(joined)
    }

    /// Releases the streams that no memory needs, and whose objects only the table holds. If the
    /// heap cannot retire one, it stays. Returns the first such error.
    pub(crate) fn sweep(&self, py: Python<'_>, heap: &gpuheap::Heap) -> PyResult<()> {
        let unneeded: Vec<Entry>;
        let ended: Vec<Entry> = {
            let mut known = self.lock();
            known.entered = 0;
            let captured = known.in_captures.extract_if(|_, entry| entry.is_unneeded());
            let captured: Vec<Entry> = captured.map(|(_, entry)| entry).collect();
            unneeded = captured;
            known.by_handle.extract_if(|_, entry| entry.is_unneeded()).map(|(_, of)| of).collect()
        };
        drop(unneeded);
        let mut retired = Ok(());
        for entry in ended {
            retired = retired.and(self.retire(py, heap, entry));
        }
        retired
    }

    /// Retires a stream that the heap no longer needs, and then releases its objects. If that
    /// fails, the entry goes back into the table.
    fn retire(&self, py: Python<'_>, heap: &gpuheap::Heap, entry: Entry) -> PyResult<()> {
        if entry.stream.is_retired() {
            return Ok(());
        }
        let retired = call_detached(py, || heap.retire(&entry.stream));
        if retired.is_err() {
            let handle = entry.stream.raw().0;
            // A newer stream of this handle stays; the objects then live as long as the process.
            match self.lock().by_handle.entry(handle) {
                hash_map::Entry::Vacant(place) => drop(place.insert(entry)),
                hash_map::Entry::Occupied(_) => std::mem::forget(entry),
            }
        }
        retired
    }

    /// Calls `visit` for each object that the table holds.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Another thread may have the lock while the collector runs: nothing is visited then, and
        // the next collection finds the cycle.
        let Ok(known) = self.known.try_lock() else { return Ok(()) };
        let entries = known.by_handle.values().chain(known.in_captures.values());
        let users = entries.flat_map(|entry| entry.users.values());
        users.into_iter().try_for_each(|user| visit.call(&user.object))
    }

    /// Releases all objects: nothing but them holds the heap.
    pub(crate) fn clear(&self) {
        let known = std::mem::take(&mut *self.lock());
        drop(known);
    }

    /// Locks the table. No Python code may run under the lock: the interpreter may switch to a
    /// thread that waits for it. To make an exception, or to end an object, is such code.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Number of users at which a look for unneeded ones begins.
    const PRUNE: usize = 8;

    /// Makes the entry of a stream. Returns with it the stream for memory of its first user.
    fn new(stream: gpuheap::Stream, object: Option<&Bound<'_, PyAny>>) -> (Entry, gpuheap::Stream) {
        let mut entry = Entry::without_users(stream);
        let joined = entry.join(object);
        (entry, joined)
    }

    /// Makes the entry of a stream without users.
    fn without_users(stream: gpuheap::Stream) -> Entry {
        Entry { stream, users: FxHashMap::default(), prune_at: Entry::PRUNE }
    }

    /// Adds a user, unless it is there already. Returns the stream for its memory.
    fn join(&mut self, object: Option<&Bound<'_, PyAny>>) -> gpuheap::Stream {
        let user = self.users.entry(address(object)).or_insert_with(|| User {
            stream: self.stream.counted_apart(),
            object: object.map(|object| object.clone().unbind()),
        });
        user.stream.clone()
    }

    /// Takes out the users that are not needed, if there are many. Libraries that make an object
    /// for each call (`torch.cuda.current_stream()`) would fill the table while one block is live.
    fn prune(&mut self) -> Vec<User> {
        if self.users.len() < self.prune_at {
            return Vec::new();
        }
        let unneeded = self.users.extract_if(|_, user| user.is_unneeded());
        let unneeded = unneeded.map(|(_, user)| user).collect();
        self.prune_at = Entry::PRUNE.max(2 * self.users.len());
        unneeded
    }

    /// Returns whether no memory needs the stream, and only the table has its objects.
    fn is_unneeded(&self) -> bool {
        self.users.values().all(User::is_unneeded)
    }
}

impl User {
    /// Returns whether no memory was allocated by it that is live, and only the table has its
    /// object.
    fn is_unneeded(&self) -> bool {
        let is_held = match &self.object {
            // SAFETY: the object is alive, and the interpreter's lock is held.
            Some(object) => unsafe { ffi::Py_REFCNT(object.as_ptr()) > 1 },
            None => false,
        };
        !is_held && !self.stream.has_clones()
    }
}

/// Returns the address of an object; 0 for none.
fn address(object: Option<&Bound<'_, PyAny>>) -> usize {
    object.map_or(0, |object| object.as_ptr() as usize)
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
    if let Some(method) = given.getattr_opt(intern!(given.py(), "__cuda_stream__"))? {
        let answer = method.call0()?;
        let (version, handle): (u32, usize) = answer.extract().map_err(|error| {
            conversion(given.py(), error, || {
                PyTypeError::new_err(format!(
                    "__cuda_stream__ of {} returned {answer}, and not the pair (0, handle)",
                    given.get_type()
                ))
            })
        })?;
        if version == 0 {
            return Ok((handle, true));
        }
        return Err(PyTypeError::new_err(format!(
            "__cuda_stream__ of {} has version {version}; gpuheap knows version 0",
            given.get_type()
        )));
    }
    if let Some(number) = index_of(given)? {
        return handle_of(&number);
    }
    Err(PyTypeError::new_err(format!(
        "{} is no stream; pass an object with __cuda_stream__ (gpuheap, cuda.core, CuPy, PyTorch, RMM), \
         or the handle as a number",
        given.get_type()
    )))
}

/// Returns whether the handle of a stream still means that stream; `None` while it is capturing a
/// graph, because the question would break the capture.
pub(crate) fn still_means(stream: &gpuheap::Stream) -> Result<Option<bool>, Error> {
    if stream.is_capturing()? {
        return Ok(None);
    }
    let mut id = 0;
    // SAFETY: the pointer is valid for the call. A handle whose stream has ended is refused by the
    // driver, or means another stream.
    let asked = stream
        .device()
        .with_current(|driver| unsafe { driver.cuStreamGetId(stream.raw(), &mut id) })?;
    check("cuStreamGetId", asked)?;
    Ok(Some(id == stream.id()))
}
