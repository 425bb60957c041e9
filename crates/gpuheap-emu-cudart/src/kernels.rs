//! Kernels and variables of the program's fat binaries. Each is loaded when it is first used.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_driver::{CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUstream};

use crate::error::{
    INVALID_DEVICE_FUNCTION, INVALID_SYMBOL, In, MISSING_CONFIGURATION, Outcome, call,
};
use crate::types::Dim3;

static REGISTERED: Mutex<Option<Registered>> = Mutex::new(None);

thread_local! {
    /// Configurations of launches that the thread has begun, outermost first.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// The program's images, with their kernels and variables.
#[derive(Default)]
struct Registered {
    images: Vec<Image>,
    /// Kernels, keyed by the address of the host function that represents the kernel.
    kernels: HashMap<u64, Kernel>,
    /// Variables, keyed by the address of the host variable that represents the device variable.
    variables: HashMap<u64, Variable>,
}

/// A fat binary. Addresses are integers, because raw pointers are not `Send`.
struct Image {
    data: usize,
    library: Option<CUlibrary>,
}

struct Kernel {
    image: usize,
    /// Address of the kernel's name, a C string of the program.
    name: usize,
    loaded: Option<CUkernel>,
}

struct Variable {
    bytes: usize,
    /// Addresses of the variable, keyed by device ordinal. The first use on a device adds the
    /// entry.
    at: HashMap<c_int, CUdeviceptr>,
}

/// Configuration of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Configuration {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: usize,
    pub(crate) stream: CUstream,
}

/// Registers a fat binary and returns the image's index.
pub(crate) fn register_image(data: *const c_void) -> usize {
    let mut registered = lock();
    let images = &mut registered.get_or_insert_default().images;
    images.push(Image { data: data.expose_provenance(), library: None });
    images.len() - 1
}

/// Registers a kernel of an image. `name` is a constant of the program.
pub(crate) fn register_kernel(image: usize, host: In<c_void>, name: *const c_char) {
    let kernel = Kernel { image, name: name.expose_provenance(), loaded: None };
    lock().get_or_insert_default().kernels.insert(host.address(), kernel);
}

/// Registers a device variable under the address of its host variable.
pub(crate) fn register_variable(host: In<c_void>, bytes: usize) {
    let variable = Variable { bytes, at: HashMap::new() };
    lock().get_or_insert_default().variables.insert(host.address(), variable);
}

/// Returns the kernel registered for a host function. Loads the kernel if necessary.
pub(crate) fn kernel(host: In<c_void>) -> Outcome<CUkernel> {
    let mut registered = lock();
    let Registered { images, kernels, .. } = registered.get_or_insert_default();
    let found = kernels.get_mut(&host.address()).ok_or(INVALID_DEVICE_FUNCTION)?;
    if let Some(loaded) = found.loaded {
        return Ok(loaded);
    }
    let image = images.get_mut(found.image).ok_or(INVALID_DEVICE_FUNCTION)?;
    let library = image.load()?;
    let name: *const c_char = ptr::with_exposed_provenance(found.name);
    let mut kernel = CUkernel::NULL;
    call!(cuLibraryGetKernel(&mut kernel, library, name))?;
    Ok(*found.loaded.insert(kernel))
}

/// Returns a function handle for the kernel registered for a host function.
pub(crate) fn function(host: In<c_void>) -> Outcome<CUfunction> {
    // Driver functions that take a function handle also take a kernel handle.
    kernel(host).map(|kernel| CUfunction(kernel.0))
}

/// Returns the name of the kernel registered for a host function.
pub(crate) fn name(host: In<c_void>) -> Outcome<*const c_char> {
    let mut registered = lock();
    let found = registered.get_or_insert_default().kernels.get(&host.address());
    let found = found.ok_or(INVALID_DEVICE_FUNCTION)?;
    Ok(ptr::with_exposed_provenance(found.name))
}

/// Returns the address and size of a variable on `device`, the current context's device. The first
/// use allocates the variable's memory, filled with zeros.
pub(crate) fn variable(device: c_int, host: In<c_void>) -> Outcome<(CUdeviceptr, usize)> {
    let mut registered = lock();
    let variables = &mut registered.get_or_insert_default().variables;
    let found = variables.get_mut(&host.address()).ok_or(INVALID_SYMBOL)?;
    if let Some(address) = found.at.get(&device) {
        return Ok((*address, found.bytes));
    }
    let mut address = 0;
    call!(cuMemAlloc_v2(&mut address, found.bytes))?;
    call!(cuMemsetD8_v2(address, 0_u8, found.bytes))?;
    found.at.insert(device, address);
    Ok((address, found.bytes))
}

/// Returns the size of a variable.
pub(crate) fn variable_bytes(host: In<c_void>) -> Outcome<usize> {
    let mut registered = lock();
    let found = registered.get_or_insert_default().variables.get(&host.address());
    found.map(|found| found.bytes).ok_or(INVALID_SYMBOL)
}

/// Drops the variables' addresses on a device that was reset.
pub(crate) fn forget_variables(device: c_int) {
    for variable in lock().get_or_insert_default().variables.values_mut() {
        variable.at.remove(&device);
    }
}

/// Pushes the configuration of the calling thread's next launch.
pub(crate) fn push_configuration(configuration: Configuration) {
    CONFIGURATIONS.with_borrow_mut(|stack| stack.push(configuration));
}

/// Pops the configuration that the calling thread pushed last.
pub(crate) fn pop_configuration() -> Outcome<Configuration> {
    CONFIGURATIONS.with_borrow_mut(Vec::pop).ok_or(MISSING_CONFIGURATION)
}

impl Image {
    fn load(&mut self) -> Outcome<CUlibrary> {
        if let Some(library) = self.library {
            return Ok(library);
        }
        let (none, no_values) = (ptr::null_mut::<c_int>(), ptr::null_mut::<*mut c_void>());
        let data: *const c_void = ptr::with_exposed_provenance(self.data);
        let mut library = CUlibrary::NULL;
        call!(cuLibraryLoadData(
            &mut library,
            data,
            none,
            no_values,
            0_u32,
            none,
            no_values,
            0_u32
        ))?;
        Ok(*self.library.insert(library))
    }
}

fn lock() -> MutexGuard<'static, Option<Registered>> {
    // Each change is one insertion, so a panic leaves the maps valid.
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}
