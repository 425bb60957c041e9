//! PyTorch's reports of its memory. The emulated driver does not see it otherwise: the allocator
//! reuses blocks without the driver, and the parameters of its compressed kernels are unknown.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

/// Function by which PyTorch's allocators report each block to its profiler:
/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`. Its bytes are
/// negative if the block is freed.
const REPORT: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// Function that PyTorch calls after each operator that changed a tensor in place:
/// `torch::autograd::impl::bump_version(const at::Tensor&)`.
const BUMP_VERSION: &CStr = c"_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE";
/// `at::functionalization::impl::isFunctionalTensor(const at::Tensor&)`.
const IS_FUNCTIONAL: &CStr = c"_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE";
/// Libraries that have these functions.
const C10: &CStr = c"libc10.so";
const TORCH: &CStr = c"libtorch_cpu.so";
/// Library of the emulated driver.
const DRIVER: &CStr = c"libcuda.so.1";

type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, Device);
type BumpVersion = unsafe extern "C-unwind" fn(&Tensor);
/// Function of the emulated driver that takes the address and the bytes of a range.
type ReportRange = unsafe extern "C" fn(u64, u64);

/// `c10::Device`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Device {
    kind: i8,
    index: i8,
}

/// `c10::DeviceType::CUDA`.
const CUDA: i8 = 1;

/// `at::Tensor`: a counted pointer to the implementation.
#[repr(C)]
struct Tensor(*const c_void);

/// Functions that describe a tensor: PyTorch's C functions for compiled models, and three of C++.
struct Torch {
    /// `true` for a subclass of Python's, whose memory is another tensor's.
    has_dispatch: unsafe extern "C-unwind" fn(&Tensor) -> bool,
    /// `true` for the wrapper of a tensor that is being traced.
    is_functional: unsafe extern "C-unwind" fn(&Tensor) -> bool,
    has_storage: unsafe extern "C-unwind" fn(*const c_void) -> bool,
    device_type: Get<c_int>,
    address: Get<u64>,
    elements: Get<i64>,
    is_contiguous: Get<bool>,
    element_type: Get<c_int>,
    element_size: unsafe extern "C-unwind" fn(c_int) -> usize,
    storage_size: Get<i64>,
    storage_offset: Get<i64>,
}

/// Function that returns a property of a tensor. Its own result is 0 unless it failed.
type Get<T> = unsafe extern "C-unwind" fn(&Tensor, &mut T) -> c_int;

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
    static HANDED_OUT: OnceLock<Option<ReportRange>> = OnceLock::new();
    static PYTORCHS: OnceLock<Option<Report>> = OnceLock::new();
    if let (CUDA, Ok(bytes @ 1..)) = (device.kind, u64::try_from(bytes)) {
        // SAFETY: the emulated driver alone has a function of that name, with this type.
        let found = || unsafe { find(DRIVER, c"gpuheap_emulated_handed_out") };
        if let Some(handed_out) = HANDED_OUT.get_or_init(found) {
            // SAFETY: the function takes any numbers.
            unsafe { handed_out(block.addr() as u64, bytes) };
        }
    }
    let found = PYTORCHS.get_or_init(|| {
        // SAFETY: the name of a C++ function has its type.
        let found: Option<Report> = unsafe { find(C10, REPORT) };
        found.filter(|&found| found as usize != report as *const () as usize)
    });
    if let Some(report) = found {
        // SAFETY: PyTorch passed these arguments to this very function.
        unsafe { report(block, bytes, allocated, reserved, device) };
    }
}

/// Counts a change of a tensor as PyTorch does, and reports the tensor's memory to the emulated
/// driver if it is on a device.
// SAFETY: this library is loaded before PyTorch's, so the name is PyTorch's alone, and its function
// is called first.
#[unsafe(export_name = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE")]
unsafe extern "C-unwind" fn bump_version(tensor: &Tensor) {
    static PYTORCHS: OnceLock<Option<BumpVersion>> = OnceLock::new();
    static PROPERTIES: OnceLock<Option<Torch>> = OnceLock::new();
    static CHANGED: OnceLock<Option<ReportRange>> = OnceLock::new();
    let found = PYTORCHS.get_or_init(|| {
        // SAFETY: the name of a C++ function has its type.
        let found: Option<BumpVersion> = unsafe { find(TORCH, BUMP_VERSION) };
        found.filter(|&found| found as usize != bump_version as *const () as usize)
    });
    if let Some(bump_version) = found {
        // SAFETY: PyTorch passed this tensor to this very function.
        unsafe { bump_version(tensor) };
    }
    // SAFETY: PyTorch passed a tensor that lives during the call.
    let memory = |torch: &Torch| unsafe { torch.memory(tensor) };
    let Some((address, bytes)) = PROPERTIES.get_or_init(Torch::find).as_ref().and_then(memory)
    else {
        return;
    };
    // SAFETY: the emulated driver alone has a function of that name, with this type. It is loaded
    // once a tensor is on a device.
    let found = || unsafe { find(DRIVER, c"gpuheap_emulated_changed") };
    if let Some(changed) = CHANGED.get_or_init(found) {
        // SAFETY: the function takes any numbers.
        unsafe { changed(address, bytes) };
    }
}

impl Torch {
    /// Returns the functions of PyTorch; `None` if this PyTorch lacks one.
    fn find() -> Option<Torch> {
        // SAFETY: PyTorch's functions of these names have the types of the fields.
        unsafe {
            Some(Torch {
                has_dispatch: find(TORCH, c"_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE")?,
                is_functional: find(TORCH, IS_FUNCTIONAL)?,
                has_storage: find(C10, c"_ZNK3c1010TensorImpl11has_storageEv")?,
                device_type: find(TORCH, c"aoti_torch_get_device_type")?,
                address: find(TORCH, c"aoti_torch_get_data_ptr")?,
                elements: find(TORCH, c"aoti_torch_get_numel")?,
                is_contiguous: find(TORCH, c"aoti_torch_is_contiguous")?,
                element_type: find(TORCH, c"aoti_torch_get_dtype")?,
                element_size: find(TORCH, c"aoti_torch_dtype_element_size")?,
                storage_size: find(TORCH, c"aoti_torch_get_storage_size")?,
                storage_offset: find(TORCH, c"aoti_torch_get_storage_offset")?,
            })
        }
    }

    /// Returns the device memory of a tensor, as address and bytes. A tensor with gaps reaches to
    /// the end of its storage.
    ///
    /// # Safety
    ///
    /// The tensor is PyTorch's.
    unsafe fn memory(&self, tensor: &Tensor) -> Option<(u64, u64)> {
        // SAFETY: the tensor is one, and has an implementation, by the caller's contract.
        let is_plain = unsafe {
            !tensor.0.is_null()
                && !(self.has_dispatch)(tensor)
                && !(self.is_functional)(tensor)
                && (self.has_storage)(tensor.0)
        };
        // SAFETY: a plain tensor with storage has these properties.
        unsafe {
            if !is_plain || get(self.device_type, tensor)? != c_int::from(CUDA) {
                return None;
            }
            let element = (self.element_size)(get(self.element_type, tensor)?);
            let elements = match get(self.is_contiguous, tensor)? {
                true => get(self.elements, tensor)?,
                false => {
                    let storage = get(self.storage_size, tensor)?.checked_div(element as i64)?;
                    storage - get(self.storage_offset, tensor)?
                }
            };
            let bytes = u64::try_from(elements).ok()?.checked_mul(element as u64)?;
            Some((get(self.address, tensor)?, bytes))
        }
    }
}

/// Returns a property of a tensor; `None` if it has none.
///
/// # Safety
///
/// The tensor is PyTorch's, and is plain.
unsafe fn get<T: Default>(property: Get<T>, tensor: &Tensor) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the function is PyTorch's, and the tensor too, by the caller's contract.
    let code = unsafe { property(tensor, &mut value) };
    (code == 0).then_some(value)
}

/// Returns a function of a library that the process has loaded.
///
/// # Safety
///
/// `F` is the type of a pointer to that function.
unsafe fn find<F: Copy>(library: &CStr, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: both names are C strings. The library is loaded, and stays so.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    // SAFETY: the address is not null, and is the function's, by the caller's contract.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
