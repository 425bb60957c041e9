//! A launch that stands for a library's kernels, so that a captured graph has its node.

use std::sync::OnceLock;

use gpuheap_driver::{CUfunction, CUkernel, CUlibrary, CUstream, Driver};

use crate::driver::driver;

/// Text of a kernel without an instruction.
const PTX: &[u8] = b".version 8.0\n.target sm_50\n.address_size 64\n\
                     .visible .entry gpuheap_stands_for_a_library() { ret; }\n\0";

/// Puts a launch into `stream`. Whether it could be is not told: a stream that fails tells it to
/// the program's own next call.
pub(crate) fn launch(stream: CUstream) {
    static KERNEL: OnceLock<Option<CUfunction>> = OnceLock::new();
    let (Some(driver), Some(kernel)) = (driver(), *KERNEL.get_or_init(load)) else { return };
    let none = std::ptr::null_mut();
    // SAFETY: the kernel has no parameters, and the driver checks the stream.
    let _ = unsafe { driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, none, none) };
}

fn load() -> Option<CUfunction> {
    let driver = driver()?;
    let none = std::ptr::null_mut();
    let mut library = CUlibrary::NULL;
    let image = PTX.as_ptr().cast();
    let pointers = std::ptr::null_mut();
    // SAFETY: the text ends with a null byte; there are no options.
    let loaded = unsafe {
        driver.cuLibraryLoadData(&mut library, image, none, pointers, 0, none, pointers, 0)
    };
    let mut kernel = CUkernel::NULL;
    let name = c"gpuheap_stands_for_a_library";
    // SAFETY: the result is a local variable, and the library was loaded.
    let found = loaded.is_success()
        && unsafe { driver.cuLibraryGetKernel(&mut kernel, library, name.as_ptr()) }.is_success();
    // The driver takes a kernel where it takes a function.
    found.then_some(CUfunction(kernel.0))
}
