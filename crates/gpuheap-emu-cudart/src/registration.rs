//! Functions that compiled programs call to register kernels and variables and to configure
//! launches. Also contains the functions that return no result code.

use std::ffi::{c_char, c_int, c_void};

use gpuheap_driver::{CUresult, CUstream, export};

use crate::call::guarded;
use crate::error;
use crate::error::In;
use crate::kernels::{self, Configuration};
use crate::types::{Dim3, FatBinary};

export! {
    /// Registers a fat binary and returns its handle. The binary and the handle stay valid until
    /// the process ends.
    fn __cudaRegisterFatBinary(binary: In<FatBinary>) -> *mut usize {
        let data = binary.get().map_or(std::ptr::null(), |binary| binary.data);
        Box::leak(Box::new(kernels::register_image(data)))
    }

    /// Does nothing. Compiled programs call these functions after they register a fat binary, and
    /// when they exit. The fat binary stays registered, because other libraries may still launch
    /// kernels.
    fn __cudaRegisterFatBinaryEnd | __cudaUnregisterFatBinary(_image: In<usize>) -> () {}

    /// Returns 1: the fat binary is ready.
    fn __cudaInitModule(_image: In<usize>) -> c_char {
        1
    }

    /// Registers a kernel under the address of its host function.
    fn __cudaRegisterFunction(
        image: In<usize>, host: In<c_void>, _device: *mut c_char, name: *const c_char,
        _thread_limit: c_int, _thread: *mut c_void, _block: *mut c_void, _block_size: *mut c_void,
        _grid_size: *mut c_void, _warp_size: *mut c_int,
    ) -> () {
        if let Ok(image) = image.get() {
            kernels::register_kernel(image, host, name);
        }
    }

    /// Registers a device variable under the address of its host variable.
    fn __cudaRegisterVar(
        _image: In<usize>, host: In<c_void>, _device: *mut c_char, _name: *const c_char,
        _is_external: c_int, bytes: usize, _is_constant: c_int, _is_global: c_int,
    ) -> () {
        kernels::register_variable(host, bytes);
    }

    /// Pushes the configuration of the calling thread's next launch.
    fn __cudaPushCallConfiguration(
        grid: Dim3, block: Dim3, shared_bytes: usize, stream: CUstream,
    ) -> CUresult {
        guarded(|| {
            kernels::push_configuration(Configuration { grid, block, shared_bytes, stream });
            Ok(())
        })
    }

    /// Returns the thread's last error and clears it.
    fn cudaGetLastError() -> CUresult {
        error::take_last()
    }

    /// Returns the thread's last error.
    fn cudaPeekAtLastError() -> CUresult {
        error::last()
    }

    fn cudaGetErrorName(code: CUresult) -> *const c_char {
        error::name(code)
    }

    fn cudaGetErrorString(code: CUresult) -> *const c_char {
        error::text(code)
    }
}
