//! Functions that compiled programs call without naming them: registration of kernels and
//! variables, and the configuration of launches. Also functions that return no outcome.

use std::ffi::{c_char, c_int, c_void};

use gpuheap_driver::{CUresult, CUstream, export};

use crate::call::guarded;
use crate::error;
use crate::error::In;
use crate::kernels::{self, Configuration};
use crate::types::{Dim3, FatBinary};

export! {
    /// Registers a fat binary and returns its handle. Both live as long as the process.
    fn __cudaRegisterFatBinary(binary: In<FatBinary>) -> *mut usize {
        let data = binary.get().map_or(std::ptr::null(), |binary| binary.data);
        Box::leak(Box::new(kernels::register_image(data)))
    }

    /// Ends the registration of a fat binary, or at the process's end its use. The fat binary
    /// stays: the process's other libraries may still launch kernels.
    fn __cudaRegisterFatBinaryEnd | __cudaUnregisterFatBinary(_image: In<usize>) -> () {}

    /// Returns that a fat binary is ready.
    fn __cudaInitModule(_image: In<usize>) -> c_char {
        1
    }

    /// Registers a kernel under the address of the host's function.
    fn __cudaRegisterFunction(
        image: In<usize>,
        host: In<c_void>,
        _device: *mut c_char,
        name: *const c_char,
        _thread_limit: c_int,
        _thread: *mut c_void,
        _block: *mut c_void,
        _block_size: *mut c_void,
        _grid_size: *mut c_void,
        _warp_size: *mut c_int,
    ) -> () {
        if let Ok(image) = image.get() {
            kernels::register_kernel(image, host, name);
        }
    }

    /// Registers a variable under the address of the host's one.
    fn __cudaRegisterVar(
        _image: In<usize>,
        host: In<c_void>,
        _device: *mut c_char,
        _name: *const c_char,
        _is_external: c_int,
        bytes: usize,
        _is_constant: c_int,
        _is_global: c_int,
    ) -> () {
        kernels::register_variable(host, bytes);
    }

    /// Keeps the configuration of the launch that the thread begins.
    fn __cudaPushCallConfiguration(
        grid: Dim3,
        block: Dim3,
        shared_bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        guarded(|| {
            kernels::push_configuration(Configuration { grid, block, shared_bytes, stream });
            Ok(())
        })
    }

    /// Returns the thread's last error and forgets it.
    fn cudaGetLastError() -> CUresult {
        error::take_last()
    }

    /// Returns the thread's last error.
    fn cudaPeekAtLastError() -> CUresult {
        error::last()
    }

    /// Returns the name of a code.
    fn cudaGetErrorName(code: CUresult) -> *const c_char {
        error::name(code)
    }

    /// Returns the text of a code.
    fn cudaGetErrorString(code: CUresult) -> *const c_char {
        error::text(code)
    }
}
