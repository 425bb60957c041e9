//! Arrays without contents.

use ndarray::{Dimension, Ix1};

use super::element::Element;
use super::fill::fill;
use super::source::HostData;
use super::{ArrayBase, ArrayData, DeviceArray};
use crate::error::Error;
use crate::stream::Stream;

/// An array without contents. Writing it makes it a [`DeviceArray`].
#[must_use]
pub struct UninitArray<T, D = Ix1>(pub(crate) DeviceArray<T, D>);

impl<T: Element, D: Dimension> UninitArray<T, D> {
    /// Writes the whole array from host data. The data may be changed as soon as this returns.
    ///
    /// # Errors
    ///
    /// The source has another number of elements; a driver error. Any error frees the array.
    pub fn write_from<H: HostData<Element = T> + ?Sized>(
        mut self,
        source: &H,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.0.write_from(source)?;
        Ok(self.0)
    }

    /// Writes the whole array from another array, in stream order. Does not wait, unless the two
    /// devices have no driver in common.
    ///
    /// # Errors
    ///
    /// The source has another number of elements, or was freed; a driver error. Any error frees the
    /// array.
    pub fn copy_from<S: ArrayData, E: Dimension>(
        mut self,
        source: &ArrayBase<S, T, E>,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.0.copy_from(source)?;
        Ok(self.0)
    }

    /// Sets every element to `value`, in stream order.
    ///
    /// # Errors
    ///
    /// A driver error. The array is then freed.
    pub fn fill(self, value: T) -> Result<DeviceArray<T, D>, Error> {
        fill(&self.0, value)?;
        Ok(self.0)
    }

    /// Returns the address that a kernel on `stream` is to write; see
    /// [`device_ptr`](ArrayBase::device_ptr).
    ///
    /// # Errors
    ///
    /// The stream's device cannot access the memory.
    pub fn device_ptr(&self, stream: &Stream) -> Result<u64, Error> {
        self.0.device_ptr(stream)
    }

    /// Converts to a [`DeviceArray`] after the caller enqueued work that writes to the array's
    /// [`device_ptr`](Self::device_ptr).
    ///
    /// # Safety
    ///
    /// Work that was enqueued on the array's stream before this call writes all of the array, with
    /// valid bit patterns of `T`.
    pub unsafe fn assume_written(self) -> DeviceArray<T, D> {
        self.0
    }
}
