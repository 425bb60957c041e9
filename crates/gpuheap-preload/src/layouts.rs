//! Arguments that `cuda.h` defines and crate gpuheap-driver does not.

use std::ffi::{c_int, c_uint};

use gpuheap_driver::CUdeviceptr;

/// Handle for memory of another process. C passes it by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle([u8; 64]);

/// Parameters of a graph's node that allocates, as `CUDA_MEM_ALLOC_NODE_PARAMS` of `cuda.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GraphAllocation {
    pool: [u64; 11],
    access: usize,
    access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) pointer: CUdeviceptr,
}

/// Shape of an array, as `CUDA_ARRAY_DESCRIPTOR` of `cuda.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_int,
    pub(crate) channels: c_uint,
}

/// Shape of an array, as `CUDA_ARRAY3D_DESCRIPTOR` of `cuda.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Array3DDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_int,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}
