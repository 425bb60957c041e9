//! CuPy's allocator. CuPy calls the allocator for each array, with the interpreter's lock held.
//!
//! CuPy's own `CFunctionAllocatorMemory` owns the memory. It calls one C function to get memory and
//! another to free it. If this module made a Python object for each block, making the object would
//! take longer than allocating the block.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;

use gpuheap_driver::CUstream;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::count::Count;
use crate::failure::refused;
use crate::heap::Heap;
use crate::libraries::CUPY;
use crate::memory::Memory;
use crate::owner::Owner;
use crate::scope::charge;

/// Sizes are rounded up to a multiple of this many bytes, as in CuPy's own pool, because programs
/// use all bytes that the attribute `size` of CuPy's memory object reports.
const UNIT: u64 = 512;

/// An allocator for `cupy.cuda.set_allocator`: `gpuheap.cupy.Allocator` without its checks.
#[pyclass(frozen, subclass, name = "_CupyAllocator", module = "gpuheap")]
pub(crate) struct CupyAllocator {
    /// Heaps, indexed by device ordinal.
    heaps: Vec<Option<Arc<Owner>>>,
    /// CuPy's functions for the current device and stream.
    get_device: Py<PyAny>,
    get_stream: Py<PyAny>,
    /// CuPy's C functions for the current device and stream; `None` if the installed CuPy lacks the
    /// function.
    device_function: Option<DeviceFunction>,
    handle_function: Option<HandleFunction>,
    /// CuPy's classes `CFunctionAllocatorMemory` and `MemoryPointer`.
    memory_class: Py<PyAny>,
    pointer_class: Py<PyAny>,
    /// Addresses of [`take`] and [`free`], as Python integers.
    take: Py<PyAny>,
    free: Py<PyAny>,
}

type DeviceFunction = unsafe extern "C" fn(c_int) -> c_int;
type HandleFunction = unsafe extern "C" fn() -> isize;

#[pymethods]
impl CupyAllocator {
    /// Makes the allocator of `heaps`. A device has at most one heap.
    #[new]
    fn new(py: Python<'_>, heaps: Vec<PyRef<'_, Heap>>) -> PyResult<CupyAllocator> {
        let mut by_device: Vec<Option<Arc<Owner>>> = Vec::new();
        for heap in heaps {
            let at = usize::try_from(heap.owner.device.ordinal()).unwrap_or(0);
            by_device.resize(by_device.len().max(at + 1), None);
            by_device[at] = Some(heap.owner.clone());
        }
        let device = py.import("cupy.cuda.device")?;
        let memory = py.import("cupy.cuda.memory")?;
        let stream = py.import("cupy.cuda.stream")?;
        let device_function = c_function(&device, "get_device_id", DEVICE_SIGNATURE)?;
        let handle_function = c_function(&stream, "get_current_stream_ptr", HANDLE_SIGNATURE)?;
        let number = |function: *const ()| (function as usize).into_pyobject(py);
        Ok(CupyAllocator {
            heaps: by_device,
            get_device: device.getattr("get_device_id")?.unbind(),
            get_stream: stream.getattr("get_current_stream")?.unbind(),
            // SAFETY: the capsule's name is the signature of this function type.
            device_function: device_function
                .map(|found| unsafe { std::mem::transmute::<*mut c_void, DeviceFunction>(found) }),
            // SAFETY: the capsule's name is the signature of this function type.
            handle_function: handle_function
                .map(|found| unsafe { std::mem::transmute::<*mut c_void, HandleFunction>(found) }),
            memory_class: memory.getattr("CFunctionAllocatorMemory")?.unbind(),
            pointer_class: memory.getattr("MemoryPointer")?.unbind(),
            take: number(take as *const ())?.into_any().unbind(),
            free: number(free as *const ())?.into_any().unbind(),
        })
    }

    /// Allocates on CuPy's current device. The memory is freed in the order of the stream that is
    /// current now. Returns CuPy's `MemoryPointer`.
    fn __call__<'py>(
        slf: &Bound<'py, CupyAllocator>,
        nbytes: Count,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let device = this.device(py)?;
        let owner = this.owner(py, device)?;
        // The heap refuses a size that cannot be rounded up.
        let bytes = nbytes.0.checked_next_multiple_of(UNIT).unwrap_or(nbytes.0);
        let memory = match bytes {
            0 => null_mut(),
            _ => match this.allocate(py, owner, bytes) {
                Ok(memory) => Box::into_raw(Box::new(memory)),
                Err(error) => {
                    let error = slf.call_method1("_error", (error.into_value(py), bytes))?;
                    return Err(PyErr::from_value(error));
                }
            },
        };
        TAKEN.set(null_mut());
        let arguments = (bytes, memory as usize, &this.take, &this.free, device);
        match this.memory_class.bind(py).call1(arguments) {
            Ok(object) => this.pointer_class.bind(py).call1((object, 0)),
            Err(error) => {
                if !memory.is_null() && TAKEN.get() != memory {
                    // SAFETY: no object of CuPy owns the memory, because `take` was not called.
                    drop(unsafe { Box::from_raw(memory) });
                }
                Err(error)
            }
        }
    }
}

impl CupyAllocator {
    fn device(&self, py: Python<'_>) -> PyResult<c_int> {
        let Some(function) = self.device_function else {
            return self.get_device.bind(py).call0()?.extract();
        };
        // SAFETY: the interpreter's lock is held. Cython adds the argument (`skip_dispatch`) to
        // such functions, and this function ignores it.
        let device = unsafe { function(0) };
        match device < 0 {
            true => Err(PyErr::fetch(py)),
            false => Ok(device),
        }
    }

    fn owner(&self, py: Python<'_>, device: c_int) -> PyResult<&Arc<Owner>> {
        let at = usize::try_from(device).unwrap_or(usize::MAX);
        self.heaps.get(at).and_then(Option::as_ref).ok_or_else(|| {
            let served = self.heaps.iter().position(Option::is_some).unwrap_or(0);
            let text = format!(
                "CuPy's current device is {device}, and its heap is of device {served}; allocate under \
                 cupy.cuda.Device({served}), or call gpuheap.install(devices=\"all\")"
            );
            refused(py, "InvalidArgument", &text)
        })
    }

    fn allocate(&self, py: Python<'_>, owner: &Arc<Owner>, bytes: u64) -> PyResult<Memory> {
        let stream = match self.is_on_default_stream() {
            true => None,
            // Pass the stream object, because a handle would not keep the stream alive.
            false => owner.named_stream(py, Some(&self.get_stream.bind(py).call0()?))?,
        };
        // Scopes count this memory, but do not free it, because CuPy's arrays use it.
        let (charge, _) = charge(py, &owner.scopes, bytes)?;
        let on = stream.as_ref().unwrap_or(&owner.default);
        let (block, record) = owner.allocate(py, bytes, on)?;
        Ok(Memory::new(block, record, charge, owner.clone(), stream).of(CUPY))
    }

    /// Returns whether CuPy's current stream is the default stream. Returns `false` if the stream
    /// is unknown.
    fn is_on_default_stream(&self) -> bool {
        self.handle_function.is_some_and(|function| {
            // SAFETY: the interpreter's lock is held.
            let handle = CUstream(unsafe { function() }.cast_unsigned());
            handle == CUstream::NULL || handle == CUstream::LEGACY
        })
    }
}

thread_local! {
    /// The memory that [`take`] gave to CuPy last on this thread.
    static TAKEN: Cell<*mut Memory> = const { Cell::new(null_mut()) };
}

/// Returns the address of `memory`, for the object of CuPy that frees it.
unsafe extern "C" fn take(memory: *mut c_void, _: usize, _: c_int) -> *mut c_void {
    let memory = memory.cast::<Memory>();
    TAKEN.set(memory);
    // SAFETY: `CupyAllocator::__call__` passed the memory to CuPy's object, and nothing frees it
    // before the object does.
    unsafe { (*memory).address() as *mut c_void }
}

/// Frees memory that [`take`] returned, in the order of its stream.
unsafe extern "C" fn free(memory: *mut c_void, _: *mut c_void, _: c_int) {
    // CuPy accepts no error here. The heap counts memory that it could not free.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `take` took the memory for one object of CuPy, which frees it once.
        drop(unsafe { Box::from_raw(memory.cast::<Memory>()) });
    }));
}

/// Signatures of CuPy's C functions, as Cython writes them.
const DEVICE_SIGNATURE: &CStr = c"int (int __pyx_skip_dispatch)";
const HANDLE_SIGNATURE: &CStr = c"intptr_t (void)";

/// Returns a function of a Cython module's C interface. Returns `None` if the module has no such
/// function of that signature. The module is never unloaded.
fn c_function(
    module: &Bound<'_, PyModule>,
    name: &str,
    signature: &CStr,
) -> PyResult<Option<*mut c_void>> {
    let Some(functions) = module.getattr_opt("__pyx_capi__")? else { return Ok(None) };
    let Ok(capsule) = functions.get_item(name) else { return Ok(None) };
    // SAFETY: the object is alive, and both calls check that it is a capsule of that name.
    let function = unsafe {
        match ffi::PyCapsule_IsValid(capsule.as_ptr(), signature.as_ptr()) {
            1 => ffi::PyCapsule_GetPointer(capsule.as_ptr(), signature.as_ptr()),
            _ => null_mut(),
        }
    };
    Ok((!function.is_null()).then_some(function))
}
