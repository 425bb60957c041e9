//! Windows of arrays: slices of the leading axis, other shapes, other elements.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use ndarray::{Dimension, IntoDimension, RemoveAxis};

use super::element::Element;
use super::{ArrayBase, DeviceView, DeviceViewMut, Hold, HoldMut, View, ViewMut};
use crate::error::{Error, ErrorKind};

impl<S: Hold, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// All of it, borrowed for reading.
    pub fn view(&self) -> DeviceView<'_, T, D> {
        ArrayBase {
            held: View(self.storage()),
            offset: self.offset,
            shape: self.raw_dim(),
            element: PhantomData,
        }
    }

    /// All of it, borrowed for writing.
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T, D>
    where
        S: HoldMut,
    {
        ArrayBase {
            offset: self.offset,
            shape: self.raw_dim(),
            held: ViewMut(self.storage(), PhantomData),
            element: PhantomData,
        }
    }

    /// A range of the leading axis, such as `2..5`, borrowed for reading.
    ///
    /// # Errors
    ///
    /// A range that is not within the axis; an array with no axis.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T, D>, Error> {
        self.view().into_slice(range)
    }

    /// A range of the leading axis, borrowed for writing.
    ///
    /// # Errors
    ///
    /// As [`slice`](ArrayBase::slice).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceViewMut<'_, T, D>, Error>
    where
        S: HoldMut,
    {
        self.view_mut().into_slice(range)
    }

    /// The same elements in another shape, borrowed for reading.
    ///
    /// # Errors
    ///
    /// A shape with another number of elements.
    pub fn reshape<I: IntoDimension>(&self, shape: I) -> Result<DeviceView<'_, T, I::Dim>, Error> {
        self.view().into_shape(shape)
    }

    /// The same bytes as elements of another type, borrowed for reading. The last axis grows or
    /// shrinks by what the sizes of the elements differ.
    ///
    /// # Errors
    ///
    /// A last axis whose bytes are no whole number of the new elements; a window whose start is not
    /// aligned for them; elements of no size on one side alone.
    pub fn reinterpret<U: Element>(&self) -> Result<DeviceView<'_, U, D>, Error> {
        self.view().into_reinterpreted()
    }

    /// A range of the leading axis, held as this is. The whole memory stays alive.
    ///
    /// # Errors
    ///
    /// As [`slice`](ArrayBase::slice).
    pub fn into_slice(mut self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let length = match self.shape.slice().first() {
            Some(length) => *length,
            None => {
                return Err(ErrorKind::Refused(
                    "an array with no axis cannot be sliced; give it a shape of one axis first"
                        .to_owned(),
                )
                .into());
            }
        };
        let (start, end) = bounds(&range, length)?;
        let row = self.bytes().checked_div(length as u64).unwrap_or(0);
        self.offset += start as u64 * row;
        if let Some(axis) = self.shape.slice_mut().first_mut() {
            *axis = end - start;
        }
        Ok(self)
    }

    /// One index of the leading axis, as an array with one axis less, held as this is.
    ///
    /// # Errors
    ///
    /// An index that is not within the axis.
    pub fn into_index(self, index: usize) -> Result<ArrayBase<S, T, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        let end = index.checked_add(1).unwrap_or(usize::MAX);
        let one = self.into_slice(index..end)?;
        let shape = one.shape.remove_axis(ndarray::Axis(0));
        Ok(ArrayBase { held: one.held, offset: one.offset, shape, element: PhantomData })
    }

    /// The same elements in another shape, held as this is.
    ///
    /// # Errors
    ///
    /// As [`reshape`](ArrayBase::reshape).
    pub fn into_shape<I: IntoDimension>(self, shape: I) -> Result<ArrayBase<S, T, I::Dim>, Error> {
        let shape = shape.into_dimension();
        if shape.size_checked() != Some(self.len()) {
            return Err(ErrorKind::Refused(format!(
                "an array of shape {:?} has {} elements, which the shape {:?} does not hold; give a \
                 shape whose axes multiply to {}",
                self.shape(),
                self.len(),
                shape.slice(),
                self.len()
            ))
            .into());
        }
        Ok(ArrayBase { held: self.held, offset: self.offset, shape, element: PhantomData })
    }

    /// The same bytes as elements of another type, held as this is.
    ///
    /// # Errors
    ///
    /// As [`reinterpret`](ArrayBase::reinterpret).
    pub fn into_reinterpreted<U: Element>(self) -> Result<ArrayBase<S, U, D>, Error> {
        let (old, new) = (size_of::<T>(), size_of::<U>());
        let refused = |why: String| -> Error {
            ErrorKind::Refused(format!(
                "an array of shape {:?} of {} cannot be read as {}: {why}",
                self.shape(),
                std::any::type_name::<T>(),
                std::any::type_name::<U>()
            ))
            .into()
        };
        let mut shape = self.raw_dim();
        if old != new {
            if old == 0 || new == 0 {
                return Err(refused("one of them has no size".to_owned()));
            }
            let Some(last) = shape.slice_mut().last_mut() else {
                return Err(refused(format!("{old} bytes are not {new}")));
            };
            let bytes = *last * old;
            if bytes % new != 0 {
                return Err(refused(format!(
                    "the {bytes} bytes of the last axis are no whole number of elements of {new} bytes"
                )));
            }
            *last = bytes / new;
        }
        // The driver's allocations begin at multiples of what any element needs; registered and
        // wrapped memory may begin anywhere.
        let align = align_of::<U>() as u64;
        let start = self.storage().address().unwrap_or(0) + self.offset;
        if !start.is_multiple_of(align) {
            return Err(refused(format!(
                "it begins {} bytes into its memory, which is no multiple of {align}",
                self.offset
            )));
        }
        Ok(ArrayBase { held: self.held, offset: self.offset, shape, element: PhantomData })
    }
}

fn bounds(range: &impl RangeBounds<usize>, length: usize) -> Result<(usize, usize), Error> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(length),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= length => Ok((start, end)),
        _ => Err(ErrorKind::Refused(format!(
            "the range {:?} to {:?} is not within the leading axis, whose length is {length}",
            range.start_bound(),
            range.end_bound()
        ))
        .into()),
    }
}
