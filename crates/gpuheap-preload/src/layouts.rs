//! Argument types of `cuda.h` that the crate gpuheap-driver lacks.

use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::{CUdeviceptr, CUmemorytype};

/// Handle for memory of another process. C passes it by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle([u8; 64]);

/// Parameters of a graph's node that allocates. The layout is `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GraphAllocation {
    pool: [u64; 11],
    access: usize,
    access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) pointer: CUdeviceptr,
}

/// Shape of an array, in the layout of `CUDA_ARRAY_DESCRIPTOR` in `cuda.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescription {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_int,
    pub(crate) channels: c_uint,
}

/// Shape of an array, in the layout of `CUDA_ARRAY3D_DESCRIPTOR` in `cuda.h`.
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

/// Source or destination of a copied volume, in the layout of one half of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct VolumeEnd {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    level: usize,
    pub(crate) kind: CUmemorytype,
    pub(crate) host: *mut c_void,
    pub(crate) device: CUdeviceptr,
    array: *mut c_void,
    /// Context of the memory in `CUDA_MEMCPY3D_PEER`, else unused.
    context: *mut c_void,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// Copy of a volume, in the layout that `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER` share.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Volume {
    pub(crate) from: VolumeEnd,
    pub(crate) to: VolumeEnd,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}
