//! cuBLASLt: descriptions of matrix products, and a heuristic that always returns one algorithm.

use std::ffi::{c_int, c_void};

use gpuheap_driver::{CUstream, export};

use crate::cublas::{CublasCode, Out, Outcome, VERSION};
use crate::{device, workspaces};

/// Object to which the handles of all descriptions point. It is never read.
static DESCRIPTION: u64 = 0;

/// Result of the heuristic: `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

// Some functions declare fewer arguments than callers pass. That works because in every C ABI of
// Unix, the caller removes the arguments.
export! {
    /// Returns the version of the library.
    fn cublasLtGetVersion() -> usize {
        VERSION
    }

    /// Creates a description.
    fn cublasLtCreate | cublasLtMatmulDescCreate | cublasLtMatmulPreferenceCreate |
        cublasLtMatrixLayoutCreate | cublasLtMatrixTransformDescCreate
        (made: Out<*const c_void>) -> Outcome
    {
        made.write((&raw const DESCRIPTION).cast())
    }

    /// Enqueues an empty kernel on the stream.
    fn cublasLtMatmul(
        _handle: *const c_void,
        _operation: *const c_void,
        _alpha: *const c_void,
        _a: *const c_void,
        _a_layout: *const c_void,
        _b: *const c_void,
        _b_layout: *const c_void,
        _beta: *const c_void,
        _c: *const c_void,
        _c_layout: *const c_void,
        _d: *mut c_void,
        _d_layout: *const c_void,
        _algorithm: *const c_void,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: CUstream,
    ) -> Outcome {
        workspaces::note_address(workspace);
        workspaces::note_size(workspace_bytes as u64);
        device::launch(stream);
        Ok(())
    }

    /// Writes one algorithm that needs no workspace.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: *const c_void,
        _operation: *const c_void,
        _a: *const c_void,
        _b: *const c_void,
        _c: *const c_void,
        _d: *const c_void,
        _preference: *const c_void,
        wanted: c_int,
        found: Out<Heuristic>,
        count: Out<c_int>,
    ) -> Outcome {
        if wanted < 1 {
            return Err(CublasCode::INVALID_VALUE);
        }
        count.require()?;
        found.write(Heuristic {
            algorithm: [0; 8],
            workspace_bytes: 0,
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        })?;
        count.write(1)
    }
}
