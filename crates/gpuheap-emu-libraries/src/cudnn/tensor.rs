//! Descriptors of tensors, and those that nothing is read from.

use std::ffi::{c_int, c_void};

use super::{BAD_PARAM, SUCCESS, put};

/// Most dimensions of a tensor.
const MOST: usize = 8;

/// Returns the size of an element, bytes, by cuDNN's number of the type.
pub(super) fn element_bytes(data_type: c_int) -> u64 {
    match data_type {
        1 | 10 => 8,
        2 | 9 => 2,
        3 | 6 | 11 | 12 | 13 => 1,
        _ => 4,
    }
}

/// Tensor, or the filter of a convolution.
#[derive(Default)]
pub(super) struct Tensor {
    pub(super) data_type: c_int,
    pub(super) sizes: Vec<c_int>,
    pub(super) strides: Vec<c_int>,
}

impl Tensor {
    /// Number of elements.
    pub(super) fn elements(&self) -> u64 {
        self.sizes.iter().map(|&size| u64::try_from(size).unwrap_or(0)).product()
    }
}

/// Makes functions that create and end a descriptor: a Rust type, and two names.
macro_rules! descriptors {
    ($($kind:ty: $create:ident, $destroy:ident;)*) => {$(
        /// Makes a descriptor.
        ///
        /// # Safety
        ///
        /// `made` is null or valid for a write.
        // SAFETY: the name is cuDNN's, and this library replaces it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $create(made: *mut *mut c_void) -> c_int {
            if made.is_null() {
                return $crate::cudnn::NULL_POINTER;
            }
            let descriptor = Box::into_raw(Box::<$kind>::default());
            // SAFETY: not null, so valid for a write.
            unsafe { $crate::cudnn::put(made, descriptor.cast()) }
        }

        /// Ends a descriptor.
        ///
        /// # Safety
        ///
        /// `descriptor` is null or was made by the function beside, and is not used afterwards.
        // SAFETY: the name is cuDNN's, and this library replaces it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $destroy(descriptor: *mut c_void) -> c_int {
            if !descriptor.is_null() {
                // SAFETY: the caller promises a descriptor of this kind.
                drop(unsafe { Box::from_raw(descriptor.cast::<$kind>()) });
            }
            $crate::cudnn::SUCCESS
        }
    )*};
}
pub(super) use descriptors;

descriptors! {
    Tensor: cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor;
    Tensor: cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor;
    u64: cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor;
    u64: cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor;
    u64: cudnnCreateCTCLossDescriptor, cudnnDestroyCTCLossDescriptor;
    u64: cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor;
    u64: cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor;
    u64: cudnnCreateSpatialTransformerDescriptor, cudnnDestroySpatialTransformerDescriptor;
}

macro_rules! not_read {
    ($($name:ident)*) => {$(
        /// Succeeds: the setting is not read.
        // SAFETY: the name is cuDNN's, and this library replaces it. The function reads none of the
        // caller's arguments, which the caller's side removes in every C ABI of Unix.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            SUCCESS
        }
    )*};
}

not_read!(
    cudnnRestoreDropoutDescriptor cudnnSetActivationDescriptor cudnnSetCTCLossDescriptorEx
    cudnnSetCTCLossDescriptor_v9 cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType
    cudnnSetConvolutionNdDescriptor cudnnSetDropoutDescriptor cudnnSetPooling2dDescriptor
    cudnnSetSpatialTransformerNdDescriptor
);

/// Describes a tensor.
///
/// # Safety
///
/// `tensor` is null or live, and not used by another thread. `sizes` and `strides` are valid for
/// `dimensions` reads.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    tensor: *mut c_void,
    data_type: c_int,
    dimensions: c_int,
    sizes: *const c_int,
    strides: *const c_int,
) -> c_int {
    // SAFETY: the caller promises the descriptor and the arrays.
    unsafe { describe(tensor, data_type, dimensions, sizes, strides) }
}

/// Describes a filter.
///
/// # Safety
///
/// As for [`cudnnSetTensorNdDescriptor`].
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetFilterNdDescriptor(
    filter: *mut c_void,
    data_type: c_int,
    _format: c_int,
    dimensions: c_int,
    sizes: *const c_int,
) -> c_int {
    // SAFETY: the caller promises the descriptor and the array.
    unsafe { describe(filter, data_type, dimensions, sizes, sizes) }
}

/// # Safety
///
/// As for [`cudnnSetTensorNdDescriptor`].
unsafe fn describe(
    tensor: *mut c_void,
    data_type: c_int,
    dimensions: c_int,
    sizes: *const c_int,
    strides: *const c_int,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live, and no other user of it.
    let tensor = unsafe { tensor.cast::<Tensor>().as_mut() };
    let count = usize::try_from(dimensions).unwrap_or(0);
    let (Some(tensor), 1..=MOST, false, false) =
        (tensor, count, sizes.is_null(), strides.is_null())
    else {
        return BAD_PARAM;
    };
    tensor.data_type = data_type;
    // SAFETY: neither is null, so both are valid for `count` reads.
    unsafe {
        tensor.sizes = std::slice::from_raw_parts(sizes, count).to_vec();
        tensor.strides = std::slice::from_raw_parts(strides, count).to_vec();
    }
    SUCCESS
}

/// Writes the description of a tensor: as many dimensions as there are, at most `wanted`.
///
/// # Safety
///
/// `tensor` is null or live. The other pointers are null or valid for writes, the arrays for
/// `wanted` of them.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetTensorNdDescriptor(
    tensor: *const c_void,
    wanted: c_int,
    data_type: *mut c_int,
    dimensions: *mut c_int,
    sizes: *mut c_int,
    strides: *mut c_int,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(tensor) = (unsafe { tensor.cast::<Tensor>().as_ref() }) else { return BAD_PARAM };
    let wanted = usize::try_from(wanted).unwrap_or(0);
    // SAFETY: the caller promises the arrays.
    unsafe {
        copy(&tensor.sizes, sizes, wanted);
        copy(&tensor.strides, strides, wanted);
        tell(tensor, data_type, dimensions)
    }
}

/// Writes the description of a filter: as many dimensions as there are, at most `wanted`.
///
/// # Safety
///
/// As for [`cudnnGetTensorNdDescriptor`].
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetFilterNdDescriptor(
    filter: *const c_void,
    wanted: c_int,
    data_type: *mut c_int,
    format: *mut c_int,
    dimensions: *mut c_int,
    sizes: *mut c_int,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(filter) = (unsafe { filter.cast::<Tensor>().as_ref() }) else { return BAD_PARAM };
    // SAFETY: the caller promises the array and the places.
    unsafe {
        copy(&filter.sizes, sizes, usize::try_from(wanted).unwrap_or(0));
        put(format, 0);
        tell(filter, data_type, dimensions)
    }
}

/// # Safety
///
/// Both pointers are null or valid for a write.
unsafe fn tell(tensor: &Tensor, data_type: *mut c_int, dimensions: *mut c_int) -> c_int {
    let count = c_int::try_from(tensor.sizes.len()).unwrap_or(0);
    // SAFETY: the caller promises both.
    unsafe {
        put(data_type, tensor.data_type);
        put(dimensions, count)
    }
}

/// # Safety
///
/// `to` is null or valid for `most` writes.
unsafe fn copy(from: &[c_int], to: *mut c_int, most: usize) {
    if !to.is_null() {
        let count = from.len().min(most);
        // SAFETY: valid for `most` writes, and `from` is a slice of its own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, count) };
    }
}
