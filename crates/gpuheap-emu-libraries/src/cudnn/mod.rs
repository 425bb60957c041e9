//! cuDNN: handles, descriptors and sizes. Computes nothing.
//!
//! Parts:
//! * `graph`: the interface of operation graphs.
//! * `convolution`, `plans`, `fourier`: the plans for a convolution, with their workspaces.
//! * `older`: functions that are older than operation graphs.
//! * `tensor`: descriptors of tensors, and descriptors that are never read.
//! * `rnn`: workspace sizes and weight addresses of recurrent networks.
//! * `norm`: workspace sizes of batch normalisation.

mod convolution;
mod fourier;
mod graph;
mod norm;
mod older;
mod plans;
mod rnn;
mod tensor;

use std::ffi::{c_char, c_int, c_void};

use gpuheap_driver::abi::{self, Code};
use gpuheap_driver::{CUdevice_attribute, CUstream, Driver, export};

use crate::device::{self, Loaded, Memory, driver};
use crate::report;

/// Result code of a cuDNN function.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct CudnnCode(c_int);

impl CudnnCode {
    const ALLOCATION_FAILED: Self = Self(4004);
    const BAD_PARAM: Self = Self(2000);
    /// Code that refused functions return (`not_modelled.rs`).
    const NOT_SUPPORTED: Self = Self(3000);
}

impl Code for CudnnCode {
    const SUCCESS: Self = Self(0);
    /// `CUDNN_STATUS_BAD_PARAM_NULL_POINTER`.
    const NULL: Self = Self(2002);
    /// `CUDNN_STATUS_INTERNAL_ERROR`.
    const PANICKED: Self = Self(4000);
}

type Outcome = Result<(), CudnnCode>;
type Out<T> = abi::Out<T, CudnnCode>;
type In<T> = abi::In<T, CudnnCode>;
type Handle<T> = abi::Handle<T, CudnnCode>;

/// Version of cuDNN to return: 9.19.0.
const VERSION: usize = 91_900;

/// Bytes of dropout's random generators on a multiprocessor. Each of 2048 threads has 24 bytes.
const GENERATORS: usize = 24 * 2048;

/// State of a handle that the program created.
struct CudnnSession {
    stream: CUstream,
    _memory: Memory,
}

// Some functions declare fewer arguments than callers pass. The difference is harmless: in every C
// ABI of Unix, the caller cleans up the arguments after the call.
export! {
    fn cudnnGetVersion() -> usize {
        VERSION
    }

    /// Returns the version of the CUDA runtime that cuDNN uses.
    fn cudnnGetCudartVersion() -> usize {
        13_000
    }

    fn cudnnGetErrorString(code: CudnnCode) -> *const c_char {
        let name = match code {
            CudnnCode::SUCCESS => c"CUDNN_STATUS_SUCCESS",
            CudnnCode::ALLOCATION_FAILED => {
                c"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
            }
            CudnnCode::BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
            CudnnCode::NULL => c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER",
            CudnnCode::NOT_SUPPORTED => {
                c"CUDNN_STATUS_NOT_SUPPORTED: not modelled by gpuheap's dry run"
            }
            _ => c"unknown cuDNN status",
        };
        name.as_ptr()
    }

    /// Writes a part of cuDNN's version: the major number, the minor number, or the patch level.
    fn cudnnGetProperty(part: c_int, value: Out<c_int>) -> Outcome {
        let number = match part {
            0 => VERSION / 10_000,
            1 => VERSION / 100 % 100,
            2 => VERSION % 100,
            _ => return Err(CudnnCode::BAD_PARAM),
        };
        value.write(number as c_int)
    }

    /// Writes an empty text, because the emulator describes failures only by codes.
    fn cudnnGetLastErrorString(text: Out<c_char>, bytes: usize) -> () {
        if bytes > 0 {
            let _ = text.write(0);
        }
    }

    /// Creates a handle. The first handle in a context also allocates the memory of the library's
    /// code.
    fn cudnnCreate(handle: Out<Handle<CudnnSession>>) -> Outcome {
        handle.require()?;
        report::add_line("cuDNN", "workspaces are by rules that were measured on an H200");
        let memory = device::take(&[Loaded::Cudnn], Memory::OF_CUDNN);
        let _memory = memory.ok_or(CudnnCode::ALLOCATION_FAILED)?;
        handle.write(Handle::new(CudnnSession { stream: CUstream::NULL, _memory }))
    }

    /// Destroys a handle; ignores null.
    fn cudnnDestroy(handle: Handle<CudnnSession>) -> Outcome {
        let _ = handle.end();
        Ok(())
    }

    fn cudnnSetStream(handle: Handle<CudnnSession>, stream: CUstream) -> Outcome {
        handle.change(|session| session.stream = stream)
    }

    fn cudnnGetStream(handle: Handle<CudnnSession>, stream: Out<CUstream>) -> Outcome {
        stream.write(handle.read(|session| session.stream)?)
    }

    /// Writes the size of dropout's generators, in bytes.
    fn cudnnDropoutGetStatesSize(_handle: *const c_void, bytes: Out<usize>) -> Outcome {
        bytes.write(GENERATORS * multiprocessors())
    }

    /// Enqueues an empty kernel on the handle's stream.
    fn cudnnBatchNormalizationBackwardEx | cudnnBatchNormalizationForwardInference |
        cudnnBatchNormalizationForwardTrainingEx | cudnnCTCLoss | cudnnCTCLoss_v8 |
        cudnnConvolutionBackwardData | cudnnConvolutionBackwardFilter |
        cudnnConvolutionBiasActivationForward | cudnnConvolutionForward |
        cudnnPoolingForward | cudnnRNNBackwardData_v8 | cudnnRNNBackwardWeights_v8 |
        cudnnRNNForward | cudnnSpatialTfGridGeneratorBackward |
        cudnnSpatialTfGridGeneratorForward | cudnnSpatialTfSamplerBackward |
        cudnnSpatialTfSamplerForward(handle: Handle<CudnnSession>) -> Outcome
    {
        device::launch(handle.read(|session| session.stream)?);
        Ok(())
    }
}

/// Returns the number of multiprocessors of the current device; 1 if it is unknown.
fn multiprocessors() -> usize {
    let Some(driver) = driver() else { return 1 };
    let (mut device, mut count) = (0, 1);
    // SAFETY: `device` and `count` are valid for the writes.
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
