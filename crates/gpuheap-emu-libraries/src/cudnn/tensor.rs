//! cuDNN's descriptors of tensors, and descriptors of settings that change no size.

use std::ffi::{c_int, c_void};

use gpuheap_driver::export;

use super::convolution::{Shape, Window};
use super::{CudnnCode, Handle, In, Out, Outcome};

/// Maximum number of dimensions of a tensor.
const MOST: usize = 8;

/// Returns the size, in bytes, of an element of cuDNN's type `data_type`.
pub(super) fn element_bytes(data_type: c_int) -> u64 {
    match data_type {
        1 | 10 => 8,
        2 | 9 => 2,
        3 | 6 | 11 | 12 | 13 => 1,
        _ => 4,
    }
}

/// A tensor, or the filter of a convolution.
#[derive(Default)]
pub(super) struct Tensor {
    pub(super) data_type: c_int,
    pub(super) sizes: Vec<c_int>,
    pub(super) strides: Vec<c_int>,
}

impl Tensor {
    pub(super) fn shape(&self) -> Shape {
        let sizes = self.sizes.iter().map(|&size| u64::try_from(size).unwrap_or(0)).collect();
        let strides: Vec<i64> = self.strides.iter().map(|&stride| i64::from(stride)).collect();
        Shape::new(element_bytes(self.data_type), sizes, &strides)
    }

    pub(super) fn elements(&self) -> u64 {
        self.sizes.iter().map(|&size| u64::try_from(size).unwrap_or(0)).product()
    }
}

/// Values that a layer drops in training.
#[derive(Default)]
pub(super) struct Dropout {
    /// Share of the values that is dropped.
    pub(super) rate: f32,
}

/// Exports functions that create and destroy descriptors. A row has the Rust type of the
/// descriptor, and the names of both functions.
macro_rules! descriptors {
    ($($kind:ty: $create:ident, $destroy:ident;)*) => {
        gpuheap_driver::export! {$(
            /// Creates a descriptor.
            fn $create(made: $crate::cudnn::Out<$crate::cudnn::Handle<$kind>>)
                -> $crate::cudnn::Outcome
            {
                made.require()?;
                made.write($crate::cudnn::Handle::new(<$kind>::default()))
            }

            /// Destroys a descriptor; ignores null.
            fn $destroy(descriptor: $crate::cudnn::Handle<$kind>) -> $crate::cudnn::Outcome {
                let _ = descriptor.end();
                Ok(())
            }
        )*}
    };
}
pub(super) use descriptors;

descriptors! {
    Tensor: cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor;
    Tensor: cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor;
    u64: cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor;
    Window: cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor;
    u64: cudnnCreateCTCLossDescriptor, cudnnDestroyCTCLossDescriptor;
    Dropout: cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor;
    u64: cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor;
    u64: cudnnCreateSpatialTransformerDescriptor, cudnnDestroySpatialTransformerDescriptor;
}

export! {
    /// Does nothing, because the setting changes no size. Declares no arguments, although callers
    /// pass some. In every C ABI of Unix, the caller removes its arguments after the call.
    fn cudnnSetActivationDescriptor |
        cudnnSetCTCLossDescriptorEx | cudnnSetCTCLossDescriptor_v9 |
        cudnnSetConvolutionGroupCount | cudnnSetConvolutionMathType |
        cudnnSetPooling2dDescriptor | cudnnSetSpatialTransformerNdDescriptor() -> Outcome
    {
        Ok(())
    }

    /// Sets the share of values to drop.
    fn cudnnRestoreDropoutDescriptor | cudnnSetDropoutDescriptor(
        dropout: Handle<Dropout>, _handle: *const c_void, rate: f32,
    ) -> Outcome {
        dropout.change(|dropout| dropout.rate = rate)
    }

    /// Sets the type, sizes and strides of a tensor with `dimensions` dimensions.
    fn cudnnSetTensorNdDescriptor(
        tensor: Handle<Tensor>, data_type: c_int, dimensions: c_int, sizes: In<c_int>,
        strides: In<c_int>,
    ) -> Outcome {
        describe(tensor, data_type, dimensions, sizes, strides)
    }

    fn cudnnSetFilterNdDescriptor(
        filter: Handle<Tensor>, data_type: c_int, _format: c_int, dimensions: c_int,
        sizes: In<c_int>,
    ) -> Outcome {
        describe(filter, data_type, dimensions, sizes, sizes)
    }

    /// Writes the description of a tensor, with at most `wanted` dimensions.
    fn cudnnGetTensorNdDescriptor(
        tensor: Handle<Tensor>, wanted: c_int, data_type: Out<c_int>, dimensions: Out<c_int>,
        sizes: Out<c_int>, strides: Out<c_int>,
    ) -> Outcome {
        tensor.read(|tensor| {
            write_most(&tensor.strides, strides, wanted)?;
            write_description(tensor, wanted, data_type, dimensions, sizes)
        })?
    }

    fn cudnnGetFilterNdDescriptor(
        filter: Handle<Tensor>, wanted: c_int, data_type: Out<c_int>, format: Out<c_int>,
        dimensions: Out<c_int>, sizes: Out<c_int>,
    ) -> Outcome {
        filter.read(|filter| {
            format.write_if_wanted(0)?;
            write_description(filter, wanted, data_type, dimensions, sizes)
        })?
    }
}

fn describe(
    tensor: Handle<Tensor>,
    data_type: c_int,
    dimensions: c_int,
    sizes: In<c_int>,
    strides: In<c_int>,
) -> Outcome {
    let count @ 1..=MOST = usize::try_from(dimensions).unwrap_or(0) else {
        return Err(CudnnCode::BAD_PARAM);
    };
    let (sizes, strides) = (sizes.get_all(count)?, strides.get_all(count)?);
    tensor.change(|tensor| *tensor = Tensor { data_type, sizes, strides })
}

fn write_description(
    tensor: &Tensor,
    wanted: c_int,
    data_type: Out<c_int>,
    dimensions: Out<c_int>,
    sizes: Out<c_int>,
) -> Outcome {
    write_most(&tensor.sizes, sizes, wanted)?;
    data_type.write_if_wanted(tensor.data_type)?;
    dimensions.write(c_int::try_from(tensor.sizes.len()).unwrap_or(0))
}

/// Writes at most `wanted` elements, unless the array is null.
fn write_most(from: &[c_int], to: Out<c_int>, wanted: c_int) -> Outcome {
    let most = usize::try_from(wanted).unwrap_or(0);
    if to.is_null() { Ok(()) } else { to.write_all(from.iter().copied().take(most)) }
}
