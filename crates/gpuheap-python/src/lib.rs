//! The extension module `gpuheap._gpuheap`: heaps, buffers and streams for Python. It calls the
//! Rust crate directly instead of the C interface. Code that need not be fast is Python, in
//! `python/gpuheap/`.
//!
//! * `heap`: heaps as Python objects, and their figures.
//! * `buffer`: device memory as a Python object; `host`: pinned and managed memory.
//! * `array`: arrays, their arithmetic, and their sources; `foreign`: arrays over other libraries'
//!   memory.
//! * `owner`: a heap with its streams and lines; `memory`: a block and the order of its free.
//! * `addresses`: tables of memory for hooks, keyed by address; `cupy`: the allocator of CuPy;
//!   `torch`, `rmm`: the functions that PyTorch and a native RMM resource call.
//! * `streams`: the streams of other libraries, and which of them a heap still needs.
//! * `lines`: allocations by Python line; `frames`: a thread's frames; `scope`: figures and limits
//!   of scopes; `scope_memory`: the objects that a scope frees or keeps.
//! * `arrow`: tables and columns of other libraries.
//! * `groups`: dense keys of tables, their merged aggregates, and orders of rows.
//! * `kind`: element types; `count`: numbers that a caller passes.
//! * `exchange`: DLPack and the CUDA array interface.
//! * `command`: the `gpuheap` command, its explanations and replays.
//! * `failure`: errors as exceptions; no panic crosses into Python.
//! * `publication`: lines, holders and libraries, for other processes that read a published heap;
//!   `libraries`: live bytes by library.
//! * `reserve`: host memory that is held back for a shortage.
//!
//! **The interpreter's lock.** A request that the thread's cache serves keeps the lock. Every other
//! call of the heap releases the lock, because the call may wait for the device. The core never
//! takes the interpreter's lock while it holds one of its own locks. So a hook may free memory on a
//! thread that holds another library's lock. If the free waited for the interpreter's lock, the
//! thread with that lock could in turn wait for the library's lock.
//!
//! The module makes a free-threaded interpreter turn the lock on. The reason is that the module
//! reads reference counts, to find streams that only the heap holds. Without the lock, another
//! thread could change a count between the read and the decision.

/// Sets the entries of a dictionary from fields of the same names.
macro_rules! set_fields {
    ($dict:expr, $from:ident: $($field:ident),+) => {
        $($dict.set_item(pyo3::intern!($dict.py(), stringify!($field)), &$from.$field)?;)+
    };
}

mod addresses;
mod array;
mod arrow;
mod buffer;
mod collector;
mod command;
mod count;
mod cupy;
mod device;
mod exchange;
mod failure;
mod foreign;
mod frames;
mod groups;
mod heap;
mod host;
mod kind;
mod libraries;
mod lines;
mod locked;
mod memory;
mod owner;
mod publication;
mod reserve;
mod rmm;
mod scope;
mod scope_memory;
mod streams;
mod torch;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Defines the module's entries. The package `gpuheap` re-exports the public entries.
#[pymodule(gil_used = true)]
fn _gpuheap(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Check before the first class is made: a class belongs to the interpreter that makes it.
    check_interpreter()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    lines::keep_package(module.py())?;
    frames::read_places(module.py())?;
    gpuheap::find_requesters_by(lines::requester);
    gpuheap::walk_frames_by(lines::walk_frames);
    reserve::renew(module.py())?;
    module.add_class::<array::Array>()?;
    module.add_class::<array::SharedMemory>()?;
    module.add_class::<arrow::ArrowChunk>()?;
    module.add_class::<arrow::ArrowColumn>()?;
    module.add_class::<arrow::ArrowField>()?;
    module.add_class::<arrow::ArrowReader>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<cupy::CupyAllocator>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<groups::GroupChunk>()?;
    module.add_class::<groups::GroupChunks>()?;
    module.add_class::<groups::GroupKeys>()?;
    module.add_class::<groups::HostColumn>()?;
    module.add_class::<groups::PartsMerger>()?;
    module.add_class::<heap::Heap>()?;
    module.add_class::<host::HostBuffer>()?;
    module.add_class::<scope::Account>()?;
    module.add_class::<rmm::RmmHeap>()?;
    module.add_class::<streams::Stream>()?;
    module.add_function(wrap_pyfunction!(arrow::_arrow_export, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::_arrow_upload, module)?)?;
    module.add_function(wrap_pyfunction!(foreign::from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(command::run_command, module)?)?;
    module.add_function(wrap_pyfunction!(device::devices, module)?)?;
    module.add_function(wrap_pyfunction!(command::_explain, module)?)?;
    module.add_function(wrap_pyfunction!(groups::_factorize, module)?)?;
    module.add_function(wrap_pyfunction!(groups::_join_rows, module)?)?;
    module.add_function(wrap_pyfunction!(groups::_sort_rows, module)?)?;
    module.add_function(wrap_pyfunction!(groups::_take_text, module)?)?;
    module.add_function(wrap_pyfunction!(groups::_true_rows, module)?)?;
    module.add_function(wrap_pyfunction!(groups::_unique_rows, module)?)?;
    module.add_function(wrap_pyfunction!(heap::_size, module)?)?;
    module.add_function(wrap_pyfunction!(heap::_size_text, module)?)?;
    module.add_function(wrap_pyfunction!(command::_replay, module)?)?;
    module.add_function(wrap_pyfunction!(scope::_innermost_scope, module)?)?;
    module.add_function(wrap_pyfunction!(scope_memory::_scope_adopt, module)?)?;
    module.add_function(wrap_pyfunction!(scope_memory::_scope_keep, module)?)?;
    module.add_function(wrap_pyfunction!(scope_memory::_scope_leaked, module)?)?;
    module.add_function(wrap_pyfunction!(scope_memory::_scope_stayed, module)?)?;
    module.add_function(wrap_pyfunction!(torch::_torch_functions, module)?)?;
    module.add_function(wrap_pyfunction!(torch::_torch_leave, module)?)?;
    module.add_function(wrap_pyfunction!(torch::_torch_serve, module)?)
}

/// Returns an error unless the interpreter is the process's main one. Classes and modules are kept
/// for the whole process. Classes of another interpreter would be used after that interpreter's
/// end.
fn check_interpreter() -> PyResult<()> {
    // SAFETY: the interpreter that imports the module is running, and its lock is held.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "gpuheap runs in the main interpreter alone, and this is subinterpreter {number}; import it in \
         the main one, or start a process"
    )))
}
