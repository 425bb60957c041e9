//! DLPack 1.x and the CUDA array interface: memory that other libraries read in place.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use gpuheap_driver::CUstream;
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::failure::call;
use crate::memory::Memory;
use crate::owner::Owner;

/// `kDLCUDA`.
const DL_CUDA: i32 = 2;
/// `kDLExtDev`: the memory of an emulated device, which no other library can read.
const DL_EXTENSION: i32 = 12;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Memory that is handed to another library, with what describes it.
pub(crate) struct Exported {
    address: u64,
    shape: Box<[i64]>,
    kind: DlDataType,
    memory: Arc<Memory>,
    device: (i32, i32),
    stream: gpuheap::Stream,
    owner: Arc<Owner>,
}

impl Exported {
    /// Describes a buffer: its bytes in one row.
    pub(crate) fn bytes(address: u64, bytes: u64, memory: Arc<Memory>) -> Exported {
        Exported {
            address,
            shape: [bytes as i64].into(),
            kind: DlDataType { code: 1, bits: 8, lanes: 1 },
            device: dlpack_device(&memory.owner.device),
            stream: memory.stream.clone(),
            owner: memory.owner.clone(),
            memory,
        }
    }
}

/// Returns the device as DLPack names it.
pub(crate) fn dlpack_device(device: &gpuheap::Device) -> (i32, i32) {
    match device.is_emulated() {
        true => (DL_EXTENSION, 0),
        false => (DL_CUDA, device.ordinal()),
    }
}

/// Refuses what another library would do with an emulated device's memory: read it as a GPU's.
pub(crate) fn refuse_emulated(_py: Python<'_>, device: &gpuheap::Device) -> PyResult<()> {
    if device.is_emulated() {
        // An AttributeError: a library that asks finds that the memory has no such interface.
        return Err(PyAttributeError::new_err(format!(
            "{} is emulated inside gpuheap, and no other library can read its memory; run the program \
             under `python -m gpuheap emulate` to emulate the driver for all of them",
            device.name()
        )));
    }
    Ok(())
}

/// Makes the dictionary of the CUDA array interface, version 3.
pub(crate) fn array_interface<'py>(
    py: Python<'py>,
    address: u64,
    shape: &[usize],
    kind: &str,
    stream: &gpuheap::Stream,
) -> PyResult<Bound<'py, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", PyTuple::new(py, shape)?)?;
    interface.set_item("typestr", kind)?;
    interface.set_item("data", (address, false))?;
    interface.set_item("strides", py.None())?;
    // The interface forbids 0, and names the default stream 1.
    interface.set_item("stream", stream.raw().0.max(1))?;
    Ok(interface)
}

/// Makes the capsule that `__dlpack__` returns, and makes the consumer's stream wait for what was
/// enqueued on the memory. The free comes after the consumer's stream.
pub(crate) fn dlpack<'py>(
    py: Python<'py>,
    exported: Exported,
    stream: Option<&Bound<'py, PyAny>>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    if copy == Some(true) {
        return Err(PyBufferError::new_err(
            "gpuheap hands its memory over without a copy; make the copy with the library that reads it",
        ));
    }
    if dl_device.is_some_and(|asked| asked != exported.device) {
        return Err(PyBufferError::new_err(format!(
            "the memory is on the device {:?} and not on {dl_device:?}; copy it with the library that \
             reads it",
            exported.device
        )));
    }
    order(py, &exported, stream)?;
    let versioned = max_version.is_some_and(|(major, _)| major >= 1);
    if versioned { capsule::<Versioned>(py, exported) } else { capsule::<Plain>(py, exported) }
}

/// Makes the consumer's stream wait, as DLPack's rules for CUDA say: no stream or 1 is the legacy
/// default one, 2 the thread's own, -1 asks for no order.
fn order(py: Python<'_>, exported: &Exported, given: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let consumer = match given {
        Some(given) if given.extract::<i64>().is_ok_and(|number| number == -1) => return Ok(()),
        Some(given)
            if CUstream(given.extract::<usize>().unwrap_or_default()) == CUstream::PER_THREAD =>
        {
            // Work of a thread's own stream waits for the legacy one, which waits for it in turn.
            exported.owner.default.clone()
        }
        given => exported.owner.stream(py, given)?,
    };
    exported.memory.use_on(&consumer);
    if consumer.id() != exported.stream.id() {
        call(py, || consumer.wait(&exported.stream.record()?))?;
    }
    Ok(())
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlDataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// A managed tensor, in one of the two layouts that DLPack has for it.
trait Managed: Sized {
    const NAME: &'static CStr;
    fn new(tensor: DlTensor, context: *mut c_void) -> Self;
    fn context(&self) -> *mut c_void;
}

/// `DLManagedTensor`.
#[repr(C)]
struct Plain {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

/// `DLManagedTensorVersioned`, version 1.0.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

impl Managed for Plain {
    const NAME: &'static CStr = PLAIN;
    fn new(tensor: DlTensor, context: *mut c_void) -> Plain {
        Plain { tensor, context, deleter: Some(delete::<Plain>) }
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = VERSIONED;
    fn new(tensor: DlTensor, context: *mut c_void) -> Versioned {
        let deleter = Some(delete::<Versioned> as unsafe extern "C" fn(*mut Versioned));
        Versioned { major: 1, minor: 0, context, deleter, flags: 0, tensor }
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// Ends a managed tensor. The consumer calls it once, on any thread, with or without the
/// interpreter's lock.
///
/// # Safety
///
/// `managed` is from [`capsule`], and not used afterwards.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: made by `Box::into_raw` in `capsule`, and ended once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: the context was made by `Box::into_raw` in `capsule`, for this tensor alone.
    drop(unsafe { Box::from_raw(managed.context().cast::<Exported>()) });
}

fn capsule<M: Managed>(py: Python<'_>, exported: Exported) -> PyResult<Bound<'_, PyAny>> {
    let exported = Box::into_raw(Box::new(exported));
    // SAFETY: just made, and read here before anybody else has it.
    let described = unsafe { &mut *exported };
    let tensor = DlTensor {
        data: described.address as *mut c_void,
        device_type: described.device.0,
        device_id: described.device.1,
        ndim: described.shape.len() as i32,
        dtype: described.kind,
        shape: described.shape.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Box::into_raw(Box::new(M::new(tensor, exported.cast())));
    // SAFETY: the name lives as long as the program, and the capsule is a new reference or null.
    unsafe {
        let made = ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(end_unused::<M>));
        let made = Bound::from_owned_ptr_or_err(py, made);
        if made.is_err() {
            delete(managed);
        }
        made
    }
}

/// Ends the tensor of a capsule that was not consumed. A consumer renames the capsule.
///
/// # Safety
///
/// Called by the interpreter at the end of a capsule of [`capsule`].
unsafe extern "C" fn end_unused<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule of `capsule` with its first name still owns its tensor.
    unsafe {
        let unused: c_int = ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr());
        if unused != 0 {
            let managed = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr());
            delete(managed.cast::<M>());
        }
    }
}
