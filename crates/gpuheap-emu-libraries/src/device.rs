//! Calls the process's CUDA driver to allocate the emulated libraries' memory and to enqueue their
//! work.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use gpuheap_driver::{
    CUcontext, CUdevice, CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUresult, CUstream, Driver,
    LibCuda,
};

/// Returns the process's driver; `None` if no driver can be opened.
pub(crate) fn driver() -> Option<&'static LibCuda> {
    static DRIVER: OnceLock<Option<LibCuda>> = OnceLock::new();
    DRIVER.get_or_init(|| LibCuda::open().ok()).as_ref()
}

/// Code that takes device memory when a program first uses it.
///
/// The sizes were measured on an H200 (driver 580, PyTorch 2.11, 2026-11-22). They exclude the
/// context and PyTorch's own memory. Each of 9 programs that used cuBLAS on two threads took 224
/// MiB. Programs that also used cuDNN took 20 MiB more. Programs that used only cuDNN took 112 MiB.
/// cuFFT, cuSOLVER and cuSPARSE were measured on another H200 (2026-11-24), and NCCL on two other
/// H200 (2026-11-28). For other cards, sizes are estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loaded {
    /// PyTorch's kernels, loaded with the first library.
    Kernels,
    Cublas,
    Cudnn,
    /// Stacks of a kernel that spills registers, for each thread that the device can run at once.
    /// Benchmark mode allocated these stacks for 25 of 29 convolutions that `Convolution::spills`
    /// describes, and for none of 149 other convolutions (2026-11-28).
    CudnnStacks,
    Cufft,
    Cusolver,
    Cusparse,
    /// NCCL's kernels, loaded with the first communicator. The 70 MiB for the streams of PyTorch's
    /// process group are not included.
    Nccl,
    /// Stacks of NCCL's kernels, for all threads that the device can run at once. They are
    /// allocated when the first kernel runs. A communicator with one rank runs no kernel.
    NcclStacks,
    /// Kernels of NCCL for broadcasts and messages.
    NcclGeneric,
    /// Larger stacks of the kernel for messages.
    NcclMessages,
}

impl Loaded {
    fn bytes(self) -> usize {
        match self {
            Self::Kernels => 92 << 20,
            Self::Cublas | Self::Cudnn => 4 << 20,
            Self::CudnnStacks => 384 << 20,
            Self::Cufft => 8 << 20,
            Self::Cusolver => 96 << 20,
            Self::Cusparse => 2 << 20,
            Self::Nccl => 98 << 20,
            Self::NcclStacks => 186 << 20,
            Self::NcclGeneric => 4 << 20,
            Self::NcclMessages => 58 << 20,
        }
    }
}

/// Pairs of a context and code that is loaded into it.
static LOADED: Mutex<BTreeSet<(usize, Loaded)>> = Mutex::new(BTreeSet::new());

/// Allocates the memory of a library's code, unless the current context already has the code.
/// Returns `false` if the device has too little memory.
pub(crate) fn load(library: Loaded) -> bool {
    let Some(driver) = driver() else { return true };
    let Some(context) = current(driver).or_else(|| {
        open_context();
        current(driver)
    }) else {
        return true;
    };
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    [Loaded::Kernels, library].into_iter().all(|code| {
        if !loaded.insert((context.0, code)) {
            return true;
        }
        // The memory stays allocated until the context ends.
        let fits = allocate(code.bytes()).is_some();
        if !fits {
            loaded.remove(&(context.0, code));
        }
        fits
    })
}

/// Returns `true` if the current context has the library's code.
pub(crate) fn is_loaded(library: Loaded) -> bool {
    let context = driver().and_then(current);
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    context.is_some_and(|context| loaded.contains(&(context.0, library)))
}

/// Returns the current context; `None` without one.
fn current(driver: &LibCuda) -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    // SAFETY: `context` is valid for the write.
    let code = unsafe { driver.cuCtxGetCurrent(&mut context) };
    (code.is_success() && !context.is_null()).then_some(context)
}

/// Makes the primary context of a device current and calls `then`. If there is no driver or no such
/// device, calls `then` in the current context.
pub(crate) fn on<R>(device: CUdevice, then: impl FnOnce() -> R) -> R {
    let Some(driver) = driver() else { return then() };
    let before = current(driver).unwrap_or(CUcontext::NULL);
    let mut context = CUcontext::NULL;
    // SAFETY: `context` is valid for the write. Like the vendor's library, the stand-in never
    // releases the context.
    let code = unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) };
    if code.is_success() {
        // SAFETY: the context is retained.
        let _ = unsafe { driver.cuCtxSetCurrent(context) };
    }
    let result = then();
    // SAFETY: the context was current before, or is null.
    let _ = unsafe { driver.cuCtxSetCurrent(before) };
    result
}

/// Makes the context of the thread's device current by calling the CUDA runtime, as the vendor's
/// libraries do. Does nothing if the process has no runtime.
fn open_context() {
    // SAFETY: the name ends with a null byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cudaFree".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the runtime's `cudaFree` has this type.
        let free: unsafe extern "C" fn(*mut c_void) -> c_int =
            unsafe { std::mem::transmute(found) };
        // SAFETY: for a null pointer, `cudaFree` frees nothing.
        let _ = unsafe { free(std::ptr::null_mut()) };
    }
}

/// Allocates device memory. Returns 0 without a driver, and `None` if the device has too little
/// memory.
pub(crate) fn allocate(bytes: usize) -> Option<CUdeviceptr> {
    let Some(driver) = driver() else { return Some(0) };
    let mut address = 0;
    // SAFETY: `address` is valid for the write.
    let code = unsafe { driver.cuMemAlloc_v2(&mut address, bytes) };
    (code != CUresult::ERROR_OUT_OF_MEMORY).then_some(address)
}

/// Device memory that is freed on drop.
#[derive(Debug)]
pub(crate) struct Memory(CUdeviceptr);

impl Memory {
    /// Memory of a cuBLAS handle, in bytes. It was measured on an H200 (2026-11-28). PyTorch has
    /// one handle for each thread that multiplies.
    pub(crate) const OF_CUBLAS: usize = 64 << 20;
    /// Memory of a cuDNN handle, in bytes. On an H200 (2026-11-28), three handles took 8 to 10 MiB
    /// each.
    pub(crate) const OF_CUDNN: usize = 8 << 20;

    /// Allocates `bytes`; `None` if the device has too little memory.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        if bytes == 0 { Some(Self(0)) } else { allocate(bytes).map(Self) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(driver) = driver().filter(|_| self.0 != 0) {
            // SAFETY: `new` allocated the memory, and only its owner uses it.
            let _ = unsafe { driver.cuMemFree_v2(self.0) };
        }
    }
}

/// Allocates the memory of `code`, and `bytes` for an object of the program; `None` if the device
/// has too little memory.
pub(crate) fn take(code: &[Loaded], bytes: usize) -> Option<Memory> {
    if code.iter().all(|&code| load(code)) { Memory::new(bytes) } else { None }
}

/// PTX of an empty kernel.
const PTX: &[u8] = b".version 8.0\n.target sm_50\n.address_size 64\n\
                     .visible .entry gpuheap_stands_for_a_library() { ret; }\n\0";

/// Enqueues an empty kernel, so that a captured graph has a node for the library's work. Ignores
/// failures, because the program's next call on the stream returns the error.
pub(crate) fn launch(stream: CUstream) {
    static KERNEL: OnceLock<Option<CUfunction>> = OnceLock::new();
    let (Some(driver), Some(kernel)) = (driver(), *KERNEL.get_or_init(load_kernel)) else { return };
    let none = std::ptr::null_mut();
    // SAFETY: the kernel has no parameters, and the driver checks the stream.
    let _ = unsafe { driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, none, none) };
}

fn load_kernel() -> Option<CUfunction> {
    let driver = driver()?;
    let none = std::ptr::null_mut();
    let mut library = CUlibrary::NULL;
    let image = PTX.as_ptr().cast();
    let pointers = std::ptr::null_mut();
    // SAFETY: the image ends with a null byte, and the counts of both lists of options are 0.
    let loaded = unsafe {
        driver.cuLibraryLoadData(&mut library, image, none, pointers, 0, none, pointers, 0)
    };
    let mut kernel = CUkernel::NULL;
    let name = c"gpuheap_stands_for_a_library";
    // SAFETY: `kernel` is valid for the write. The library was loaded above.
    let found = loaded.is_success()
        && unsafe { driver.cuLibraryGetKernel(&mut kernel, library, name.as_ptr()) }.is_success();
    // Driver functions that take a function handle also take a kernel handle.
    found.then_some(CUfunction(kernel.0))
}
