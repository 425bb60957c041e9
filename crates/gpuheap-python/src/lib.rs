//! The extension module `gpuheap._gpuheap`: heaps, buffers and streams for Python, by Rust and not
//! by the C interface. Parts that need no speed are Python, in `python/gpuheap/`.
//!
//! * `heap`: heaps of a device, and their figures.
//! * `buffer`: device memory, as Python owns it; `host`: pinned and managed memory.
//! * `array`: arrays, their arithmetic, and their sources; `foreign`: arrays over other libraries'
//!   memory.
//! * `owner`: a heap with its streams and lines; `memory`: a block and the order of its free.
//! * `addresses`: memory by its address, for hooks; `torch`: the functions that PyTorch calls.
//! * `streams`: the streams of other libraries, and which of them a heap still needs.
//! * `lines`: allocations by line of Python; `scope`: figures and limits of scopes; `scope_memory`:
//!   the objects that a scope frees or keeps.
//! * `kind`: types of elements; `count`: numbers that a caller passes.
//! * `exchange`: DLPack and the CUDA array interface.
//! * `command`: the command `gpuheap`, its explanations and replays.
//! * `failure`: errors as exceptions; no panic crosses into Python.
//! * `reserve`: memory of the host that is held back for a shortage.
//!
//! **The interpreter's lock.** A request that the thread's cache serves keeps the lock. Every other
//! call of the heap releases it, because it may wait for the device. The core never takes the lock
//! while it holds a lock of its own, so a thread may hold a foreign lock and free memory.
//!
//! The module makes a free-threaded interpreter turn the lock on. Reference counts show which
//! streams only the heap holds. Without the lock another thread may change a count between the read
//! and the decision.

/// Sets entries of a dictionary from fields of the same names.
macro_rules! set_fields {
    ($dict:expr, $from:ident: $($field:ident),+) => {
        $($dict.set_item(pyo3::intern!($dict.py(), stringify!($field)), &$from.$field)?;)+
    };
}

mod addresses;
mod array;
mod buffer;
mod collector;
mod command;
mod count;
mod device;
mod exchange;
mod failure;
mod foreign;
mod heap;
mod host;
mod kind;
mod lines;
mod locked;
mod memory;
mod owner;
mod reserve;
mod scope;
mod scope_memory;
mod streams;
mod torch;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Entries of the module; `gpuheap` re-exports the public ones.
#[pymodule(gil_used = true)]
fn _gpuheap(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Before the first class is made: classes belong to the interpreter that makes them.
    check_interpreter()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    lines::keep_package(module.py())?;
    gpuheap::find_requesters_by(lines::requester);
    reserve::renew(module.py())?;
    module.add_class::<array::Array>()?;
    module.add_class::<array::SharedMemory>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<heap::Heap>()?;
    module.add_class::<host::HostBuffer>()?;
    module.add_class::<scope::Account>()?;
    module.add_class::<streams::Stream>()?;
    module.add_function(wrap_pyfunction!(foreign::from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(command::run_command, module)?)?;
    module.add_function(wrap_pyfunction!(device::devices, module)?)?;
    module.add_function(wrap_pyfunction!(command::_explain, module)?)?;
    module.add_function(wrap_pyfunction!(heap::_size, module)?)?;
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

/// Refuses an interpreter that is not the process's main one. Classes and modules are kept for the
/// whole process, and would be used after the end of the interpreter that they belong to.
fn check_interpreter() -> PyResult<()> {
    // SAFETY: the interpreter that imports the module runs, and its lock is held.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if number == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "gpuheap runs in the main interpreter alone, and this is subinterpreter {number}; import it in \
         the main one, or start a process"
    )))
}
