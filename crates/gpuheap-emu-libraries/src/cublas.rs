//! cuBLAS: handles and their modes. All other functions succeed and compute nothing.

use std::ffi::{c_int, c_void};

use gpuheap_driver::abi::{self, Code, In};
use gpuheap_driver::{CUstream, export};

use crate::device::{self, Loaded, Memory};
use crate::workspaces;

/// Version that cuBLAS and cuBLASLt report. It is the oldest version in CUDA 13.
pub(crate) const VERSION: usize = 130_000;

/// Result code of a function of cuBLAS or cuBLASLt.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct CublasCode(c_int);

impl CublasCode {
    const ALLOC_FAILED: Self = Self(3);
    pub(crate) const INVALID_VALUE: Self = Self(7);
}

impl Code for CublasCode {
    const SUCCESS: Self = Self(0);
    const NULL: Self = Self::INVALID_VALUE;
    /// `CUBLAS_STATUS_NOT_INITIALIZED`.
    const NO_OBJECT: Self = Self(1);
    /// `CUBLAS_STATUS_INTERNAL_ERROR`.
    const PANICKED: Self = Self(14);
}

pub(crate) type Outcome = Result<(), CublasCode>;
pub(crate) type Out<T> = abi::Out<T, CublasCode>;
type Handle = abi::Handle<CublasSession, CublasCode>;

/// State of a handle that the program created.
struct CublasSession {
    pointer_mode: c_int,
    math_mode: c_int,
    stream: CUstream,
    _memory: Memory,
}

export! {
    /// Creates a handle. The first handle in a context also allocates the memory of the library's
    /// code.
    fn cublasCreate_v2(handle: Out<Handle>) -> Outcome {
        handle.require()?;
        let memory = device::take(&[Loaded::Cublas], Memory::OF_CUBLAS);
        let _memory = memory.ok_or(CublasCode::ALLOC_FAILED)?;
        let (pointer_mode, math_mode, stream) = (0, 0, CUstream::NULL);
        handle.write(Handle::new(CublasSession { pointer_mode, math_mode, stream, _memory }))
    }

    fn cublasGetVersion_v2(_handle: Handle, version: Out<c_int>) -> Outcome {
        version.write(VERSION as c_int)
    }

    fn cublasDestroy_v2(handle: Handle) -> Outcome {
        handle.end()
    }

    /// Records the workspace for `gpuheap dry-run`. The emulated cuBLAS computes nothing in it.
    fn cublasSetWorkspace_v2(_handle: Handle, workspace: *const c_void, bytes: usize) -> Outcome {
        workspaces::note_address(workspace);
        workspaces::note_size(bytes as u64);
        Ok(())
    }

    /// Writes the status 0 to host memory, because callers check it. The status says that the
    /// arguments were valid. Computes nothing.
    fn cublasCgeqrfBatched | cublasDgeqrfBatched | cublasSgeqrfBatched | cublasZgeqrfBatched(
        handle: Handle, _rows: c_int, _columns: c_int, _matrices: In<c_void, CublasCode>,
        _leading: c_int, _factors: In<c_void, CublasCode>, info: Out<c_int>, _count: c_int,
    ) -> Outcome {
        handle.read(|_| ())?;
        info.write(0)?;
        launch(handle)
    }
}

macro_rules! property {
    ($field:ident: $type:ty, $get:ident, $set:ident) => {
        export! {
            /// Writes the property of a handle.
            fn $get(handle: Handle, value: Out<$type>) -> Outcome {
                value.write(handle.read(|session| session.$field)?)
            }

            /// Sets the property of a handle.
            fn $set(handle: Handle, value: $type) -> Outcome {
                handle.change(|session| session.$field = value)
            }
        }
    };
}

property!(pointer_mode: c_int, cublasGetPointerMode_v2, cublasSetPointerMode_v2);
property!(math_mode: c_int, cublasGetMathMode, cublasSetMathMode);
property!(stream: CUstream, cublasGetStream_v2, cublasSetStream_v2);

// The functions declare fewer arguments than callers pass. The difference is harmless: in every C
// ABI of Unix, the caller cleans up the arguments after the call.
macro_rules! computes_nothing {
    ($library:literal, $code:literal, [$($name:ident)*]) => {
        export! {$(
            /// Enqueues an empty kernel on the handle's stream.
            fn $name(handle: Handle) -> Outcome {
                launch(handle)
            }
        )*}
    };
}

macro_rules! does_nothing {
    ($library:literal, $code:literal, [$($name:ident)*]) => {
        export! {$(
            /// Succeeds, and does nothing.
            fn $name() -> Outcome {
                Ok(())
            }
        )*}
    };
}

cublas_functions!(computes_nothing, does_nothing);

fn launch(handle: Handle) -> Outcome {
    device::launch(handle.read(|session| session.stream)?);
    Ok(())
}
