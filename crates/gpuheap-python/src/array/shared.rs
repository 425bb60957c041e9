//! Lets scopes and batches refer to the memory of arrays. A scope or a batch frees the whole
//! memory, even if only a part of the array is still referenced.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;

use super::window::Held;
use crate::failure::call;

/// A weak reference to the memory that an array shares with its parts.
#[pyclass(frozen, module = "gpuheap._gpuheap", name = "_Memory")]
pub(crate) struct SharedMemory {
    held: Weak<Held>,
}

impl SharedMemory {
    pub(crate) fn from_held(held: &Arc<Held>) -> SharedMemory {
        SharedMemory { held: Arc::downgrade(held) }
    }
}

#[pymethods]
impl SharedMemory {
    /// Number that identifies the memory. No other memory has this number while this object exists.
    #[getter]
    fn id(&self) -> usize {
        self.held.as_ptr() as usize
    }

    /// Address on the device; 0 if the memory was freed.
    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<u64> {
        match self.held.upgrade().filter(|held| !held.is_freed()) {
            Some(held) => call(py, || held.address()),
            None => Ok(0),
        }
    }

    /// Size in bytes of the whole memory, also of the parts that only other arrays use; 0 if no
    /// array refers to the memory.
    #[getter]
    fn nbytes(&self) -> usize {
        self.held.upgrade().map_or(0, |held| held.bytes())
    }

    /// `True` if the memory was freed, or if no array refers to it.
    #[getter]
    pub(super) fn freed(&self) -> bool {
        self.held.upgrade().is_none_or(|held| held.is_freed())
    }

    /// `True` after the CUDA array interface of a gpuheap array of this memory was read. Another
    /// library's array may then refer to the memory.
    #[getter]
    fn _exposed(&self) -> bool {
        self.held.upgrade().is_some_and(|held| held.is_exposed())
    }

    /// Frees the memory for all arrays that share it, after the work enqueued on it. Does not wait
    /// for the GPU.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        match self.held.upgrade() {
            Some(held) => call(py, || held.free()),
            None => Ok(()),
        }
    }
}
