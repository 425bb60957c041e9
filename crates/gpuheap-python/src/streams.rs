//! Streams of gpuheap and of other libraries.
//!
//! A handle identifies a stream only until the stream ends. The driver may then give the handle to
//! another stream. An object with `__cuda_stream__` may outlive its stream too, because many such
//! objects are views of a stream that another object keeps alive. So each free on another library's
//! stream records an event. A heap needs the stream only while memory exists that was allocated on
//! the stream. During that time, [`Streams`] holds the objects that were passed for those
//! allocations, because one of them may keep the stream alive.
//!
//! The per-thread default stream (handle 2) needs no object: a heap notices the end of the thread.

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
use crate::kind::read_index;

/// A stream on a heap's device, made by `Heap.stream()`. The stream does not wait for the default
/// stream.
///
/// Other libraries accept the stream through `__cuda_stream__`.
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

    /// Waits until all work of the stream has completed.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        call_detached(py, || self.inner.synchronize())
    }

    /// `True` if all work of the stream has completed.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        call(py, || self.inner.is_done())
    }

    /// Makes the stream wait for the work that `other` has so far. The call itself does not wait.
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

/// Streams of other libraries that the program passed to a heap, keyed by handle. A stream stays in
/// the table while memory of the heap may need it.
#[derive(Default)]
pub(crate) struct Streams {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_handle: FxHashMap<usize, Entry>,
    /// Streams that were first seen in a graph capture, keyed by their id in the capture.
    in_captures: FxHashMap<u64, Entry>,
    /// Number of streams added since the last sweep.
    entered: usize,
}

/// A stream, with the objects and numbers that the program passed to name it.
struct Entry {
    stream: gpuheap::Stream,
    /// Users of the stream. The key is the address of the object that the program passed to name
    /// the stream, or 0 if it passed a number.
    users: FxHashMap<usize, User>,
    /// Number of users at which [`prune`](Entry::prune) next removes unneeded users.
    prune_at: usize,
}

/// A user of a stream: all memory for which the program named the stream by the same object, or by
/// a number. This memory holds clones of `stream`, so the number of clones shows whether such
/// memory exists.
struct User {
    stream: gpuheap::Stream,
    /// The passed object, which may keep the stream alive. `None` if a number was passed.
    object: Option<Py<PyAny>>,
}

/// Result of a lookup by handle.
enum Found {
    /// This object was passed before.
    Object(gpuheap::Stream),
    /// The stream that the table has for the handle. Since its entry was made, the driver may have
    /// given the handle to another stream. If `has_objects` is set, the table holds an object that
    /// may keep the stream alive.
    Stream { stream: gpuheap::Stream, has_objects: bool },
}

impl Streams {
    /// Number of new streams after which the table is swept.
    const SWEEP: usize = 10;

    /// Returns the stream that `given` names: a gpuheap stream, an object with `__cuda_stream__`,
    /// or a number.
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
        let (handle, is_object) = read_handle(given)?;
        if CUstream(handle) == CUstream::NULL || CUstream(handle) == CUstream::LEGACY {
            return Ok(default.clone());
        }
        if CUstream(handle) == CUstream::PER_THREAD {
            // The table does not store this stream, because the handle names a different stream on
            // each thread. SAFETY: the stream lives as long as its thread, and heaps notice the
            // thread's end themselves.
            return call(py, || unsafe { default.device().foreign_stream(CUstream(handle)) });
        }
        let object = is_object.then_some(given);
        match self.find(handle, object) {
            Some(Found::Object(stream)) => return Ok(stream),
            Some(Found::Stream { stream, has_objects }) => {
                // While a stream captures a graph, its id cannot be read. If the table holds an
                // object of the stream, assume that the object has kept the stream alive.
                if call(py, || still_means(&stream))?.unwrap_or(has_objects)
                    && let Some(known) = self.join(handle, &stream, object)
                {
                    return Ok(known);
                }
            }
            None => {}
        }
        // SAFETY: the stream is alive during this call. The documentation requires the program to
        // keep the stream alive while memory exists that was allocated on it. The table holds the
        // passed object for that time.
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
                // The table has the same stream already. Keep its earlier users, because live
                // memory needs the stream, and a user's object may keep the stream alive.
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

    /// Adds a stream that was first seen in a graph capture, and `object`, by which the program
    /// named it. Returns the stream as [`Entry::join`] does.
    fn join_in_capture(
        &self,
        made: gpuheap::Stream,
        object: Option<&Bound<'_, PyAny>>,
    ) -> gpuheap::Stream {
        let mut known = self.lock();
        let entry = known.in_captures.entry(made.id());
        entry.or_insert_with(|| Entry::without_users(made)).join(object)
    }

    /// Drops the entries of captured streams that no memory needs. Does not retire these streams,
    /// because the heap itself notices the end of a capture's graph.
    fn sweep_captures(&self) {
        let ended: Vec<Entry> = {
            let mut known = self.lock();
            if known.in_captures.len() < Streams::SWEEP {
                return;
            }
            let ended = known.in_captures.extract_if(|_, entry| entry.is_unneeded());
            ended.map(|(_, entry)| entry).collect()
        };
        // Drops the entries after the lock is released, because dropping one may run Python code.
        drop(ended);
    }

    /// Looks up the stream of a handle.
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

    /// Notes that `object` was passed for a stream in the table, because the object may keep the
    /// stream alive. Returns the stream as [`Entry::join`] does. Returns `None` if the table has
    /// another stream for the handle now.
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
        // The lock is released first, because the end of a user's object may run Python code.
        drop(unneeded);
        Some(joined)
    }

    /// Retires the streams that no live memory needs, if the table holds the only references to the
    /// objects that name them. If the heap cannot retire a stream, the stream stays in the table.
    /// Returns the first error.
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

    /// Retires a stream that the heap no longer needs, and then releases its objects. On failure,
    /// puts the entry back into the table.
    fn retire(&self, py: Python<'_>, heap: &gpuheap::Heap, entry: Entry) -> PyResult<()> {
        if entry.stream.is_retired() {
            return Ok(());
        }
        let retired = call_detached(py, || heap.retire(&entry.stream));
        if retired.is_err() {
            let handle = entry.stream.raw().0;
            // The driver may have given the handle to a newer stream. The newer stream's entry then
            // stays. The old entry and its objects are leaked.
            match self.lock().by_handle.entry(handle) {
                hash_map::Entry::Vacant(place) => drop(place.insert(entry)),
                hash_map::Entry::Occupied(_) => std::mem::forget(entry),
            }
        }
        retired
    }

    /// Calls `visit` for each object that the table holds.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Another thread may hold the lock while the collector runs. If so, visit nothing, because
        // the next collection finds the cycle.
        let Ok(known) = self.known.try_lock() else { return Ok(()) };
        let entries = known.by_handle.values().chain(known.in_captures.values());
        let users = entries.flat_map(|entry| entry.users.values());
        users.into_iter().try_for_each(|user| visit.call(&user.object))
    }

    /// Releases all users' objects. Python's collector calls this when nothing but these objects,
    /// and other garbage, refers to the heap.
    pub(crate) fn clear(&self) {
        let known = std::mem::take(&mut *self.lock());
        drop(known);
    }

    /// Locks the table. Under the lock, run no Python code, make no exception and drop no object.
    /// The interpreter may otherwise switch to a thread that waits for the lock.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Minimum number of a stream's users at which [`prune`](Entry::prune) removes unneeded users.
    const PRUNE: usize = 8;

    /// Makes the entry of a stream, with `object` as its first user. Returns the entry, and the
    /// stream as [`join`](Entry::join) does.
    fn new(stream: gpuheap::Stream, object: Option<&Bound<'_, PyAny>>) -> (Entry, gpuheap::Stream) {
        let mut entry = Entry::without_users(stream);
        let joined = entry.join(object);
        (entry, joined)
    }

    /// Makes the entry of a stream. The entry has no users yet.
    fn without_users(stream: gpuheap::Stream) -> Entry {
        Entry { stream, users: FxHashMap::default(), prune_at: Entry::PRUNE }
    }

    /// Adds `object` to the stream's users if it is missing. Returns a clone of the stream, for
    /// memory that is requested with `object`. While such clones exist,
    /// [`is_unneeded`](User::is_unneeded) is `false`.
    fn join(&mut self, object: Option<&Bound<'_, PyAny>>) -> gpuheap::Stream {
        let user = self.users.entry(address(object)).or_insert_with(|| User {
            stream: self.stream.counted_apart(),
            object: object.map(|object| object.clone().unbind()),
        });
        user.stream.clone()
    }

    /// Removes the unneeded users if the stream has many users. Libraries that make an object for
    /// each call (`torch.cuda.current_stream()`) would otherwise fill the table while one block is
    /// live.
    fn prune(&mut self) -> Vec<User> {
        if self.users.len() < self.prune_at {
            return Vec::new();
        }
        let unneeded = self.users.extract_if(|_, user| user.is_unneeded());
        let unneeded = unneeded.map(|(_, user)| user).collect();
        self.prune_at = Entry::PRUNE.max(2 * self.users.len());
        unneeded
    }

    /// Returns whether no memory needs the stream, and only the table holds the stream's objects.
    fn is_unneeded(&self) -> bool {
        self.users.values().all(User::is_unneeded)
    }
}

impl User {
    /// Returns whether the table may drop this user of a stream: all memory that was allocated for
    /// the user was freed, and the program no longer holds the user's object.
    fn is_unneeded(&self) -> bool {
        let is_held = match &self.object {
            // SAFETY: the object is alive, and the interpreter's lock is held.
            Some(object) => unsafe { ffi::Py_REFCNT(object.as_ptr()) > 1 },
            None => false,
        };
        !is_held && !self.stream.has_clones()
    }
}

/// Returns the address of an object; 0 for `None`.
fn address(object: Option<&Bound<'_, PyAny>>) -> usize {
    object.map_or(0, |object| object.as_ptr() as usize)
}

/// Returns the handle of a stream, and whether an object was passed. An object may keep the stream
/// alive.
pub(crate) fn read_handle(given: &Bound<'_, PyAny>) -> PyResult<(usize, bool)> {
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
    if let Some(number) = read_index(given)? {
        return read_handle(&number);
    }
    Err(PyTypeError::new_err(format!(
        "{} is no stream; pass an object with __cuda_stream__ (gpuheap, cuda.core, CuPy, PyTorch, RMM), \
         or the handle as a number",
        given.get_type()
    )))
}

/// Returns whether a stream's handle still names that stream. `None` while the stream is capturing
/// a graph, because the query would break the capture.
pub(crate) fn still_means(stream: &gpuheap::Stream) -> Result<Option<bool>, Error> {
    if stream.is_capturing()? {
        return Ok(None);
    }
    let mut id = 0;
    // SAFETY: the pointer is valid for the call. If the stream was destroyed, the driver refuses
    // the handle or reads it as another stream.
    let asked = stream
        .device()
        .with_current(|driver| unsafe { driver.cuStreamGetId(stream.raw(), &mut id) })?;
    check("cuStreamGetId", asked)?;
    Ok(Some(id == stream.id()))
}
