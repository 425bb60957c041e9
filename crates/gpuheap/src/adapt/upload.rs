//! Upload of structures to a device.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use ndarray::{Dimension, Ix1};

use super::{Adapt, Cu, ElementRule, Narrow, Plain, Same};
use crate::Caller;
use crate::array::element::bytes_of;
use crate::array::storage::{Memory, STAGED_ALIGN, Storage};
use crate::array::target::Target;
use crate::array::{ArrayBase, ArrayData, DeviceArray, SharedArray, UninitArray};
use crate::error::{Error, ErrorKind};

/// Size in bytes up to which an array is uploaded together with other arrays. Below this size, a
/// driver call for each array costs more than a copy of its bytes into a block.
const SMALL: usize = 16 << 10;
/// Total size in bytes at which waiting arrays are uploaded as one block. The block's memory is
/// given back once all its arrays are freed, so a block is kept small.
const BLOCK: usize = 1 << 20;
/// Alignment in bytes of each small array within its block.
const ALIGN: usize = STAGED_ALIGN as usize;
/// Bytes of elements that are converted at a time, if the element type changes.
const CHUNK: usize = 4 << 20;

impl Target {
    /// Uploads a structure, by the [rules](crate::adapt#rules): its arrays are made on the device,
    /// in the target's kind of memory. Element types do not change. The value may be changed as
    /// soon as this call returns.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let (a, (b, name)) = target.adapt(&(vec![1.0_f32, 2.0], (Some([1_u8, 2, 3]), 'x')))?;
    /// assert_eq!((a.to_vec()?, b.unwrap().to_vec()?, name), (vec![1.0, 2.0], vec![1, 2, 3], 'x'));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`array`](Target::array). After an error, the arrays that were already
    /// uploaded are freed. Small arrays share an allocation. If that allocation fails, the call
    /// fails, even if a rule ignores the error of one array.
    #[track_caller]
    pub fn adapt<V: Adapt<Upload> + ?Sized>(&self, value: &V) -> Result<V::Output, Error> {
        Upload::<Same>::new(self, Location::caller()).run(value)
    }

    /// Uploads a structure with its numbers as `f32` and its complex numbers as `Complex<f32>`, at
    /// any depth. See the [element types](crate::adapt#element-types).
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// use gpuheap::{DeviceArray, Diagonal};
    ///
    /// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let diagonal: Diagonal<DeviceArray<f32>> = target.cu(&Diagonal([1, 2]))?;
    /// assert_eq!(diagonal.0.to_vec()?, [1.0, 2.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`adapt`](Target::adapt).
    #[track_caller]
    pub fn cu<V: Adapt<Upload<Cu>> + ?Sized>(&self, value: &V) -> Result<V::Output, Error> {
        Upload::<Cu>::new(self, Location::caller()).run(value)
    }

    /// Uploads a structure with its 64-bit floats as 32-bit floats. See the [element
    /// types](crate::adapt#element-types).
    ///
    /// # Errors
    ///
    /// The errors of [`adapt`](Target::adapt).
    #[track_caller]
    pub fn narrow<V: Adapt<Upload<Narrow>> + ?Sized>(&self, value: &V) -> Result<V::Output, Error> {
        Upload::<Narrow>::new(self, Location::caller()).run(value)
    }
}

/// An upload to a device, with the rule `R` for element types. It is the type parameter `To` of the
/// [`Adapt`] implementations that [`Target::adapt`], [`Target::cu`] and [`Target::narrow`] call.
pub struct Upload<R = Same> {
    target: Target,
    at: Caller,
    staged: RefCell<Staged>,
    /// Error of an allocation for several small arrays that waited to be uploaded together. Only
    /// the last array's [`Adapt::adapt`] call returned the error. The earlier calls had succeeded.
    failed: Cell<Option<Error>>,
    rule: PhantomData<fn() -> R>,
}

/// Small arrays that wait for their upload.
#[derive(Default)]
struct Staged {
    bytes: Vec<u8>,
    /// Each array with its offset in bytes.
    parts: Vec<(Arc<Storage>, usize)>,
}

impl<R: ElementRule> Upload<R> {
    pub(crate) fn new(target: &Target, at: Caller) -> Upload<R> {
        let (target, staged, failed) = (target.clone(), RefCell::default(), Cell::default());
        Upload { target, at, staged, failed, rule: PhantomData }
    }

    pub(crate) fn run<V: Adapt<Upload<R>> + ?Sized>(&self, value: &V) -> Result<V::Output, Error> {
        let adapted = value.adapt(self)?;
        // The `adapt` call that returned this error may have ignored it. But other small arrays
        // failed with the same allocation, so return the error again.
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.flush(self.staged.take())?;
        Ok(adapted)
    }

    /// Returns the target of the upload.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the line of the program that started the upload.
    pub(super) fn made_at(&self) -> Caller {
        self.at
    }

    /// Converts elements by `Q`, and uploads them as an array.
    pub(super) fn array<Q: ElementRule, T: Plain, D: Dimension>(
        &self,
        elements: &[T],
        shape: D,
    ) -> Result<DeviceArray<Q::Of<T>, D>, Error> {
        let bytes = size_of::<Q::Of<T>>().saturating_mul(elements.len());
        if (1..=SMALL).contains(&bytes) && align_of::<Q::Of<T>>() <= ALIGN {
            return self.stage::<Q, T, D>(elements, bytes, shape);
        }
        let UninitArray(mut array) = self.target.uninit_at(shape, self.at)?;
        if is_kept::<Q, T>() {
            array.upload(bytes_of(elements))?;
            return Ok(array);
        }
        let count = (CHUNK / size_of::<Q::Of<T>>().max(1)).max(1);
        for (nth, chunk) in elements.chunks(count).enumerate() {
            let chunk: Vec<Q::Of<T>> = chunk.iter().map(|element| Q::convert(*element)).collect();
            let all = array.view_mut().into_shape(elements.len())?;
            let start = nth * count;
            all.into_slice(start..start + chunk.len())?.upload(bytes_of(&chunk))?;
        }
        Ok(array)
    }

    /// Copies an array that is on a device. If the element type changes, a kernel converts the
    /// elements. If no kernel supports the types, the host converts them.
    pub(super) fn copy<Q: ElementRule, S: ArrayData, T: Plain, D: Dimension>(
        &self,
        source: &ArrayBase<S, T, D>,
    ) -> Result<DeviceArray<Q::Of<T>, D>, Error> {
        if !is_kept::<Q, T>() {
            #[cfg(feature = "arithmetic")]
            if let Some(array) = crate::arithmetic::converted(source, &self.target, self.at) {
                return array;
            }
            return self.array::<Q, T, D>(&source.to_vec()?, source.raw_dim());
        }
        let UninitArray(mut array) = self.target.uninit_at::<T, D>(source.raw_dim(), self.at)?;
        array.copy_from(source)?;
        array.into_reinterpreted()
    }

    /// Returns a clone of `source` if its array is already on the target and keeps its element
    /// type. Otherwise returns a handle to a new copy on the target.
    pub(super) fn share<T: Plain, D: Dimension>(
        &self,
        source: &SharedArray<T, D>,
    ) -> Result<SharedArray<R::Of<T>, D>, Error> {
        let storage = source.storage();
        let is_there = storage.context().is_same(self.target.stream.context())
            && source.kind() == self.target.kind;
        if !is_there || !is_kept::<R, T>() {
            return Ok(self.copy::<R, _, _, _>(source)?.into_shared());
        }
        storage.use_on(None, |_, _| Ok(()))?;
        source.clone().into_reinterpreted()
    }

    /// Adds an array to the small arrays that wait to be uploaded together.
    fn stage<Q: ElementRule, T: Plain, D: Dimension>(
        &self,
        elements: &[T],
        bytes: usize,
        shape: D,
    ) -> Result<DeviceArray<Q::Of<T>, D>, Error> {
        let (target, at) = (&self.target, self.at);
        let storage = Arc::new(Storage::new(target, target.kind, bytes as u64, Memory::Staged, at));
        target.join(&storage)?;
        let array = DeviceArray::over(storage.clone(), shape);
        // Elements are converted before `staged` is borrowed, because the conversion may run code
        // of the program.
        let converted: Vec<Q::Of<T>>;
        let content = if is_kept::<Q, T>() {
            bytes_of(elements)
        } else {
            converted = elements.iter().map(|element| Q::convert(*element)).collect();
            bytes_of(&converted)
        };
        let full = {
            let mut staged = self.staged.borrow_mut();
            let start = staged.bytes.len().next_multiple_of(ALIGN);
            staged.bytes.resize(start, 0);
            staged.bytes.extend_from_slice(content);
            staged.parts.push((storage, start));
            (staged.bytes.len() >= BLOCK).then(|| std::mem::take(&mut *staged))
        };
        if let Some(full) = full {
            self.flush(full).inspect_err(|error| self.failed.set(Some(error.clone())))?;
        }
        Ok(array)
    }

    fn flush(&self, Staged { bytes, parts }: Staged) -> Result<(), Error> {
        if parts.is_empty() {
            return Ok(());
        }
        let (target, kind, length) = (&self.target, self.target.kind, bytes.len() as u64);
        let zeroed = target.zero_on_alloc;
        let lease = target.heap.lease(kind, length, &target.stream, zeroed, self.at)?;
        let address = lease.address;
        let whole = Arc::new(Storage::new(target, kind, length, Memory::Lease(lease), self.at));
        if !address.is_multiple_of(STAGED_ALIGN) {
            return Err(ErrorKind::Unsupported.error(format!(
                "the pool's memory for small arrays begins at {address:#x}, which is no multiple of \
                 {STAGED_ALIGN}; use another pool"
            )));
        }
        DeviceArray::<u8>::over(whole.clone(), Ix1(bytes.len())).upload(&bytes)?;
        if let [(only, _)] = &parts[..] {
            only.fill(whole.surrender());
            return Ok(());
        }
        let own = parts.iter().map(|(part, start)| (address + *start as u64, part.bytes()));
        target.heap.note_parts(own);
        for (part, start) in parts {
            part.fill(Memory::Part { address: address + start as u64, whole: whole.clone() });
        }
        Ok(())
    }
}

/// Returns `true` if elements keep their type, so that their bytes can be uploaded unchanged.
fn is_kept<Q: ElementRule, T: Plain>() -> bool {
    TypeId::of::<T>() == TypeId::of::<Q::Of<T>>()
}
