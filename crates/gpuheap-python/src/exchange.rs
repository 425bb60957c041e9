//! Lets other libraries read memory in place, through DLPack 1.x and the CUDA array interface.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gpuheap_driver::CUstream;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};

use gpuheap::Error;

use crate::failure::call;
use crate::kind::{Kind, MOST_AXES, read_index};
use crate::owner::{Owner, Place};
use crate::reserve;

/// DLPack's device type `kDLCUDA`: memory of a GPU.
pub(crate) const DL_CUDA: i32 = 2;
/// `kDLCUDAHost` and `kDLCUDAManaged`: host memory that the device can address.
pub(crate) const DL_CUDA_HOST: i32 = 3;
pub(crate) const DL_CUDA_MANAGED: i32 = 13;
/// `kDLExtDev`: the memory of an emulated device. No other library can read it.
pub(crate) const DL_EXTENSION: i32 = 12;

pub(crate) const DL_INT: u8 = 0;
pub(crate) const DL_UINT: u8 = 1;
pub(crate) const DL_FLOAT: u8 = 2;
pub(crate) const DL_BOOL: u8 = 6;
/// DLPack's flag `DLPACK_FLAG_BITMASK_READ_ONLY`.
pub(crate) const READ_ONLY: u64 = 1;

/// Memory that is handed to another library, with its description.
pub(crate) struct Exported {
    address: u64,
    shape: Box<[i64]>,
    kind: DlDataType,
    lent: Arc<dyn Lent>,
    device: (i32, i32),
    owner: Arc<Owner>,
}

/// Memory that was handed to another library. The memory is kept until that library releases it.
pub(crate) trait Lent: Send + Sync {
    /// Makes `consumer` wait for the work enqueued on the memory. Orders the free after `consumer`.
    fn hand_to(&self, consumer: &gpuheap::Stream) -> Result<(), Error>;

    /// Returns `true` if the memory may not be written.
    fn is_read_only(&self) -> bool;
}

/// Memory of all heaps that was handed to other libraries. A library may hand such memory back to
/// gpuheap without ordering it after gpuheap's own work. [`Shown::order`] adds that order.
pub(crate) static SHOWN: Shown = Shown { known: Mutex::new(BTreeMap::new()) };

/// Memory that was handed to other libraries.
pub(crate) struct Shown {
    /// Live entries, keyed by address. The entries do not overlap.
    known: Mutex<BTreeMap<(Place, u64), ShownMemory>>,
}

/// Size of the memory in bytes, and a weak reference to the memory.
type ShownMemory = (u64, Weak<dyn Lent>);

impl Shown {
    /// Minimum number of entries at which dead entries are dropped.
    const PRUNE: usize = 64;

    /// Notes that the `bytes` bytes at `address` were handed to another library.
    pub(crate) fn note<L: Lent + 'static>(
        &self,
        owner: &Owner,
        address: u64,
        bytes: u64,
        lent: &Arc<L>,
    ) {
        let lent = Arc::downgrade(lent);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Shown::PRUNE && known.len().is_power_of_two() {
            known.retain(|_, (_, lent)| lent.strong_count() > 0);
        }
        known.insert((owner.place, address), (bytes, lent));
    }

    /// Makes `stream` wait for the work on all handed-out memory that overlaps a range.
    pub(crate) fn order(
        &self,
        owner: &Owner,
        address: u64,
        bytes: u64,
        stream: &gpuheap::Stream,
    ) -> Result<(), Error> {
        let (first, end) = ((owner.place, 0), (owner.place, address.saturating_add(bytes)));
        let mut found: Vec<Arc<dyn Lent>> = Vec::new();
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            for ((_, from), (bytes, lent)) in known.range(first..end).rev() {
                if *from <= address && lent.strong_count() > 0 {
                    let overlaps = from.saturating_add(*bytes) > address;
                    found.extend(lent.upgrade().filter(|_| overlaps));
                    break;
                }
                found.extend(lent.upgrade());
            }
        }
        found.iter().try_for_each(|lent| lent.hand_to(stream))
    }
}

impl Exported {
    /// Describes an array for a consumer.
    pub(crate) fn array(
        address: u64,
        shape: &[usize],
        kind: Kind,
        owner: &Arc<Owner>,
        lent: Arc<dyn Lent>,
    ) -> Exported {
        let code = match kind.class() {
            'b' => DL_BOOL,
            'i' => DL_INT,
            'u' => DL_UINT,
            _ => DL_FLOAT,
        };
        Exported {
            address,
            shape: shape.iter().map(|length| *length as i64).collect(),
            kind: DlDataType { code, bits: kind.size() as u8 * 8, lanes: 1 },
            lent,
            device: dlpack_device(&owner.device),
            owner: owner.clone(),
        }
    }
}

/// Returns a device as DLPack's pair of type and number.
pub(crate) fn dlpack_device(device: &gpuheap::Device) -> (i32, i32) {
    match device.is_emulated() {
        true => (DL_EXTENSION, 0),
        false => (DL_CUDA, device.ordinal()),
    }
}

/// Refuses the memory of an emulated device, which another library would read as GPU memory.
pub(crate) fn refuse_emulated(_py: Python<'_>, device: &gpuheap::Device) -> PyResult<()> {
    if device.is_emulated() {
        // If the attribute `__cuda_array_interface__` raises `AttributeError`, other libraries
        // treat the object as one without that interface.
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
    is_read_only: bool,
    stream: &gpuheap::Stream,
) -> PyResult<Bound<'py, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", PyTuple::new(py, shape)?)?;
    interface.set_item("typestr", kind)?;
    interface.set_item("data", (address, is_read_only))?;
    interface.set_item("strides", py.None())?;
    // The interface forbids 0, so pass 1 for the default stream.
    interface.set_item("stream", stream.raw().0.max(1))?;
    Ok(interface)
}

/// Makes the capsule that `__dlpack__` returns. Makes the consumer's stream wait for the work
/// enqueued on the memory. The free is ordered after the work of the consumer's stream.
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
    if let Some(asked) = dl_device.filter(|asked| *asked != exported.device) {
        return Err(PyBufferError::new_err(format!(
            "the memory is on the device {:?} and not on {asked:?}; copy it with the library that \
             reads it",
            exported.device
        )));
    }
    let versioned = max_version.is_some_and(|(major, _)| major >= 1);
    if exported.lent.is_read_only() && !versioned {
        return Err(PyBufferError::new_err(
            "the memory is read-only, which DLPack before version 1 cannot say; make a copy first: \
             a.copy()",
        ));
    }
    reserve::check(py)?;
    order(py, &exported, stream)?;
    if versioned { capsule::<Versioned>(py, exported) } else { capsule::<Plain>(py, exported) }
}

/// Makes the consumer's stream wait. By DLPack's rules for CUDA, `None` or 1 is the legacy default
/// stream, 2 is the thread's default stream, and -1 requests no order.
fn order(py: Python<'_>, exported: &Exported, given: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let number = match given {
        Some(given) if !given.hasattr(intern!(py, "__cuda_stream__"))? => read_index(given)?,
        _ => None,
    };
    let consumer = match &number {
        Some(number) if number.eq(-1)? => return Ok(()),
        // The two default streams wait for each other, so the legacy one can stand for both.
        Some(number) if number.eq(CUstream::PER_THREAD.0)? => exported.owner.default.clone(),
        _ => exported.owner.stream(py, given)?,
    };
    call(py, || exported.lent.hand_to(&consumer))
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlDataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
pub(crate) struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// A managed tensor, in one of DLPack's two layouts.
pub(crate) trait Managed: Sized + 'static {
    const NAME: &'static CStr;
    /// Name of a capsule after its tensor was consumed.
    const USED: &'static CStr;
    fn new(tensor: DlTensor, context: *mut c_void, flags: u64) -> Self;
    fn tensor(&self) -> &DlTensor;
    fn context(&self) -> *mut c_void;
    fn deleter(&self) -> Option<Deleter<Self>>;
    /// Flags and major version. `None` for `DLManagedTensor`, which has no such fields.
    fn version(&self) -> Option<(u64, u32)>;
}

/// The producer's function that releases a managed tensor.
type Deleter<M> = unsafe extern "C" fn(*mut M);

/// DLPack's struct `DLManagedTensor`, without a version.
#[repr(C)]
pub(crate) struct Plain {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<Deleter<Plain>>,
}

/// DLPack's struct `DLManagedTensorVersioned`, version 1.0.
#[repr(C)]
pub(crate) struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<Deleter<Versioned>>,
    flags: u64,
    tensor: DlTensor,
}

impl Managed for Plain {
    const NAME: &'static CStr = c"dltensor";
    const USED: &'static CStr = c"used_dltensor";
    fn new(tensor: DlTensor, context: *mut c_void, _flags: u64) -> Plain {
        Plain { tensor, context, deleter: Some(delete::<Plain>) }
    }
    fn tensor(&self) -> &DlTensor {
        &self.tensor
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<Deleter<Plain>> {
        self.deleter
    }
    fn version(&self) -> Option<(u64, u32)> {
        None
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    const USED: &'static CStr = c"used_dltensor_versioned";
    fn new(tensor: DlTensor, context: *mut c_void, flags: u64) -> Versioned {
        let deleter = Some(delete::<Versioned> as Deleter<Versioned>);
        Versioned { major: 1, minor: 0, context, deleter, flags, tensor }
    }
    fn tensor(&self) -> &DlTensor {
        &self.tensor
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<Deleter<Versioned>> {
        self.deleter
    }
    fn version(&self) -> Option<(u64, u32)> {
        Some((self.flags, self.major))
    }
}

/// Releases a managed tensor. The consumer calls this once, on any thread, with or without the
/// interpreter's lock.
///
/// # Safety
///
/// `managed` was made by [`capsule`], and the caller does not use it afterwards.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: `capsule` made the pointer by `Box::into_raw`, and the consumer releases it once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `capsule` made the context by `Box::into_raw`, for this tensor alone.
    drop(unsafe { Box::from_raw(managed.context().cast::<Exported>()) });
}

fn capsule<M: Managed>(py: Python<'_>, exported: Exported) -> PyResult<Bound<'_, PyAny>> {
    let exported = Box::into_raw(Box::new(exported));
    // SAFETY: the box is new, and no other code has its address.
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
    let flags = if described.lent.is_read_only() { READ_ONLY } else { 0 };
    let managed = Box::into_raw(Box::new(M::new(tensor, exported.cast(), flags)));
    // SAFETY: the name is static. The capsule is a new reference or null.
    unsafe {
        let made = ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(end_unused::<M>));
        let made = Bound::from_owned_ptr_or_err(py, made);
        if made.is_err() {
            delete(managed);
        }
        made
    }
}

/// Releases the tensor of a capsule that was not consumed. A consumer renames the capsule.
///
/// # Safety
///
/// Only the interpreter calls it, when a capsule made by [`capsule`] ends.
unsafe extern "C" fn end_unused<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that still has its first name owns its tensor.
    unsafe {
        let unused: c_int = ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr());
        if unused != 0 {
            let managed = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr());
            delete(managed.cast::<M>());
        }
    }
}

/// Checked description of another library's memory.
pub(crate) struct Described {
    pub(crate) address: u64,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
    pub(crate) is_read_only: bool,
}

/// Returns an error if the strides leave gaps. `unit` is the stride between adjacent elements.
pub(crate) fn check_strides(shape: &[usize], strides: &[i64], unit: usize) -> PyResult<()> {
    let mut expected = unit as i64;
    let mut is_plain = strides.len() == shape.len();
    for (length, stride) in shape.iter().zip(strides).rev() {
        is_plain &= *length == 1 || *stride == expected;
        expected = expected.saturating_mul(*length as i64);
    }
    if is_plain || shape.contains(&0) {
        return Ok(());
    }
    Err(PyBufferError::new_err(format!(
        "the memory of shape {shape:?} has the strides {strides:?}, and arrays have no gaps; make a \
         contiguous copy with its own library first"
    )))
}

pub(crate) fn unknown_type(name: &str) -> PyErr {
    PyBufferError::new_err(format!(
        "the memory has elements of {name}, and arrays have bool, integers of 8 to 64 bits, float32 and \
         float64; convert it with its own library first"
    ))
}

/// Returns whether another library's capsule contains a `DLManagedTensorVersioned`.
pub(crate) fn is_versioned(capsule: &Bound<'_, PyAny>) -> PyResult<bool> {
    // SAFETY: the call accepts any object, and the names are static.
    let [versioned, plain] = [Versioned::NAME, Plain::NAME]
        .map(|name| unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } != 0);
    if versioned || plain {
        return Ok(versioned);
    }
    Err(PyTypeError::new_err(format!(
        "__dlpack__ returned {}, and not a capsule that was not consumed before",
        capsule.get_type()
    )))
}

/// A managed tensor of another library. The capsule owns the tensor until the tensor is consumed.
pub(crate) struct Foreign<M>(*mut M);

/// Returns the managed tensor of a capsule. The capsule keeps owning the tensor until the tensor is
/// consumed.
pub(crate) fn peek<M: Managed>(capsule: &Bound<'_, PyAny>) -> PyResult<Foreign<M>> {
    // SAFETY: the call checks the object's type and name; the name is static.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr()) };
    if managed.is_null() { Err(PyErr::fetch(capsule.py())) } else { Ok(Foreign(managed.cast())) }
}

impl<M: Managed> Foreign<M> {
    /// Reads and checks the tensor's description of its memory.
    pub(crate) fn describe(&self) -> PyResult<Described> {
        if !self.0.is_aligned() {
            return Err(PyBufferError::new_err(
                "the capsule's address is no address of a DLPack tensor",
            ));
        }
        // SAFETY: by DLPack's protocol, a capsule of the name `M::NAME` contains an `M`.
        let managed = unsafe { &*self.0 };
        let (flags, major) = managed.version().unwrap_or((0, 1));
        if major != 1 {
            return Err(PyBufferError::new_err(format!(
                "the tensor has DLPack version {major}, and gpuheap knows version 1"
            )));
        }
        let tensor = managed.tensor();
        let (DlDataType { code, bits, lanes }, axes) = (tensor.dtype, tensor.ndim);
        let class = match code {
            DL_BOOL => 'b',
            DL_INT => 'i',
            DL_UINT => 'u',
            DL_FLOAT => 'f',
            _ => ' ',
        };
        let kind = Kind::from_class(class, usize::from(bits) / 8);
        let kind = kind.filter(|_| lanes == 1 && bits.is_multiple_of(8)).ok_or_else(|| {
            unknown_type(&format!("DLPack type code {code}, {bits} bits, {lanes} lanes"))
        })?;
        let Some(axes) = usize::try_from(axes).ok().filter(|axes| *axes <= MOST_AXES) else {
            return Err(PyBufferError::new_err(format!(
                "the tensor has {axes} axes, and an array has 0 to {MOST_AXES}"
            )));
        };
        if axes > 0 && tensor.shape.is_null() {
            return Err(PyBufferError::new_err(format!(
                "the tensor has {axes} axes, and its shape is NULL"
            )));
        }
        // SAFETY: by the protocol, `shape` and `strides` have one number for each axis.
        let row =
            |at: *const i64| (0..axes).map(move |axis| unsafe { at.add(axis).read_unaligned() });
        let shape: Result<Vec<usize>, _> = row(tensor.shape).map(usize::try_from).collect();
        let shape = shape
            .map_err(|_| PyBufferError::new_err("the tensor has an axis of negative length"))?;
        if !tensor.strides.is_null() {
            check_strides(&shape, &row(tensor.strides).collect::<Vec<_>>(), 1)?;
        }
        let address = (tensor.data as u64).checked_add(tensor.byte_offset);
        let address = address
            .ok_or_else(|| PyBufferError::new_err("the tensor begins past every address"))?;
        Ok(Described { address, shape, kind, is_read_only: flags & READ_ONLY != 0 })
    }

    /// Returns the tensor's device as DLPack's pair of type and number.
    pub(crate) fn device(&self) -> (i32, i32) {
        // SAFETY: by DLPack's protocol, a capsule of the name `M::NAME` contains an `M`.
        let tensor = unsafe { &*self.0 }.tensor();
        (tensor.device_type, tensor.device_id)
    }

    /// Returns an [`End`] that can release the tensor. Use it only after the tensor was consumed.
    pub(crate) fn end(&self) -> End<M> {
        End(self.0)
    }

    /// Takes the tensor out of its capsule. The capsule then no longer releases it.
    pub(crate) fn consume(self, capsule: &Bound<'_, PyAny>) -> PyResult<()> {
        // SAFETY: the capsule is valid, and the name is static.
        match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED.as_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(capsule.py())),
        }
    }
}

/// A consumed tensor, to be released by [`call`](End::call).
pub(crate) struct End<M>(*mut M);

// SAFETY: by the protocol, a deleter may be called on any thread.
unsafe impl<M> Send for End<M> {}

impl<M: Managed> End<M> {
    /// Calls the producer's deleter, because the memory is no longer needed.
    pub(crate) fn call(self) {
        // SAFETY: the tensor was consumed, and only `self` releases it. The deleter is called once.
        unsafe {
            if let Some(deleter) = (*self.0).deleter() {
                deleter(self.0);
            }
        }
    }
}
