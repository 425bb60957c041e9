//! Loads kernels into a context once, and launches them on its streams.

use std::collections::hash_map::Entry;
use std::ffi::{CString, c_void};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use gpuheap_driver::{CUfunction, CUmodule, CUresult, check};
use gpuheap_kernels::{Kernel, Launch};
use ndarray::Dimension;
use rustc_hash::FxHashMap;

use crate::array::storage::Storage;
use crate::array::{ArrayBase, ArrayData, Element};
use crate::device::{Attachment, Context};
use crate::error::{Error, ErrorKind, Fault};
use crate::heap::Heap;
use crate::stream::Stream;

/// Kernels of a context. Each kernel is loaded when it is first needed.
#[derive(Default)]
struct Kernels {
    loaded: RwLock<FxHashMap<Kernel, Loaded>>,
}

#[derive(Clone, Copy)]
struct Loaded {
    module: CUmodule,
    function: CUfunction,
}

impl Attachment for Kernels {
    /// Unloads all kernels once their work has completed. Otherwise the kernels would stay loaded
    /// while other code keeps the context alive.
    fn end(&mut self, context: &Context) {
        let loaded = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner);
        if loaded.is_empty() {
            return;
        }
        // Ignores an error: the context is then broken, and unloading fails too.
        let _ = context.synchronize();
        for (_, loaded) in loaded.drain() {
            unload(context, loaded);
        }
    }
}

/// Array in the form that kernels take. It is a range of bytes of a storage, and has a shape.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(super) storage: &'a Arc<Storage>,
    offset: u64,
    pub(super) bytes: u64,
    pub(super) shape: &'a [usize],
}

impl<S: ArrayData, T: Element, D: Dimension> ArrayBase<S, T, D> {
    pub(crate) fn window(&self) -> Window<'_> {
        let (storage, offset, bytes) = (self.storage(), self.offset(), self.bytes());
        Window { storage, offset, bytes, shape: self.shape() }
    }
}

impl Window<'_> {
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the address of the first element. It does not change while the storage has memory.
    pub(super) fn address(&self) -> Result<u64, Error> {
        Ok(self.storage.require_address()? + self.offset)
    }

    fn context(&self) -> &Context {
        self.storage.context()
    }
}

/// Launches the kernels that `plan` returns for the addresses of `arrays`. The kernels run in
/// stream order, on the stream of the first array's last use. If the last array has no bytes,
/// nothing runs.
pub(super) fn run<const N: usize>(
    arrays: [&Window<'_>; N],
    plan: impl FnOnce([u64; N]) -> Vec<Launch>,
) -> Result<(), Error> {
    let mut addresses = [0; N];
    find(&arrays, &mut addresses)?;
    launch(&arrays, if arrays[N - 1].bytes > 0 { plan(addresses) } else { Vec::new() })
}

/// Writes the addresses of the arrays. Returns an error if the arrays are not on one device. This
/// is not a part of [`run`], because `run` is compiled anew for each closure.
fn find(arrays: &[&Window<'_>], addresses: &mut [u64]) -> Result<(), Error> {
    for (address, array) in addresses.iter_mut().zip(arrays) {
        check_device(arrays[0], array)?;
        *address = array.address()?;
    }
    Ok(())
}

fn launch(arrays: &[&Window<'_>], launches: Vec<Launch>) -> Result<(), Error> {
    let Some((first, others)) = arrays.split_first() else { return Ok(()) };
    // The kernels are loaded before a storage is locked, because loading may call reclaimers that
    // the program registered with the heap.
    let (context, heap) = (first.context(), first.storage.heap());
    let Some(kernels) = context.attachment::<Kernels>() else {
        return Err(ErrorKind::Unsupported.error(
            "the context's place for kernels is taken; this is a bug of gpuheap: report it",
        ));
    };
    let functions: Result<Vec<CUfunction>, Error> =
        launches.iter().map(|launch| kernels.get(heap, context, launch.kernel)).collect();
    let functions = functions?;
    let others = others.iter().map(|other| &**other.storage).collect::<Vec<&Storage>>();
    first.storage.use_among(&others, |stream| {
        for (launch, function) in launches.iter().zip(&functions) {
            enqueue(stream, launch, *function)?;
        }
        Ok(())
    })
}

/// Returns an error if the arrays are on different devices, so that no kernel can use both.
pub(super) fn check_device(one: &Window<'_>, other: &Window<'_>) -> Result<(), Error> {
    let (one, other) = (one.context(), other.context());
    if one.is_same(other) {
        return Ok(());
    }
    one.check_alive()?;
    other.check_alive()?;
    Err(ErrorKind::WrongDevice.error(format!(
        "one array is on {} and the other on {}, and arithmetic is done on one device; copy one of \
         them to the other's device with copy_to first",
        one.beside(other),
        other.beside(one)
    )))
}

fn enqueue(stream: &Stream, launch: &Launch, function: CUfunction) -> Result<(), Error> {
    let enqueued = stream.enqueue("cuLaunchKernel", |driver| {
        // The driver only reads the parameters.
        let mut parameters: [*mut c_void; 1] = [launch.words.as_slice().as_ptr().cast_mut().cast()];
        // SAFETY: the kernel takes these words, which the driver copies during the call. The
        // addresses among the words belong to the planned arrays. The shapes of these arrays were
        // checked, and the arrays are locked and alive.
        unsafe {
            driver.cuLaunchKernel(
                function,
                launch.grid,
                1,
                1,
                launch.block,
                1,
                1,
                0,
                stream.raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    });
    enqueued.map_err(|error| of_kernel(error, launch.kernel))
}

/// Adds the kernel's name to an error.
fn of_kernel(error: Error, kernel: Kernel) -> Error {
    match error.driver() {
        Some(error) => Fault::Kernel(kernel.name(), error).into(),
        None => error,
    }
}

impl Kernels {
    fn get(&self, heap: &Heap, context: &Context, kernel: Kernel) -> Result<CUfunction, Error> {
        // This check comes before the lock: in a forked child, a thread of the parent may have held
        // it.
        context.check_alive()?;
        if let Some(loaded) = self.read().get(&kernel) {
            return Ok(loaded.function);
        }
        // Loads without a lock held: if memory is short, the heap calls the program's reclaimers.
        let fresh =
            heap.retry(|| load(context, kernel).map_err(|error| of_kernel(error, kernel)))?;
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        match loaded.entry(kernel) {
            Entry::Vacant(place) => Ok(place.insert(fresh).function),
            Entry::Occupied(quicker) => {
                let function = quicker.get().function;
                drop(loaded);
                unload(context, fresh);
                Ok(function)
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, FxHashMap<Kernel, Loaded>> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load(context: &Context, kernel: Kernel) -> Result<Loaded, Error> {
    let text = |text: String| {
        CString::new(text).map_err(|error| ErrorKind::InvalidData.error(error.to_string()))
    };
    let (image, name) = (text(kernel.ptx())?, text(kernel.name())?);
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    let _working = context.gate.work()?;
    let _current = context.enter_aside()?;
    // SAFETY: the pointer is valid for the call, and the image is text that ends with a zero byte.
    let loaded = unsafe { context.driver().cuModuleLoadData(&mut module, image.as_ptr().cast()) };
    check("cuModuleLoadData", loaded)?;
    // SAFETY: the pointer is valid for the call, the module is loaded, the name ends with a zero
    // byte.
    let found =
        unsafe { context.driver().cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    let loaded = Loaded { module, function };
    match check("cuModuleGetFunction", found) {
        Ok(()) => Ok(loaded),
        Err(error) => {
            unload(context, loaded);
            Err(error.into())
        }
    }
}

fn unload(context: &Context, Loaded { module, .. }: Loaded) {
    if let Ok(_current) = context.enter() {
        // SAFETY: `load` loaded the module. Its function was never given out, or the function's
        // work has completed. An error leaks the module in the driver, because no caller could
        // receive the error.
        let _: CUresult = unsafe { context.driver().cuModuleUnload(module) };
    }
}
