//! Functions that compiled programs call without knowing it: registration of kernels and variables,
//! the configuration of launches, and those functions whose result is not a code.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpuheap_driver::{CUresult, CUstream};

use crate::call::guarded;
use crate::error;
use crate::kernels::{self, Configuration};
use crate::types::{Dim3, FatBinary};

/// Registers a fat binary and returns its handle, which lives as long as the process.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFatBinary(binary: *const FatBinary) -> *mut usize {
    // SAFETY: the compiler's code passes its own wrapper.
    let data = unsafe { binary.as_ref() }.map_or(std::ptr::null(), |binary| binary.data);
    Box::leak(Box::new(kernels::register_image(data)))
}

/// Ends the registration of a fat binary.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_image: *mut usize) {}

/// Keeps the fat binary: the process is ending, and its other libraries may still launch kernels.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_image: *mut usize) {}

/// Returns that a fat binary is ready.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_image: *mut usize) -> c_char {
    1
}

/// Registers a kernel under the address of the host's function.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFunction(
    image: *const usize,
    host: *const c_void,
    _device: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut c_void,
    _grid_size: *mut c_void,
    _warp_size: *mut c_int,
) {
    // SAFETY: the compiler's code passes a handle of `__cudaRegisterFatBinary`, and the name is a
    // constant of the program.
    unsafe {
        if let Some(image) = image.as_ref() {
            kernels::register_kernel(*image, host, name);
        }
    }
}

/// Registers a variable under the address of the host's one.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    _image: *const usize,
    host: *const c_void,
    _device: *mut c_char,
    _name: *const c_char,
    _is_external: c_int,
    bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    kernels::register_variable(host, bytes);
}

/// Keeps the configuration of the launch that the thread begins.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: CUstream,
) -> c_uint {
    let code = guarded(|| {
        kernels::push_configuration(Configuration { grid, block, shared_bytes, stream });
        Ok(())
    });
    code.0.cast_unsigned()
}

/// Returns the thread's last error and forgets it.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> CUresult {
    error::take_last()
}

/// Returns the thread's last error.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> CUresult {
    error::last()
}

/// Returns the name of a code.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: CUresult) -> *const c_char {
    error::name(code)
}

/// Returns the text of a code.
// SAFETY: the name is the runtime's, and this library replaces it.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: CUresult) -> *const c_char {
    error::text(code)
}
