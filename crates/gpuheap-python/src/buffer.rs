//! Device memory as a Python object.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::exchange::{self, Exported, SHOWN};
use crate::failure::{call, call_detached, detached, refused};
use crate::kind::Kind;
use crate::memory::Memory;
use crate::scope::{Counts, Holder};

/// Device memory of a heap, made by `Heap.alloc`. `free()`, the end of a `with` block or Python's
/// collector frees the memory. The free is ordered after the work of the buffer's stream. Freeing
/// does not wait for the GPU.
///
/// The contents are undefined at first. Other libraries read the buffer in place, through DLPack or
/// the CUDA array interface: `cupy.from_dlpack(buffer)`, `torch.from_dlpack(buffer)`,
/// `cupy.asarray(buffer)`. Memory handed over through DLPack stays allocated until the other
/// library releases it, even after `free()`. The CUDA array interface gives no such guarantee: keep
/// the buffer, unfreed, until the library's last use.
#[pyclass(frozen, module = "gpuheap", weakref)]
pub(crate) struct Buffer {
    address: u64,
    bytes: u64,
    /// Handle of the stream that the memory was allocated on.
    stream: usize,
    /// `true` after the first read of the buffer's address through the CUDA array interface. The
    /// reader holds this object.
    is_exposed: AtomicBool,
    state: Mutex<Ownership>,
}

enum Ownership {
    /// Owned by this object alone. The memory is boxed, so that making a `Buffer` moves few bytes.
    Own(Box<Memory>),
    /// Shared with the libraries to which it was exported.
    Shared(Arc<Memory>),
    /// Freed by this object. Other libraries may still hold the memory.
    Freed,
}

impl Buffer {
    pub(crate) fn new(memory: Box<Memory>) -> Buffer {
        Buffer {
            address: memory.address(),
            bytes: memory.bytes(),
            stream: memory.stream().raw().0,
            is_exposed: AtomicBool::new(false),
            state: Mutex::new(Ownership::Own(memory)),
        }
    }

    /// Returns the memory for another holder, or an error if it was freed.
    pub(crate) fn share(&self, py: Python<'_>) -> PyResult<Arc<Memory>> {
        self.shared().ok_or_else(|| freed(py))
    }

    /// Returns the memory; `None` if it was freed.
    fn shared(&self) -> Option<Arc<Memory>> {
        let mut state = self.lock();
        let shared = match std::mem::replace(&mut *state, Ownership::Freed) {
            Ownership::Own(memory) => Arc::from(memory),
            Ownership::Shared(shared) => shared,
            Ownership::Freed => return None,
        };
        *state = Ownership::Shared(shared.clone());
        Some(shared)
    }

    /// Locks the state. Under the lock, run no Python code and make no Python exception. The
    /// interpreter may otherwise switch to a thread that waits for the lock.
    fn lock(&self) -> MutexGuard<'_, Ownership> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The innermost scope that the memory is charged to.
    pub(crate) fn scope(&self) -> Option<Arc<Counts>> {
        match &*self.lock() {
            Ownership::Own(memory) => memory.scope().cloned(),
            Ownership::Shared(memory) => memory.scope().cloned(),
            Ownership::Freed => None,
        }
    }

    /// Makes the holder through which a scope refers to a buffer.
    pub(crate) fn holder(buffer: &Bound<'_, Buffer>) -> PyResult<Holder> {
        Holder::weak(buffer, |object| {
            object.cast::<Buffer>().is_ok_and(|buffer| buffer.get().is_freed())
        })
    }

    /// Returns whether `free` was called.
    pub(crate) fn is_freed(&self) -> bool {
        matches!(*self.lock(), Ownership::Freed)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.freed() { Err(freed(py)) } else { Ok(()) }
    }
}

fn freed(py: Python<'_>) -> PyErr {
    refused(
        py,
        "Freed",
        "the buffer was freed before this use; keep it until its last use, or allocate another",
    )
}

impl Ownership {
    /// Frees the memory. If other libraries hold the memory too, the last holder frees it.
    fn give_back(self, py: Python<'_>) -> PyResult<()> {
        let mut memory = match self {
            Ownership::Own(memory) => memory,
            // The last holder's drop frees the memory, and may wait for other streams.
            Ownership::Shared(shared) => return detached(py, || drop(shared)),
            Ownership::Freed => return Ok(()),
        };
        if memory.may_wait() {
            return call_detached(py, || memory.give_back());
        }
        // Keep the interpreter's lock, because releasing and retaking it costs more than the free.
        call(py, || memory.give_back())
    }

    /// Returns whether freeing the memory may wait on the host.
    fn may_wait(&mut self) -> bool {
        match self {
            Ownership::Own(memory) => memory.may_wait(),
            Ownership::Shared(_) => true,
            Ownership::Freed => false,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.may_wait() {
            let state = std::mem::replace(state, Ownership::Freed);
            // A destructor returns no error. If the free fails, the heap counts the memory as
            // pending.
            let _ = Python::try_attach(|py| state.give_back(py));
        }
    }
}

#[pymethods]
impl Buffer {
    /// Address on the device. Use the memory only on the buffer's stream, or on a stream that was
    /// passed to `used_on`.
    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<u64> {
        self.check(py)?;
        Ok(self.address)
    }

    /// Size in bytes, as requested.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Handle of the stream that the buffer was allocated on.
    #[getter]
    fn stream(&self) -> usize {
        self.stream
    }

    /// Name of the device.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.share(py)?.owner.device.name().to_owned())
    }

    /// `True` once `free` was called.
    #[getter]
    fn freed(&self) -> bool {
        self.is_freed()
    }

    /// Frees the memory, after the work of its stream and of each stream passed to `used_on`. If
    /// `stream` is given, the free is ordered after the work of `stream` too. A second call does
    /// nothing. Does not wait for the GPU.
    #[pyo3(signature = (stream=None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        if let Some(stream) = stream
            && !self.freed()
        {
            self.used_on(stream)?;
        }
        let state = std::mem::replace(&mut *self.lock(), Ownership::Freed);
        state.give_back(py)
    }

    /// Names another stream that uses the memory. The free is then ordered after that stream's
    /// work.
    fn used_on(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = stream.py();
        let memory = self.share(py)?;
        memory.use_on(&memory.owner.stream(py, Some(stream))?);
        Ok(())
    }

    /// Fills the memory with a byte, in the order of its stream. Does not wait for the GPU.
    #[pyo3(signature = (byte=0))]
    fn fill(&self, py: Python<'_>, byte: u8) -> PyResult<()> {
        let memory = self.share(py)?;
        call(py, || memory.owner.wrap_bytes(self.address, self.bytes, memory.stream())?.fill(byte))
    }

    /// Copies bytes to the device, from any object with the buffer protocol. Waits until the copy
    /// has completed.
    #[pyo3(signature = (source, offset=0))]
    fn copy_from(&self, py: Python<'_>, source: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let memory = self.share(py)?;
        let read = crate::host::read_buffer(source)?;
        let bytes = read.as_slice();
        self.check_range(py, offset, bytes.len())?;
        let (to, length) = (self.address + offset, bytes.len() as u64);
        call_detached(py, || {
            memory.owner.wrap_bytes(to, length, memory.stream())?.write_from(bytes)
        })
    }

    /// Copies bytes to the host. Waits for the stream's earlier work.
    #[pyo3(signature = (offset=0, nbytes=None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        nbytes: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.share(py)?;
        let bytes = nbytes.unwrap_or_else(|| self.bytes.saturating_sub(offset));
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.check_range(py, offset, length)?;
        let from = self.address + offset;
        // Python allocates the bytes, and raises an error if the host has no memory.
        PyBytes::new_with(py, length, |read| {
            call_detached(py, || {
                memory.owner.wrap_bytes(from, bytes, memory.stream())?.read_into(read)
            })
        })
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = self.share(py)?;
        let shape = [self.bytes as usize];
        let owner = memory.owner.clone();
        SHOWN.note(&owner, self.address, self.bytes, &memory);
        let exported = Exported::array(self.address, &shape, Kind::U8, &owner, memory);
        exchange::dlpack(py, exported, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(exchange::dlpack_device(&self.share(py)?.owner.device))
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let memory = self.share(py)?;
        exchange::refuse_emulated(py, &memory.owner.device)?;
        self.is_exposed.store(true, Ordering::Relaxed);
        // The library that reads the memory names no stream. So the default stream counts as a user
        // of the memory: it orders the free after the work of all blocking streams.
        memory.use_on(&memory.owner.default);
        SHOWN.note(&memory.owner, self.address, self.bytes, &memory);
        let shape = [self.bytes as usize];
        exchange::array_interface(py, self.address, &shape, "|u1", false, memory.stream())
    }

    /// `True` if another library's array may refer to the memory through this object.
    #[getter]
    fn _exposed(&self) -> bool {
        self.is_exposed.load(Ordering::Relaxed)
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    fn __enter__(slf: Py<Buffer>) -> Py<Buffer> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.free(py, None)
    }

    fn __repr__(&self) -> String {
        let state = if self.freed() { ", freed" } else { "" };
        format!("<gpuheap.Buffer {} bytes at {:#x}{state}>", self.bytes, self.address)
    }
}

impl Buffer {
    fn check_range(&self, py: Python<'_>, offset: u64, length: usize) -> PyResult<()> {
        let end = offset.checked_add(length as u64);
        if end.is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(refused(
            py,
            "WrongShape",
            &format!(
                "{length} bytes at offset {offset} are outside the buffer, which has {}",
                self.bytes
            ),
        ))
    }
}
