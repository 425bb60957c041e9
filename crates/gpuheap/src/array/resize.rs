//! Resizing of arrays.

use std::panic::Location;

use ndarray::{Dimension, IntoDimension, Ix1};

use super::element::Element;
use super::{ArrayBase, DeviceArray, UninitArray};
use crate::Caller;
use crate::error::Error;

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Changes the shape of the array. The elements keep their row-major order. Elements up to the
    /// new length stay, and additional elements are set to `fill`. A matrix therefore keeps its
    /// rows if only the leading axis changes.
    ///
    /// If the length changes, the array moves to new memory of its [`target`](ArrayBase::target).
    /// The old memory is freed after the copy, in stream order, so both need memory during the
    /// copy. If the length stays, the array keeps its memory. If the heap's cache serves the
    /// request, the call does not wait for the device.
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
    /// [Out of memory](Error::out_of_memory); the shape is larger than any memory; the array was
    /// freed; its scope has ended; a driver error. The error holds the unchanged array. `?`
    /// converts it to an [`Error`] and frees the array.
    #[track_caller]
    #[doc(alias = "realloc")]
    pub fn resize<I: IntoDimension>(
        self,
        shape: I,
        fill: T,
    ) -> Result<DeviceArray<T, I::Dim>, ResizeError<T, D>> {
        let shape = shape.into_dimension();
        // Nothing is allocated for a freed array.
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

    /// Returns a resized copy.
    fn resized<E: Dimension>(
        &self,
        shape: E,
        fill: T,
        at: Caller,
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

/// An array that could not be resized, with the reason. `?` converts it to an [`Error`] and frees
/// the array.
pub struct ResizeError<T, D = Ix1> {
    error: Error,
    array: DeviceArray<T, D>,
}

impl<T, D> ResizeError<T, D> {
    /// Returns the reason.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the unchanged array.
    pub fn into_array(self) -> DeviceArray<T, D> {
        self.array
    }
}

is_error!(ResizeError<T, D>);
