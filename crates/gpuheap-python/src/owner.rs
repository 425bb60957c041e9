//! Defines the object that keeps a heap's device, streams and records. Buffers and arrays share it.

use std::sync::Arc;

use gpuheap::{Block, Error, Reclaimer};
use gpuheap_publish::Membership;
use pyo3::prelude::*;

use crate::collector::{MayAttach, collect};
use crate::failure::{call, call_detached};
use crate::libraries::LibraryBytes;
use crate::lines::{Lines, RecordId};
use crate::publication::PythonPart;
use crate::reserve;
use crate::scope::{Budget, OpenScopes};
use crate::streams::Streams;

/// Device of an address. The fields are the number of the emulator (`None` for a real device) and
/// the device's ordinal.
pub(crate) type Place = (Option<u64>, i32);

/// A heap, its device, its streams and its records. Buffers and arrays share this object.
pub(crate) struct Owner {
    pub(crate) heap: gpuheap::Heap,
    pub(crate) device: gpuheap::Device,
    /// The legacy default stream. It orders memory that was requested without a stream.
    pub(crate) default: gpuheap::Stream,
    pub(crate) streams: Streams,
    pub(crate) lines: Arc<Lines>,
    pub(crate) place: Place,
    pub(crate) scopes: Arc<OpenScopes>,
    pub(crate) libraries: Arc<LibraryBytes>,
    tracks: bool,
    /// Registration at the process's socket. Until it is dropped, other processes can read the
    /// heap's [`PythonPart`] there. `None` if the heap is not published.
    _publication: Option<Membership>,
    /// Runs Python's collector when the heap is short of memory.
    _collector: Reclaimer,
}

impl Owner {
    pub(crate) fn new(
        heap: gpuheap::Heap,
        device: gpuheap::Device,
        default: gpuheap::Stream,
        tracks: bool,
        beside: Option<&Owner>,
    ) -> Arc<Owner> {
        // Objects that Python's collector has not freed yet may hold device memory.
        let collector = heap.register_reclaimer(|_| collect());
        let described = device.describe();
        let place = (described.emulator, described.ordinal);
        let (streams, lines) = (Streams::default(), Arc::new(Lines::new(heap.clone())));
        // The heap shares the scopes of `beside`. A scope of either heap governs requests of both.
        let scopes = beside.map(|other| other.scopes.clone()).unwrap_or_default();
        let libraries = Arc::<LibraryBytes>::default();
        let part = PythonPart {
            lines: tracks.then(|| Arc::downgrade(&lines)),
            scopes: beside.is_none().then(|| scopes.clone()),
            libraries: libraries.clone(),
            device: device.name().to_owned(),
        };
        // If `join` fails, only the figures of `part` are not published. The heap already is.
        let publication = heap.published().and_then(|access| part.join(access).ok());
        Arc::new(Owner {
            heap,
            device,
            default,
            streams,
            lines,
            place,
            scopes,
            libraries,
            tracks,
            _publication: publication,
            _collector: collector,
        })
    }

    /// Returns whether allocations are recorded by line.
    pub(crate) fn tracks(&self) -> bool {
        self.tracks
    }

    /// Returns the stream that `given` names. If `given` is `None`, returns the default stream.
    pub(crate) fn stream(
        &self,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<gpuheap::Stream> {
        Ok(self.named_stream(py, given)?.unwrap_or_else(|| self.default.clone()))
    }

    /// Returns the stream that `given` names, or `None` if `given` names no stream.
    pub(crate) fn named_stream(
        &self,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<gpuheap::Stream>> {
        match given {
            Some(given) if !given.is_none() => {
                self.streams.get(py, &self.heap, &self.default, given).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Allocates for Python. If the thread's cache serves the request, keeps the interpreter's
    /// lock; otherwise releases it.
    pub(crate) fn allocate(
        &self,
        py: Python<'_>,
        bytes: u64,
        stream: &gpuheap::Stream,
    ) -> PyResult<(Block, Option<RecordId>)> {
        reserve::check(py)?;
        let kept = call(py, || Ok(self.heap.allocate_cached(bytes, stream)))?;
        let block = match kept {
            Some(block) => block,
            None => self.work(py, || self.heap.allocate(bytes, stream))?,
        };
        let record = self.tracked(py, block.address(), bytes);
        Ok((block, record))
    }

    /// Releases the interpreter's lock and runs work that may wait, or may allocate for Python. If
    /// memory is short, Python's collector runs.
    pub(crate) fn work<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        reserve::check(py)?;
        call_detached(py, || {
            let _may = MayAttach::begin();
            work()
        })
    }

    /// Makes an array, as [`work`](Owner::work) does. The budgets of the open scopes may refuse the
    /// array before any memory is allocated.
    pub(crate) fn make<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let Some(budget) = Budget::for_caller(py, &self.scopes)? else {
            return self.work(py, work);
        };
        let check = budget.clone();
        let made = self.work(py, || gpuheap::admitted(move |bytes| check.admits(bytes), work));
        made.map_err(|error| budget.refusal(py).unwrap_or(error))
    }

    /// Records an allocation of the calling line if the heap records lines.
    pub(crate) fn tracked(&self, py: Python<'_>, address: u64, bytes: u64) -> Option<RecordId> {
        if self.tracks { self.lines.allocated(py, address, bytes) } else { None }
    }

    /// Records an allocation as [`tracked`](Owner::tracked) does, but runs no Python code, so that
    /// a foreign allocator may call this function. May wait for the interpreter's lock.
    pub(crate) fn tracked_below(&self, address: u64, bytes: u64) -> Option<RecordId> {
        if self.tracks { self.lines.allocated_below(address, bytes) } else { None }
    }

    /// Returns a range of a buffer's device memory as an array.
    pub(crate) fn wrap_bytes(
        &self,
        address: u64,
        bytes: u64,
        stream: &gpuheap::Stream,
    ) -> Result<gpuheap::DeviceArray<u8, gpuheap::ndarray::Ix1>, Error> {
        // SAFETY: the caller holds the buffer's memory, which has at least `bytes` bytes from
        // `address` on. The caller uses the array before it releases the memory.
        unsafe { self.heap.on(stream).wrap(address, bytes as usize) }
    }
}
