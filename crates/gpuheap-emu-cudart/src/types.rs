//! Types that only the runtime has. They are laid out as in `driver_types.h`.
//!
//! The runtime's handles, flags and numbered constants equal the driver's, so this library uses the
//! driver's types for them.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::CUstream;
use gpuheap_driver::abi::PerThread;

/// Size of a grid or a block, in three dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Dim3 {
    pub(crate) x: c_uint,
    pub(crate) y: c_uint,
    pub(crate) z: c_uint,
}

impl Dim3 {
    pub(crate) fn sizes(self) -> [c_uint; 3] {
        [self.x, self.y, self.z]
    }
}

impl PerThread for Dim3 {
    fn per_thread(self) -> Dim3 {
        self
    }
}

/// A launch of a kernel with attributes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: usize,
    pub(crate) stream: CUstream,
    pub(crate) attributes: *mut c_void,
    pub(crate) count: c_uint,
}

/// Kind and addresses of the memory at a pointer. In CUDA 13, 64 zero bytes follow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PointerAttributes {
    pub(crate) kind: c_int,
    pub(crate) device: c_int,
    pub(crate) device_pointer: *mut c_void,
    pub(crate) host_pointer: *mut c_void,
}

/// Properties of a kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct FunctionAttributes {
    pub(crate) shared_bytes: usize,
    pub(crate) constant_bytes: usize,
    pub(crate) local_bytes: usize,
    /// Values of `CUfunction_attribute` 0 and 4 to 13.
    pub(crate) numbers: [c_int; 11],
    pub(crate) cluster_scheduling: c_int,
    pub(crate) non_portable_cluster: c_int,
    pub(crate) reserved: [c_int; 16],
}

/// The compiler's wrapper of a fat binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FatBinary {
    pub(crate) magic: c_int,
    pub(crate) version: c_int,
    pub(crate) data: *const c_void,
    pub(crate) more: *const c_void,
}

// Checks the structures' sizes against `driver_types.h` on 64-bit machines.
const _: () = {
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(size_of::<PointerAttributes>() == 24);
    assert!(size_of::<FunctionAttributes>() == 144);
};
