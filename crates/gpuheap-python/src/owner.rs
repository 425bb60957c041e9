//! A heap with its device, streams, and account by line, shared by its buffers.

use std::sync::Arc;

use gpuheap::{Block, Error, Reclaimer};
use pyo3::prelude::*;

use crate::collector::{MayAttach, collect};
use crate::failure::{call, call_detached};
use crate::lines::{Lines, RecordId};
use crate::reserve;
use crate::scope::{Budget, OpenScopes};
use crate::streams::Streams;

/// Device of an address: the number of its emulator, if it is emulated, and its ordinal.
pub(crate) type Place = (Option<u64>, i32);

/// A heap with its device, streams and account, shared by its buffers.
pub(crate) struct Owner {
    pub(crate) heap: gpuheap::Heap,
    pub(crate) device: gpuheap::Device,
    /// The legacy default stream: the order of memory for which no stream is named.
    pub(crate) default: gpuheap::Stream,
    pub(crate) streams: Streams,
    pub(crate) lines: Lines,
    pub(crate) place: Place,
    pub(crate) scopes: Arc<OpenScopes>,
    tracks: bool,
    /// Runs Python's collector when the heap is short.
    _collector: Reclaimer,
}

impl Owner {
    pub(crate) fn new(
        heap: gpuheap::Heap,
        device: gpuheap::Device,
        default: gpuheap::Stream,
        tracks: bool,
    ) -> Arc<Owner> {
        // Garbage that waits for Python's collector may hold memory.
        let collector = heap.register_reclaimer(|_| collect());
        let described = device.describe();
        let place = (described.emulator, described.ordinal);
        let (streams, lines) = (Streams::default(), Lines::new(heap.clone()));
        Arc::new(Owner {
            heap,
            device,
            default,
            streams,
            lines,
            place,
            scopes: Arc::default(),
            tracks,
            _collector: collector,
        })
    }

    /// Returns whether allocations are recorded by line.
    pub(crate) fn tracks(&self) -> bool {
        self.tracks
    }

    /// Returns the stream that `given` means; the default stream for none.
    pub(crate) fn stream(
        &self,
        py: Python<'_>,
        given: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<gpuheap::Stream> {
        Ok(self.named_stream(py, given)?.unwrap_or_else(|| self.default.clone()))
    }

    /// Returns the stream that `given` means; `None` if it is none.
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

    /// Allocates for Python: releases the interpreter's lock unless this thread's cache serves it.
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

    /// Allocates below a foreign allocator, whose lock this thread may hold: no Python runs, and
    /// the interpreter's lock is kept.
    pub(crate) fn allocate_below(
        &self,
        py: Python<'_>,
        bytes: u64,
        stream: &gpuheap::Stream,
    ) -> PyResult<(Block, Option<RecordId>)> {
        let block = call(py, || self.heap.allocate(bytes, stream))?;
        let record = self.tracked_below(py, block.address(), bytes);
        Ok((block, record))
    }

    /// Runs work that may allocate for Python, or wait, without the interpreter's lock. Python's
    /// collector runs if memory is short.
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

    /// Makes an array, as [`work`](Owner::work) does. The budgets of the scopes around may refuse
    /// it before it takes memory.
    pub(crate) fn make<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let Some(budget) = Budget::of_caller(py, &self.scopes)? else { return self.work(py, work) };
        let check = budget.clone();
        let made = self.work(py, || gpuheap::admitted(move |bytes| check.admits(bytes), work));
        made.map_err(|error| budget.refusal(py).unwrap_or(error))
    }

    /// Records an allocation of the calling line, if the heap tracks.
    pub(crate) fn tracked(&self, py: Python<'_>, address: u64, bytes: u64) -> Option<RecordId> {
        if self.tracks { self.lines.allocated(py, address, bytes) } else { None }
    }

    /// Records an allocation as [`tracked`](Owner::tracked) does, without running Python: the
    /// thread may be below a foreign allocator.
    pub(crate) fn tracked_below(
        &self,
        py: Python<'_>,
        address: u64,
        bytes: u64,
    ) -> Option<RecordId> {
        if self.tracks { self.lines.allocated_below(py, address, bytes) } else { None }
    }

    /// Records an allocation as [`tracked_below`](Owner::tracked_below) does, and waits for the
    /// interpreter's lock.
    pub(crate) fn tracked_detached(&self, address: u64, bytes: u64) -> Option<RecordId> {
        if !self.tracks {
            return None;
        }
        Python::try_attach(|py| self.tracked_below(py, address, bytes)).flatten()
    }

    /// Fills device memory of a buffer.
    pub(crate) fn fill(
        &self,
        address: u64,
        bytes: u64,
        byte: u8,
        stream: &gpuheap::Stream,
    ) -> Result<(), Error> {
        self.wrap_bytes(address, bytes, stream)?.fill(byte)
    }

    /// Copies to device memory of a buffer, and waits.
    pub(crate) fn upload(
        &self,
        to: u64,
        bytes: &[u8],
        stream: &gpuheap::Stream,
    ) -> Result<(), Error> {
        self.wrap_bytes(to, bytes.len() as u64, stream)?.write_from(bytes)
    }

    /// Copies from device memory of a buffer, and waits.
    pub(crate) fn download(
        &self,
        from: u64,
        bytes: &mut [u8],
        stream: &gpuheap::Stream,
    ) -> Result<(), Error> {
        self.wrap_bytes(from, bytes.len() as u64, stream)?.read_into(bytes)
    }

    fn wrap_bytes(
        &self,
        address: u64,
        bytes: u64,
        stream: &gpuheap::Stream,
    ) -> Result<gpuheap::DeviceArray<u8, gpuheap::ndarray::Ix1>, Error> {
        // SAFETY: the caller holds the buffer's memory, `bytes` of it from `address` on, and uses
        // the array before it releases the memory.
        unsafe { self.heap.on(stream).wrap(address, bytes as usize) }
    }
}
