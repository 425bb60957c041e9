//! cuDNN: handles, descriptors and sizes. What it computes is left out.
//!
//! Parts:
//! * `graph`: the interface of operation graphs, with one engine for each graph.
//! * `workspace`: bytes that an engine asks for.
//! * `tensor`: descriptors of tensors, and those that nothing is read from.
//! * `rnn`: recurrent networks: spaces, and where the weights lie.
//! * `norm`: batch normalisation.

mod graph;
mod norm;
mod rnn;
mod tensor;
mod workspace;

use std::ffi::{c_char, c_int, c_void};

use gpuheap_driver::{CUdevice_attribute, CUstream, Driver};

use crate::code::{self, Code};
use crate::driver::driver;
use crate::{kernel, report};

const SUCCESS: c_int = 0;
const ALLOCATION_FAILED: c_int = 4004;
const BAD_PARAM: c_int = 2000;
const NULL_POINTER: c_int = 2002;

/// Version that is told: 9.19.0.
const VERSION: usize = 91_900;

/// Bytes of a dropout's generators for each multiprocessor: 24 for each of its threads.
const GENERATORS: usize = 24 * 2048;

/// State of a handle.
struct Handle {
    stream: CUstream,
}

/// Writes `value`; refuses a null pointer.
///
/// # Safety
///
/// `place` is null or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) -> c_int {
    if place.is_null() {
        return NULL_POINTER;
    }
    // SAFETY: not null, so valid for a write.
    unsafe { place.write(value) };
    SUCCESS
}

/// Puts a launch into the handle's stream.
///
/// # Safety
///
/// `handle` is null or live.
unsafe fn work(handle: *mut c_void) -> c_int {
    // SAFETY: the caller promises a handle that is null or live.
    let Some(handle) = (unsafe { handle.cast::<Handle>().as_ref() }) else { return NULL_POINTER };
    kernel::launch(handle.stream);
    SUCCESS
}

/// Returns the version.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

/// Returns the version of the CUDA runtime that cuDNN uses.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetCudartVersion() -> usize {
    13_000
}

/// Returns the name of a code.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetErrorString(code: c_int) -> *const c_char {
    let name = match code {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        ALLOCATION_FAILED => c"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NULL_POINTER => c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER",
        // Functions that are refused answer with it.
        3000 => c"CUDNN_STATUS_NOT_SUPPORTED: not modelled by gpuheap's dry run",
        _ => c"unknown cuDNN status",
    };
    name.as_ptr()
}

/// Writes a part of the version: major, minor, or patch level.
///
/// # Safety
///
/// `value` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetProperty(part: c_int, value: *mut c_int) -> c_int {
    let number = match part {
        0 => VERSION / 10_000,
        1 => VERSION / 100 % 100,
        2 => VERSION % 100,
        _ => return BAD_PARAM,
    };
    // SAFETY: the caller promises a pointer that is null or valid for a write.
    unsafe { put(value, number as c_int) }
}

/// Writes an empty text: no error has one here.
///
/// # Safety
///
/// `text` is null or valid for writes of `bytes`.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetLastErrorString(text: *mut c_char, bytes: usize) {
    if !text.is_null() && bytes > 0 {
        // SAFETY: valid for one byte.
        unsafe { text.write(0) };
    }
}

/// Makes a handle. The first one of a context takes the memory of kernels' code.
///
/// # Safety
///
/// `handle` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnCreate(handle: *mut *mut c_void) -> c_int {
    if handle.is_null() {
        return NULL_POINTER;
    }
    report::note("cuDNN", "workspaces are by rules that were measured on an H200");
    if !code::load(Code::Cudnn) {
        return ALLOCATION_FAILED;
    }
    // SAFETY: not null, so valid for a write.
    unsafe { put(handle, Box::into_raw(Box::new(Handle { stream: CUstream::NULL })).cast()) }
}

/// Ends a handle.
///
/// # Safety
///
/// `handle` is null or came from [`cudnnCreate`], and is not used afterwards.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnDestroy(handle: *mut c_void) -> c_int {
    if !handle.is_null() {
        // SAFETY: the caller promises a handle that was made by `cudnnCreate`.
        drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
    }
    SUCCESS
}

/// Sets the stream of a handle.
///
/// # Safety
///
/// `handle` is null or live, and not used by another thread.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetStream(handle: *mut c_void, stream: CUstream) -> c_int {
    // SAFETY: the caller promises a handle that is null or live, and no other user of it.
    let Some(handle) = (unsafe { handle.cast::<Handle>().as_mut() }) else { return NULL_POINTER };
    handle.stream = stream;
    SUCCESS
}

/// Writes the stream of a handle.
///
/// # Safety
///
/// `handle` is null or live. `stream` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetStream(handle: *mut c_void, stream: *mut CUstream) -> c_int {
    // SAFETY: the caller promises a handle that is null or live.
    let Some(handle) = (unsafe { handle.cast::<Handle>().as_ref() }) else { return NULL_POINTER };
    // SAFETY: the caller promises a pointer that is null or valid for a write.
    unsafe { put(stream, handle.stream) }
}

/// Writes the bytes of a dropout's generators.
///
/// # Safety
///
/// `bytes` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnDropoutGetStatesSize(_handle: *mut c_void, bytes: *mut usize) -> c_int {
    // SAFETY: the caller promises a pointer that is null or valid for a write.
    unsafe { put(bytes, GENERATORS * multiprocessors()) }
}

/// Returns the number of multiprocessors of the current device; 1 if the driver does not tell.
fn multiprocessors() -> usize {
    let Some(driver) = driver() else { return 1 };
    let (mut device, mut count) = (0, 1);
    // SAFETY: the results are local variables.
    unsafe {
        let _ = driver.cuCtxGetDevice(&mut device);
        let _ = driver.cuDeviceGetAttribute(
            &mut count,
            CUdevice_attribute::MULTIPROCESSOR_COUNT,
            device,
        );
    }
    usize::try_from(count).unwrap_or(1)
}

macro_rules! computes_nothing {
    ($($name:ident)*) => {$(
        /// Takes its place in the handle's stream, and computes nothing.
        ///
        /// # Safety
        ///
        /// `handle` is null or live.
        // SAFETY: the name is cuDNN's, and this library replaces it. Arguments after the first are
        // not read, and the caller's side removes them in every C ABI of Unix.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: *mut c_void) -> c_int {
            // SAFETY: the caller promises a handle that is null or live.
            unsafe { work(handle) }
        }
    )*};
}

computes_nothing!(
    cudnnBackendExecute cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTrainingEx cudnnPoolingForward cudnnRNNBackwardData_v8
    cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward
);
