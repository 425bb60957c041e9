//! Reports PyTorch's use of device memory to the emulated driver. The driver cannot see that use:
//! PyTorch's allocator reuses blocks without driver calls. PyTorch's kernels are stored compressed,
//! so the driver cannot read which of their parameters are addresses.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_driver::torch::{C10, CUDA, Device, REPORT, Report};

use crate::contents;

/// Function that PyTorch calls after each operator that changes a tensor in place:
/// `torch::autograd::impl::bump_version(const at::Tensor&)`.
const BUMP_VERSION: &CStr = c"_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE";
/// `at::functionalization::impl::isFunctionalTensor(const at::Tensor&)`.
const IS_FUNCTIONAL: &CStr = c"_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE";
/// PyTorch's library with the functions above.
pub(crate) const TORCH: &CStr = c"libtorch_cpu.so";
/// Library of the emulated driver.
const DRIVER: &CStr = c"libcuda.so.1";

type BumpVersion = unsafe extern "C-unwind" fn(&Tensor);
/// Function of the emulated driver that takes the address and size of a range.
type ReportRange = unsafe extern "C" fn(u64, u64);

/// `at::Tensor`: a counted pointer to the implementation.
#[repr(C)]
pub(crate) struct Tensor(*const c_void);

/// Largest number of bytes allocated by PyTorch's allocator on one device.
static PEAK: AtomicU64 = AtomicU64::new(0);
/// Number of device blocks that PyTorch's allocator has handed out.
static BLOCKS: AtomicU64 = AtomicU64::new(0);
/// Bytes allocated by PyTorch's allocator on one device, as of its last allocation.
static LIVE: AtomicU64 = AtomicU64::new(0);

/// Writes the figures of PyTorch's allocator: the largest number of bytes allocated on one device,
/// the number of blocks handed out, and the bytes allocated as of the last allocation.
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
extern "C" fn gpuheap_emulated_allocated(peak: &mut u64, blocks: &mut u64, live: &mut u64) {
    *peak = PEAK.load(Ordering::Relaxed);
    *blocks = BLOCKS.load(Ordering::Relaxed);
    *live = LIVE.load(Ordering::Relaxed);
}

/// PyTorch's functions that describe a tensor: three in C++, and C functions for compiled models.
pub(crate) struct Torch {
    /// Returns `true` for an instance of a Python tensor subclass that handles operators itself.
    /// Such an instance wraps another tensor and has no memory of its own.
    has_dispatch: unsafe extern "C-unwind" fn(&Tensor) -> bool,
    /// Returns `true` for a wrapper that PyTorch uses while it traces a tensor.
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
    dimensions: Get<i64>,
    /// Writes the address of the sizes.
    sizes: Get<u64>,
    /// Returns the number of elements that a sparse tensor stores. `None` in old versions of
    /// PyTorch.
    stored_elements: Option<unsafe extern "C-unwind" fn(&Tensor) -> i64>,
    /// Returns the number of dimensions that a sparse tensor has indices for. `None` in old
    /// versions of PyTorch.
    sparse_dimensions: Option<unsafe extern "C-unwind" fn(&Tensor) -> i64>,
}

/// Function that writes a tensor's property to its second argument, and returns 0 for success.
type Get<T> = unsafe extern "C-unwind" fn(&Tensor, &mut T) -> c_int;

/// Reports each block to PyTorch's profiler, and blocks of device memory to the emulated driver.
// SAFETY: only PyTorch has a function of this name. This library is loaded before PyTorch's
// libraries, so this function replaces PyTorch's. It calls PyTorch's function last, with the same
// arguments.
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
        LIVE.store(allocated as u64, Ordering::Relaxed);
        PEAK.fetch_max(allocated as u64, Ordering::Relaxed);
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        contents::forget(block.addr() as u64, bytes);
        // SAFETY: only the emulated driver has a function of that name, with this type.
        let found = || unsafe { driver(c"gpuheap_emulated_handed_out") };
        if let Some(handed_out) = HANDED_OUT.get_or_init(found) {
            // SAFETY: the function accepts all numbers.
            unsafe { handed_out(block.addr() as u64, bytes) };
        }
    }
    let found = PYTORCHS.get_or_init(|| {
        // SAFETY: the mangled name of a C++ function includes the function's type.
        let found: Option<Report> = unsafe { find(C10, REPORT) };
        found.filter(|&found| found as usize != report as *const () as usize)
    });
    if let Some(report) = found {
        // SAFETY: PyTorch called this replacement of its function with these arguments.
        unsafe { report(block, bytes, allocated, reserved, device) };
    }
}

/// Calls PyTorch's `bump_version`, which counts changes of a tensor. If the tensor is on a device,
/// reports its memory to the emulated driver.
// SAFETY: only PyTorch has a function of this name. This library is loaded before PyTorch's
// libraries, so this function replaces PyTorch's. It calls PyTorch's function first, with the same
// argument.
#[unsafe(export_name = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE")]
unsafe extern "C-unwind" fn bump_version(tensor: &Tensor) {
    static PYTORCHS: OnceLock<Option<BumpVersion>> = OnceLock::new();
    static CHANGED: OnceLock<Option<ReportRange>> = OnceLock::new();
    let found = PYTORCHS.get_or_init(|| {
        // SAFETY: the mangled name of a C++ function includes the function's type.
        let found: Option<BumpVersion> = unsafe { find(TORCH, BUMP_VERSION) };
        found.filter(|&found| found as usize != bump_version as *const () as usize)
    });
    if let Some(bump_version) = found {
        // SAFETY: PyTorch called this replacement of its function with this tensor.
        unsafe { bump_version(tensor) };
    }
    // SAFETY: PyTorch passed a tensor that lives during the call.
    let memory = |torch: &Torch| unsafe { torch.memory(tensor) };
    let Some((address, bytes)) = Torch::get().and_then(memory) else { return };
    contents::forget(address, bytes);
    // SAFETY: only the emulated driver has a function of that name, with this type. If a tensor is
    // on a device, the driver is loaded.
    let found = || unsafe { driver(c"gpuheap_emulated_changed") };
    if let Some(changed) = CHANGED.get_or_init(found) {
        // SAFETY: the function accepts all numbers.
        unsafe { changed(address, bytes) };
    }
}

impl Torch {
    /// Returns the functions of PyTorch; `None` if this PyTorch lacks one.
    pub(crate) fn get() -> Option<&'static Torch> {
        static PROPERTIES: OnceLock<Option<Torch>> = OnceLock::new();
        PROPERTIES.get_or_init(Torch::find).as_ref()
    }

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
                dimensions: find(TORCH, c"aoti_torch_get_dim")?,
                sizes: find(TORCH, c"aoti_torch_get_sizes")?,
                stored_elements: find(TORCH, c"_ZN2at4_ops4_nnz4callERKNS_6TensorE"),
                sparse_dimensions: find(TORCH, c"_ZN2at4_ops10sparse_dim4callERKNS_6TensorE"),
            })
        }
    }

    /// Returns the address and size of a tensor's device memory. If the tensor has gaps, the range
    /// ends at the end of the storage.
    ///
    /// # Safety
    ///
    /// `tensor` was created by PyTorch.
    pub(crate) unsafe fn memory(&self, tensor: &Tensor) -> Option<(u64, u64)> {
        // SAFETY: by the caller's contract, PyTorch created the tensor. The null check comes first.
        let is_plain = unsafe {
            !tensor.0.is_null()
                && !(self.has_dispatch)(tensor)
                && !(self.is_functional)(tensor)
                && (self.has_storage)(tensor.0)
        };
        // SAFETY: `get` is called only if `is_plain` is true. Such a tensor has an element type.
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

    /// Returns the address and size of the device memory of a tensor without gaps.
    ///
    /// # Safety
    ///
    /// `tensor` was created by PyTorch.
    pub(crate) unsafe fn dense_memory(&self, tensor: &Tensor) -> Option<(u64, u64)> {
        // SAFETY: by the caller's contract, PyTorch created the tensor. `get` is called only if
        // `memory` returned a range, so the tensor owns its memory, as `get` requires.
        unsafe { self.memory(tensor).filter(|_| get(self.is_contiguous, tensor) == Some(true)) }
    }

    /// Returns PyTorch's number of the element type, and the size of an element.
    ///
    /// # Safety
    ///
    /// `tensor` was created by PyTorch, and has memory.
    pub(crate) unsafe fn kind(&self, tensor: &Tensor) -> Option<(c_int, usize)> {
        // SAFETY: by the caller's contract, the tensor has memory, so `get` may read its
        // properties, and its element type is valid.
        unsafe {
            let element_type = get(self.element_type, tensor)?;
            Some((element_type, (self.element_size)(element_type)))
        }
    }

    /// Returns the sizes of a tensor.
    ///
    /// # Safety
    ///
    /// `tensor` was created by PyTorch, and has memory.
    pub(crate) unsafe fn sizes<'t>(&self, tensor: &'t Tensor) -> Option<&'t [i64]> {
        // SAFETY: the address holds one size per dimension. PyTorch changes the sizes only with the
        // tensor, and the tensor is borrowed.
        unsafe {
            let count = usize::try_from(get(self.dimensions, tensor)?).ok()?;
            let address = get(self.sizes, tensor)? as *const i64;
            (!address.is_null()).then(|| std::slice::from_raw_parts(address, count))
        }
    }

    /// Returns the largest number of elements that a sparse tensor may store after it merges
    /// elements of equal indices.
    ///
    /// # Safety
    ///
    /// `tensor` was created by PyTorch, and is sparse.
    pub(crate) unsafe fn most_merged(&self, tensor: &Tensor) -> Option<i64> {
        let (stored, dimensions) = (self.stored_elements?, self.sparse_dimensions?);
        // SAFETY: by the caller's contract, the tensor is sparse, so PyTorch's functions can count
        // its stored elements and its dimensions.
        let (stored, dimensions, sizes) =
            unsafe { (stored(tensor), dimensions(tensor), self.sizes(tensor)?) };
        let mut sizes = sizes.iter().take(usize::try_from(dimensions).ok()?);
        let indices = sizes.try_fold(1_i64, |product, size| product.checked_mul(*size));
        Some(indices.map_or(stored, |indices| stored.min(indices)))
    }
}

/// Returns a function of the emulated driver.
///
/// # Safety
///
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn driver<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: by the caller's contract, `F` is the function's type.
    unsafe { find(DRIVER, name) }
}

/// Returns a property of a tensor; `None` if the tensor lacks the property.
///
/// # Safety
///
/// `tensor` was created by PyTorch, and is plain: it owns its memory.
unsafe fn get<T: Default>(property: Get<T>, tensor: &Tensor) -> Option<T> {
    let mut value = T::default();
    // SAFETY: by the caller's contract, PyTorch created the tensor. The function is PyTorch's.
    let code = unsafe { property(tensor, &mut value) };
    (code == 0).then_some(value)
}

/// Returns a function of a library that is already loaded.
///
/// # Safety
///
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn find<F: Copy>(library: &CStr, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: both names are C strings. The call loads no library. A found library stays loaded.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    // SAFETY: the address is not null. By the caller's contract, `F` is the type of a pointer to
    // the function there.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
