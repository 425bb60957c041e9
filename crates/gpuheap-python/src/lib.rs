//! The extension module `gpuheap._gpuheap`: heaps, buffers and streams for Python, by Rust and not
//! by the C interface. What needs no speed is Python, in `python/gpuheap/`.
//!
//! * `heap`: heaps of a device, and their figures.
//! * `buffer`: device memory, as Python owns it; `host`: pinned and managed memory.
//! * `array`: arrays, their arithmetic, and what they are made from.
//! * `owner`: what buffers need of their heap; `memory`: a block and what its free comes after.
//! * `addresses`: memory by its address, for hooks; `torch`: the functions that PyTorch calls.
//! * `streams`: the streams of other libraries, and which of them a heap still needs.
//! * `lines`: allocations by the line of Python that made them; `scope`: those of open scopes.
//! * `kind`: types of elements; `count`: numbers that a caller passes.
//! * `exchange`: DLPack and the CUDA array interface.
//! * `command`: the command `gpuheap`.
//! * `explain`, `replay`: the rules and models of the command.
//! * `failure`: errors as exceptions; no panic crosses into Python.
//!
//! **The interpreter's lock.** A request that the thread's cache serves keeps the lock. Every other
//! call of the heap lets it go, because it may wait for the device. The core never asks for the
//! lock while it holds a lock of its own, so a thread may hold a foreign lock and free memory.
//!
//! A free-threaded interpreter is asked to turn the lock on. Counts of references decide which
//! streams only the heap holds and which buffers a scope may free, and without the lock another
//! thread may change a count between the look and the decision.

mod addresses;
mod array;
mod buffer;
mod command;
mod count;
mod device;
mod exchange;
mod explain;
mod failure;
mod heap;
mod host;
mod kind;
mod lines;
mod locked;
mod memory;
mod owner;
mod replay;
mod scope;
mod streams;
mod torch;

use pyo3::prelude::*;

/// Entries of the module; `gpuheap` re-exports what is public.
#[pymodule(gil_used = true)]
mod _gpuheap {
    #[pymodule_export]
    use crate::array::{Array, SharedMemory, from_dlpack};
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::device::{Device, devices};
    #[pymodule_export]
    use crate::explain::_explain;
    #[pymodule_export]
    use crate::heap::{_size, Heap};
    #[pymodule_export]
    use crate::host::HostBuffer;
    #[pymodule_export]
    use crate::replay::_replay;
    #[pymodule_export]
    use crate::scope::Account;
    #[pymodule_export]
    use crate::streams::Stream;
    #[pymodule_export]
    use crate::torch::{_torch_functions, _torch_leave, _torch_serve};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
