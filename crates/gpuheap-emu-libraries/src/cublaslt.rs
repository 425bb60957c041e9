//! cuBLASLt: descriptions of products, and a heuristic with one answer.

use std::ffi::{c_int, c_void};

use gpuheap_driver::CUstream;

use crate::kernel;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 7;

/// Version that the library tells: the oldest of CUDA 13.
const VERSION: usize = 130_000;

/// Object that all descriptions stand for. They are never read.
static DESCRIPTION: u64 = 0;

/// Answer of the heuristic, as `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct Answer {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Returns the version.
// SAFETY: the name is cuBLASLt's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}

macro_rules! creates {
    ($($name:ident)*) => {$(
        /// Makes a description.
        ///
        /// # Safety
        ///
        /// `made` is null or valid for a write.
        // SAFETY: the name is cuBLASLt's, and this library replaces it. Arguments after the first
        // are not read, and the caller's side removes them in every C ABI of Unix.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(made: *mut *const c_void) -> c_int {
            if made.is_null() {
                return INVALID_VALUE;
            }
            // SAFETY: not null, so valid for a write.
            unsafe { made.write((&raw const DESCRIPTION).cast()) };
            SUCCESS
        }
    )*};
}

creates!(
    cublasLtCreate cublasLtMatmulDescCreate cublasLtMatmulPreferenceCreate
    cublasLtMatrixLayoutCreate cublasLtMatrixTransformDescCreate
);

/// Takes its place in the stream, and computes nothing.
// SAFETY: the name is cuBLASLt's, and this library replaces it. Nothing that a pointer leads to is
// read.
#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmul(
    _handle: *mut c_void,
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
    _workspace: *mut c_void,
    _workspace_bytes: usize,
    stream: CUstream,
) -> c_int {
    kernel::launch(stream);
    SUCCESS
}

/// Answers with one algorithm that needs no workspace.
///
/// # Safety
///
/// `answers` is valid for one write if `wanted` is positive. `count` is null or valid for a write.
// SAFETY: the name is cuBLASLt's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: *mut c_void,
    _operation: *const c_void,
    _a: *const c_void,
    _b: *const c_void,
    _c: *const c_void,
    _d: *const c_void,
    _preference: *const c_void,
    wanted: c_int,
    answers: *mut c_void,
    count: *mut c_int,
) -> c_int {
    if wanted < 1 || answers.is_null() || count.is_null() {
        return INVALID_VALUE;
    }
    let answer = Answer {
        algorithm: [0; 8],
        workspace_bytes: 0,
        state: SUCCESS,
        waves: 1.0,
        reserved: [0; 4],
    };
    // SAFETY: neither is null, so both are valid for a write.
    unsafe {
        answers.cast::<Answer>().write(answer);
        count.write(1);
    }
    SUCCESS
}
