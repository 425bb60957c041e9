//! Batch normalisation: the space that it asks for.

use std::ffi::{c_int, c_void};

use super::tensor::{Tensor, element_bytes};
use super::{BAD_PARAM, put};

/// Mode of tensors whose channels lie side by side, where cuDNN runs one kernel that stays
/// resident.
const SPATIAL_PERSISTENT: c_int = 2;

/// Writes the workspace of the forward pass, bytes.
///
/// Where channels lie side by side, an eighth of a byte an element, and for types of 2 bytes a
/// twentieth; else none: within 5 % of an H200 above 1 MiB (cuDNN 9.19).
///
/// # Safety
///
/// `x` is null or live. `bytes` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it. Arguments that are not named are not
// read.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: *mut c_void,
    mode: c_int,
    _operation: c_int,
    x: *const c_void,
    _z: *const c_void,
    _y: *const c_void,
    _scale: *const c_void,
    _activation: *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller promises the pointers.
    unsafe { write(mode, x, bytes, |x| if element_bytes(x.data_type) == 2 { 20 } else { 8 }) }
}

/// Writes the workspace of the backward pass, bytes.
///
/// Where channels lie side by side, a twelfth of a byte an element; else none: within 5 % of an
/// H200 (cuDNN 9.19).
///
/// # Safety
///
/// `x` is null or live. `bytes` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it. Arguments that are not named are not
// read.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: *mut c_void,
    mode: c_int,
    _operation: c_int,
    x: *const c_void,
    _y: *const c_void,
    _dy: *const c_void,
    _dz: *const c_void,
    _dx: *const c_void,
    _scale: *const c_void,
    _activation: *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller promises the pointers.
    unsafe { write(mode, x, bytes, |_| 12) }
}

/// Writes the bytes that stay between the passes: none without an activation.
///
/// # Safety
///
/// `bytes` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it. Arguments that are not named are not
// read.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: *mut c_void,
    _mode: c_int,
    _operation: c_int,
    _activation: *const c_void,
    _x: *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller promises the pointer.
    unsafe { put(bytes, 0) }
}

/// # Safety
///
/// `x` is null or live. `bytes` is null or valid for a write.
unsafe fn write(
    mode: c_int,
    x: *const c_void,
    bytes: *mut usize,
    elements_a_byte: impl Fn(&Tensor) -> u64,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(x) = (unsafe { x.cast::<Tensor>().as_ref() }) else { return BAD_PARAM };
    let wanted = if mode == SPATIAL_PERSISTENT { x.elements() / elements_a_byte(x) } else { 0 };
    // SAFETY: the caller promises the pointer.
    unsafe { put(bytes, wanted as usize) }
}
