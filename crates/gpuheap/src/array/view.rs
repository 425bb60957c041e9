//! Makes windows of arrays: slices of the leading axis, and views with another shape or element
//! type.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use ndarray::{Dimension, IntoDimension, RemoveAxis};

use super::element::Element;
use super::storage::{Place, STAGED_ALIGN as ALIGN};
use super::{
    ArrayBase, ArrayData, ArrayDataMut, DeviceView, DeviceViewMut, SharedArray, View, ViewMut,
};
use crate::error::{Error, ErrorKind};

impl<S: ArrayData, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Returns a view of the whole array, borrowed for reading.
    pub fn view(&self) -> DeviceView<'_, T, D> {
        ArrayBase {
            held: View(self.storage()),
            offset: self.offset,
            shape: self.raw_dim(),
            element: PhantomData,
        }
    }

    /// Returns a view of the whole array, borrowed for writing.
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T, D>
    where
        S: ArrayDataMut,
    {
        ArrayBase {
            offset: self.offset,
            shape: self.raw_dim(),
            held: ViewMut(self.storage(), PhantomData),
            element: PhantomData,
        }
    }

    /// Returns a view of a range of the leading axis, such as `2..5`, borrowed for reading. A view
    /// has no gaps, so the other axes stay whole. [`index`](ArrayBase::index) gives a single row;
    /// [`copy_slice`](ArrayBase::copy_slice) copies a column.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let matrix = target.array(&gpuheap::ndarray::array![[1, 2], [3, 4], [5, 6]])?;
    /// assert_eq!(matrix.slice(1..)?.shape(), [2, 2]);
    /// assert_eq!(matrix.index(1)?.to_vec()?, [3, 4]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The range is outside the axis; the array has no axis.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T, D>, Error> {
        self.view().into_slice(range)
    }

    /// Returns a view of a range of the leading axis, borrowed for writing.
    ///
    /// # Errors
    ///
    /// The errors of [`slice`](ArrayBase::slice).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceViewMut<'_, T, D>, Error>
    where
        S: ArrayDataMut,
    {
        self.view_mut().into_slice(range)
    }

    /// Returns a view of one index of the leading axis, such as a row of a matrix, borrowed for
    /// reading. The view has one axis less.
    ///
    /// # Errors
    ///
    /// The index is outside the axis; the array has no axis.
    pub fn index(&self, index: usize) -> Result<DeviceView<'_, T, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        self.view().into_index(index)
    }

    /// Returns a view of one index of the leading axis, borrowed for writing. The view has one axis
    /// less.
    ///
    /// # Errors
    ///
    /// The errors of [`index`](ArrayBase::index).
    pub fn index_mut(&mut self, index: usize) -> Result<DeviceViewMut<'_, T, D::Smaller>, Error>
    where
        S: ArrayDataMut,
        D: RemoveAxis,
    {
        self.view_mut().into_index(index)
    }

    /// Returns a view of the elements in another shape, borrowed for reading.
    ///
    /// # Errors
    ///
    /// The shape has another number of elements.
    pub fn reshape<I: IntoDimension>(&self, shape: I) -> Result<DeviceView<'_, T, I::Dim>, Error> {
        self.view().into_shape(shape)
    }

    /// Returns a view of the bytes as elements of another type, borrowed for reading. The last axis
    /// grows or shrinks by the ratio of the elements' sizes.
    ///
    /// # Errors
    ///
    /// The bytes of the last axis are not a multiple of the new element's size; the window's start
    /// is not aligned for the new type; only one of the two types has zero size.
    pub fn reinterpret<U: Element>(&self) -> Result<DeviceView<'_, U, D>, Error> {
        self.view().into_reinterpreted()
    }

    /// Narrows this handle to a range of the leading axis. The whole memory stays alive.
    ///
    /// # Errors
    ///
    /// The errors of [`slice`](ArrayBase::slice).
    pub fn into_slice(self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        let (start, end) = bounds(&range, self.leading("cannot be sliced")?)?;
        Ok(self.narrowed(start, end))
    }

    /// Narrows this handle to one index of the leading axis; the result has one axis less. The
    /// whole memory stays alive.
    ///
    /// # Errors
    ///
    /// The errors of [`index`](ArrayBase::index).
    pub fn into_index(self, index: usize) -> Result<ArrayBase<S, T, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        let length = self.leading("cannot be indexed")?;
        if index >= length {
            let advice = match length {
                0 => "which is empty".to_owned(),
                1 => "whose length is 1; write index 0".to_owned(),
                _ => format!("whose length is {length}; write an index of 0 to {}", length - 1),
            };
            return Err(ErrorKind::WrongShape
                .error(format!("index {index} is not within the leading axis, {advice}")));
        }
        let one = self.narrowed(index, index + 1);
        let shape = one.shape.remove_axis(ndarray::Axis(0));
        Ok(ArrayBase { held: one.held, offset: one.offset, shape, element: PhantomData })
    }

    /// Returns the length of the leading axis. If the array has no axes, returns an error. `cannot`
    /// is a part of its text, such as "cannot be indexed".
    fn leading(&self, cannot: &str) -> Result<usize, Error> {
        self.shape().first().copied().ok_or_else(|| {
            ErrorKind::WrongShape
                .error(format!("an array with no axis {cannot}; give it a shape of one axis first"))
        })
    }

    /// Narrows the handle to a range within the leading axis.
    fn narrowed(mut self, start: usize, end: usize) -> Self {
        let bytes = self.bytes();
        if let Some(axis) = self.shape.slice_mut().first_mut() {
            let row = bytes.checked_div(*axis as u64).unwrap_or(0);
            self.offset += start as u64 * row;
            *axis = end - start;
        }
        self
    }

    /// Changes the shape of this handle. The elements stay the same.
    ///
    /// # Errors
    ///
    /// The errors of [`reshape`](ArrayBase::reshape).
    pub fn into_shape<I: IntoDimension>(self, shape: I) -> Result<ArrayBase<S, T, I::Dim>, Error> {
        let shape = shape.into_dimension();
        if shape.size_checked() != Some(self.len()) {
            return Err(ErrorKind::WrongShape.error(format!(
                "an array of shape {:?} has {} elements, which the shape {:?} does not hold; give a \
                 shape whose axes multiply to {}",
                self.shape(),
                self.len(),
                shape.slice(),
                self.len()
            )));
        }
        Ok(ArrayBase { held: self.held, offset: self.offset, shape, element: PhantomData })
    }

    /// Changes the element type of this handle. The bytes stay the same.
    ///
    /// # Errors
    ///
    /// The errors of [`reinterpret`](ArrayBase::reinterpret).
    pub fn into_reinterpreted<U: Element>(self) -> Result<ArrayBase<S, U, D>, Error> {
        let mut shape = self.raw_dim();
        if let Err(why) = reinterpret(shape.slice_mut(), Layout::new::<T>(), Layout::new::<U>())
            .and_then(|()| {
                check_alignment(self.storage().place(), self.offset, align_of::<U>() as u64)
            })
        {
            return Err(ErrorKind::WrongType.error(format!(
                "an array of shape {:?} of {} cannot be read as {}: {why}",
                self.shape(),
                std::any::type_name::<T>(),
                std::any::type_name::<U>()
            )));
        }
        Ok(ArrayBase { held: self.held, offset: self.offset, shape, element: PhantomData })
    }
}

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Returns a view of the whole array for writing, even if other handles to the array exist.
    /// Writes are in stream order, like every use of an array. A read through another handle
    /// therefore sees the elements from before the write or from after it.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let whole = target.array(&[1, 2, 3])?.into_shared();
    /// let tail = whole.clone().into_slice(1..)?;
    /// tail.view_mut_shared().fill(7)?;
    /// assert_eq!(whole.to_vec()?, [1, 7, 7]);
    /// # Ok(()) }
    /// ```
    pub fn view_mut_shared(&self) -> DeviceViewMut<'_, T, D> {
        // This is sound: only `DeviceArray` gives host references to the elements, and a shared
        // handle never becomes a `DeviceArray` again.
        ArrayBase {
            offset: self.offset,
            shape: self.raw_dim(),
            held: ViewMut(self.storage(), PhantomData),
            element: PhantomData,
        }
    }
}

/// Converts the length of the last axis of `shape`, so that elements of `new` take the same bytes
/// as elements of `old`. If no such length exists, the error says why.
fn reinterpret(shape: &mut [usize], old: Layout, new: Layout) -> Result<(), String> {
    let (old, new) = (old.size(), new.size());
    if old == new {
        return Ok(());
    }
    if old == 0 || new == 0 {
        return Err(format!(
            "their sizes are {old} and {new} bytes; read it as elements that have a size"
        ));
    }
    let Some(last) = shape.last_mut() else {
        return Err(format!(
            "it has no axis that could change, and {old} bytes are not {new}; give it a shape of \
             one axis first"
        ));
    };
    let bytes =
        last.checked_mul(old).ok_or("the bytes of its last axis are more than any memory has")?;
    if bytes % new != 0 {
        return Err(format!(
            "the {bytes} bytes of the last axis are no whole number of elements of {new} bytes; \
             give that axis a multiple of {new} bytes, by a slice or another shape"
        ));
    }
    *last = bytes / new;
    Ok(())
}

/// Returns an error if memory at `place` and `offset` is not aligned to `align`.
fn check_alignment(place: Place, offset: u64, align: u64) -> Result<(), String> {
    // A staged array gets its memory when the call of `adapt` ends, at a multiple of `ALIGN` only.
    if matches!(place, Place::Staged) && align > ALIGN {
        return Err(format!(
            "its elements would lie at multiples of {align} bytes, and its memory will begin at \
             one of {ALIGN}; do this after adapt returned, or make a copy then"
        ));
    }
    let address = if let Place::At(address) = place { address } else { 0 };
    let start = if address == 0 { offset } else { address + offset };
    if !start.is_multiple_of(align) {
        return Err(format!(
            "it begins at {start:#x}, {offset} bytes into its memory, which is no multiple of \
             {align}; begin the slice at one, or make a copy first"
        ));
    }
    Ok(())
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
    let advice = match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= length => return Ok((start, end)),
        (Some(start), Some(end)) if start > end && start <= length => {
            "begins after its end; write the smaller bound first".to_owned()
        }
        _ => format!(
            "is not within the leading axis, whose length is {length}; write a range within \
             0..{length}"
        ),
    };
    Err(ErrorKind::WrongShape.error(format!("the range {} {advice}", written(range))))
}

/// Formats a range as Rust writes it.
fn written(range: &impl RangeBounds<usize>) -> String {
    let start = match range.start_bound() {
        Bound::Included(start) => start.to_string(),
        // Rust has no range syntax for an excluded start.
        Bound::Excluded(start) => format!("({start}, excluded)"),
        Bound::Unbounded => String::new(),
    };
    match range.end_bound() {
        Bound::Included(end) => format!("{start}..={end}"),
        Bound::Excluded(end) => format!("{start}..{end}"),
        Bound::Unbounded => format!("{start}.."),
    }
}
