//! PyTorch's report of its blocks. Its allocator reuses memory without the driver, and the emulated
//! driver has to know that a block is a new one.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

/// Function by which PyTorch's allocators report each block to its profiler:
/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`. Its bytes are
/// negative if the block is freed.
const REPORT: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// Library that has the function.
const C10: &CStr = c"libc10.so";

type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, Device);

/// Function of the emulated driver that takes the address and the bytes of a block.
const HANDED_OUT: &CStr = c"gpuheap_emulated_handed_out";

type HandedOut = unsafe extern "C" fn(u64, u64);

/// `c10::Device`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Device {
    kind: i8,
    index: i8,
}

/// `c10::DeviceType::CUDA`.
const CUDA: i8 = 1;

/// Reports a block of device memory to the emulated driver, and each block to PyTorch's profiler.
// SAFETY: this library is loaded before PyTorch's, so the name is PyTorch's alone, and its function
// is called in the end.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
unsafe extern "C-unwind" fn report(
    block: *mut c_void,
    bytes: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    static DRIVERS: OnceLock<Option<HandedOut>> = OnceLock::new();
    static PYTORCHS: OnceLock<Option<Report>> = OnceLock::new();
    if let (CUDA, Ok(bytes @ 1..)) = (device.kind, u64::try_from(bytes)) {
        let found = DRIVERS.get_or_init(|| {
            // SAFETY: the emulated driver alone has a function of that name, with this type.
            find(c"libcuda.so.1", HANDED_OUT).map(|found| unsafe { std::mem::transmute(found) })
        });
        if let Some(handed_out) = found {
            // SAFETY: the function takes any numbers.
            unsafe { handed_out(block.addr() as u64, bytes) };
        }
    }
    let found = PYTORCHS.get_or_init(|| {
        // SAFETY: the name of a C++ function has its type.
        let found = find(C10, REPORT).map(|found| unsafe { std::mem::transmute(found) });
        found.filter(|found: &Report| *found as usize != report as *const () as usize)
    });
    if let Some(report) = found {
        // SAFETY: PyTorch passed these arguments to this very function.
        unsafe { report(block, bytes, allocated, reserved, device) };
    }
}

/// Returns the address of a function of a library that the process has loaded.
fn find(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both names are C strings. The library is loaded, and stays so.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    (!found.is_null()).then_some(found)
}
