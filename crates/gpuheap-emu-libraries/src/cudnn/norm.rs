//! Batch normalisation: sizes of workspaces and reserved memory.

use std::ffi::{c_int, c_void};

use gpuheap_driver::export;

use super::tensor::{Tensor, element_bytes};
use super::{Handle, Out, Outcome};

/// Mode with one persistent kernel, for tensors with adjacent channels.
const SPATIAL_PERSISTENT: c_int = 2;

// Arguments whose names begin with `_` are not read.
export! {
    /// Writes the workspace of the forward pass, in bytes.
    ///
    /// If channels are adjacent, the workspace has 1/8 byte per element, or 1/20 byte for 2-byte
    /// types. Otherwise it is 0. Above 1 MiB, the sizes are within 5 % of an H200's (cuDNN 9.19).
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: *const c_void, mode: c_int, _operation: c_int, x: Handle<Tensor>,
        _z: *const c_void, _y: *const c_void, _scale: *const c_void, _activation: *const c_void,
        bytes: Out<usize>,
    ) -> Outcome {
        write(mode, x, bytes, |x| if element_bytes(x.data_type) == 2 { 20 } else { 8 })
    }

    /// Writes the workspace of the backward pass, in bytes.
    ///
    /// If channels are adjacent, the workspace has 1/12 byte per element. Otherwise it is 0. The
    /// sizes are within 5 % of an H200's (cuDNN 9.19).
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: *const c_void, mode: c_int, _operation: c_int, x: Handle<Tensor>,
        _y: *const c_void, _dy: *const c_void, _dz: *const c_void, _dx: *const c_void,
        _scale: *const c_void, _activation: *const c_void, bytes: Out<usize>,
    ) -> Outcome {
        write(mode, x, bytes, |_| 12)
    }

    /// Writes 0 as the size of the memory kept between the passes, because activations are not
    /// modelled.
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: *const c_void, _mode: c_int, _operation: c_int, _activation: *const c_void,
        _x: *const c_void, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(0)
    }
}

fn write(
    mode: c_int,
    x: Handle<Tensor>,
    bytes: Out<usize>,
    elements_a_byte: impl Fn(&Tensor) -> u64,
) -> Outcome {
    let wanted = x.read(|x| x.elements() / elements_a_byte(x))?;
    bytes.write(if mode == SPATIAL_PERSISTENT { wanted as usize } else { 0 })
}
