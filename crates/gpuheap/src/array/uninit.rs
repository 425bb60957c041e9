//! Arrays that were not written yet.

use ndarray::{Dimension, Ix1};

use super::element::Element;
use super::fill::fill;
use super::source::HostData;
use super::{ArrayBase, DeviceArray, Hold};
use crate::error::Error;
use crate::stream::Stream;

/// An array with nothing in it yet. It becomes a [`DeviceArray`] by being written.
#[must_use]
pub struct UninitArray<T, D = Ix1>(pub(crate) DeviceArray<T, D>);

impl<T: Element, D: Dimension> UninitArray<T, D> {
    /// Writes all of it from host data, which may be changed as soon as this returns.
    ///
    /// # Errors
    ///
    /// A source with another number of elements; a driver error. The array is freed then.
    pub fn write_from<H: HostData<Element = T> + ?Sized>(
        mut self,
        source: &H,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.0.write_from(source)?;
        Ok(self.0)
    }

    /// Writes all of it from another array, in stream order.
    ///
    /// # Errors
    ///
    /// A source with another number of elements or that was freed; a driver error. The array is
    /// freed then.
    pub fn copy_from<S: Hold, E: Dimension>(
        mut self,
        source: &ArrayBase<S, T, E>,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.0.copy_from(source)?;
        Ok(self.0)
    }

    /// Writes `value` everywhere, in stream order.
    ///
    /// # Errors
    ///
    /// A driver error. The array is freed then.
    pub fn fill(self, value: T) -> Result<DeviceArray<T, D>, Error> {
        fill(&self.0, value)?;
        Ok(self.0)
    }

    /// Where a kernel on `stream` is to write it; see [`device_ptr`](ArrayBase::device_ptr).
    ///
    /// # Errors
    ///
    /// A stream of a device that cannot reach the memory.
    pub fn device_ptr(&self, stream: &Stream) -> Result<u64, Error> {
        self.0.device_ptr(stream)
    }

    /// The array, written by work that was enqueued with its [`device_ptr`](Self::device_ptr).
    ///
    /// # Safety
    ///
    /// All of it is written by work on its stream by then, with valid bit patterns of `T`.
    pub unsafe fn assume_written(self) -> DeviceArray<T, D> {
        self.0
    }
}
