//! Creation of arrays.

use std::panic::Location;
use std::sync::Arc;

use bytemuck::Zeroable;
use ndarray::{Dimension, IntoDimension};

use super::admission;
use super::element::Element;
use super::fill::fill;
use super::shape::{check_alignment, sizes};
use super::source::HostData;
use super::storage::{Memory, Storage};
use super::{ArrayBase, ArrayData, DeviceArray, UninitArray};
use crate::Caller;
use crate::array::target::Target;
use crate::error::Error;

impl Target {
    /// Allocates an array of the given shape without contents. The array becomes readable once it
    /// is written.
    ///
    /// If the heap's cache serves the request, the call does not wait for the device. If memory is
    /// short, the heap runs its reclaim steps first. An array of zero bytes takes no memory, and
    /// its pointer is 0.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory); the shape is larger than any memory; the elements
    /// need a larger alignment than the heap's memory has; the stream belongs to another device
    /// than the heap; the [scope](crate::Scope) has ended.
    #[track_caller]
    pub fn uninit<T: Element, I: IntoDimension>(
        &self,
        shape: I,
    ) -> Result<UninitArray<T, I::Dim>, Error> {
        self.uninit_at(shape.into_dimension(), Location::caller())
    }

    /// Makes an array of zeros. Does not wait for the fill.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let zeros = target.zeroed::<f32, _>(10)?; // the other parameter is the shape's type
    /// assert_eq!(zeros.to_vec()?, [0.0; 10]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`uninit`](Target::uninit).
    #[track_caller]
    pub fn zeroed<T: Element + Zeroable, I: IntoDimension>(
        &self,
        shape: I,
    ) -> Result<DeviceArray<T, I::Dim>, Error> {
        self.filled(shape, T::zeroed())
    }

    /// Makes an array with every element set to `value`, in stream order.
    ///
    /// # Errors
    ///
    /// The errors of [`uninit`](Target::uninit).
    #[track_caller]
    pub fn filled<T: Element, I: IntoDimension>(
        &self,
        shape: I,
        value: T,
    ) -> Result<DeviceArray<T, I::Dim>, Error> {
        let UninitArray(array) = self.uninit(shape)?;
        fill(&array, value)?;
        Ok(array)
    }

    /// Makes an array with the shape and the elements of host data: a slice, a vector, an `ndarray`
    /// array. The source may be changed as soon as this returns.
    ///
    /// A Rust array of arrays has one axis, with elements `[T; N]`. An `ndarray` array keeps its
    /// number of axes:
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// use gpuheap::ndarray::array;
    ///
    /// let pairs = target.array(&[[1, 2], [3, 4], [5, 6]])?;
    /// let matrix = target.array(&array![[1, 2], [3, 4], [5, 6]])?;
    /// assert_eq!((pairs.shape(), matrix.shape()), (&[3][..], &[3, 2][..]));
    /// assert_eq!((pairs.to_vec()?[1], matrix.to_vec()?[1]), ([3, 4], 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`uninit`](Target::uninit).
    #[track_caller]
    pub fn array<H: HostData + ?Sized>(
        &self,
        source: &H,
    ) -> Result<DeviceArray<H::Element, H::Dim>, Error> {
        self.uninit(source.shape())?.write_from(source)
    }

    /// Makes an array with the shape and the elements of another array. That array may be in any
    /// kind of memory and on any device.
    ///
    /// # Errors
    ///
    /// The errors of [`uninit`](Target::uninit); the source was freed.
    #[track_caller]
    pub fn copy_of<S: ArrayData, T: Element, D: Dimension>(
        &self,
        source: &ArrayBase<S, T, D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        let UninitArray(mut array) = self.uninit(source.raw_dim())?;
        array.copy_from(source)?;
        Ok(array)
    }

    /// Allocates an array as [`uninit`](Target::uninit) does, and records `at` as the line that
    /// made it.
    pub(crate) fn uninit_at<T: Element, D: Dimension>(
        &self,
        shape: D,
        at: Caller,
    ) -> Result<UninitArray<T, D>, Error> {
        let (_, bytes) = sizes::<T, _>(&shape)?;
        Ok(UninitArray(DeviceArray::over(self.storage::<T>(bytes, at)?, shape)))
    }

    fn storage<T>(&self, bytes: u64, at: Caller) -> Result<Arc<Storage>, Error> {
        admission::check(self.kind, bytes)?;
        let lease = self.heap.lease(self.kind, bytes, &self.stream, self.zero_on_alloc, at)?;
        let (address, memory) = (lease.address, Memory::Lease(lease));
        let storage = Storage::new(self, self.kind, bytes, memory, at);
        check_alignment::<T>(address)?;
        let storage = Arc::new(storage);
        self.join(&storage)?;
        Ok(storage)
    }
}
