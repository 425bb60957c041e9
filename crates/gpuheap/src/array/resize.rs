//! Arrays that get another length.

use std::fmt;
use std::panic::Location;

use ndarray::{Dimension, IntoDimension, Ix1};

use super::element::Element;
use super::{ArrayBase, DeviceArray, UninitArray};
use crate::error::Error;

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Makes it an array of another shape. The elements keep their row-major order: the first of
    /// them stay, up to the new length, and what is more is `fill`. So a matrix keeps its rows if
    /// the leading axis alone changes.
    ///
    /// If the length changes, the array moves to new memory where its
    /// [`target`](ArrayBase::target) says, and the old memory is freed behind the copy, in stream
    /// order. Both are needed at one time. If the length stays, the array keeps its memory. Does not
    /// wait for the device if the heap's cache serves it.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let rows = target.array(&gpuheap::ndarray::array![[1, 2], [3, 4]])?;
    /// let more = rows.resize((3, 2), 0)?;
    /// assert_eq!(more.to_vec()?, [1, 2, 3, 4, 0, 0]);
    /// assert_eq!(more.resize(3, 0)?.to_vec()?, [1, 2, 3]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory), a shape larger than any memory, the array was freed,
    /// a scope that ended; a driver error. The error holds the array, which is as it was. By `?` it
    /// becomes an [`Error`], and the array is freed.
    #[track_caller]
    #[doc(alias = "realloc")]
    pub fn resize<I: IntoDimension>(
        self,
        shape: I,
        fill: T,
    ) -> Result<DeviceArray<T, I::Dim>, ResizeError<T, D>> {
        let shape = shape.into_dimension();
        // Nothing is allocated for an array that is gone.
        if let Err(error) = self.storage().use_on(None, |_, _| Ok(())) {
            return Err(ResizeError { error, array: self });
        }
        if shape.size_checked() == Some(self.len()) {
            let ArrayBase { held, offset, element, .. } = self;
            return Ok(ArrayBase { held, offset, shape, element });
        }
        let resized = self.resized(shape, fill, Location::caller());
        resized.map_err(|error| ResizeError { error, array: self })
    }

    /// A resized copy.
    fn resized<E: Dimension>(
        &self,
        shape: E,
        fill: T,
        at: &'static Location<'static>,
    ) -> Result<DeviceArray<T, E>, Error> {
        let UninitArray(mut array) = self.target().uninit_at(shape, at)?;
        let (length, kept) = (array.len(), self.len().min(array.len()));
        let old = self.view().into_shape(Ix1(self.len()))?.into_slice(..kept)?;
        array.view_mut().into_shape(Ix1(length))?.into_slice(..kept)?.copy_from(&old)?;
        if kept < length {
            array.view_mut().into_shape(Ix1(length))?.into_slice(kept..)?.fill(fill)?;
        }
        Ok(array)
    }
}

/// An array that could not be resized, and why. It becomes an [`Error`] by `?`, which frees the
/// array.
pub struct ResizeError<T, D = Ix1> {
    error: Error,
    array: DeviceArray<T, D>,
}

impl<T, D> ResizeError<T, D> {
    /// The reason.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the array, as it was.
    pub fn into_array(self) -> DeviceArray<T, D> {
        self.array
    }
}

impl<T, D> From<ResizeError<T, D>> for Error {
    fn from(error: ResizeError<T, D>) -> Error {
        error.error
    }
}

impl<T, D> fmt::Debug for ResizeError<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, D> fmt::Display for ResizeError<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, D> std::error::Error for ResizeError<T, D> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
