//! Function with which PyTorch's allocators report each block to PyTorch's profiler. Preloaded
//! libraries replace the function.

use std::ffi::{CStr, c_void};

/// Symbol of the function:
/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`. The second
/// argument, bytes, is negative if the block is freed. If a version of PyTorch changes the
/// arguments, the symbol changes too.
pub const REPORT: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";

/// Library of PyTorch that has the function.
pub const C10: &CStr = c"libc10.so";

/// Type of the function.
pub type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, Device);

/// `c10::Device`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Device {
    /// `c10::DeviceType`; [`CUDA`] for CUDA's devices.
    pub kind: i8,
    /// Ordinal; -1 for the current device.
    pub index: i8,
}

/// `c10::DeviceType::CUDA`.
pub const CUDA: i8 = 1;
