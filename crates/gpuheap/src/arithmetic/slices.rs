//! Strided copies: slices of every axis, permuted axes, repeated axes.

use crate::Caller;
use std::panic::Location;

use gpuheap_kernels as kernels;
use gpuheap_kernels::Launch;
use ndarray::{Dimension, IntoDimension, SliceArg, SliceInfoElem};

use super::launch::{Window, check_device, run};
use super::operand::{broadcast_shape, strides};
use crate::array::{ArrayBase, ArrayData, ArrayDataMut, DeviceArray, Element, UninitArray};
use crate::error::{Error, ErrorKind};

/// Strided copies. An array has no gaps between its elements, so a selection with strides is
/// copied. Each new array is allocated by this array's [`target`](ArrayBase::target). These methods
/// do not wait.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// use gpuheap::ndarray::{array, s};
///
/// let mut a = target.array(&array![[1, 2, 3], [4, 5, 6]])?;
/// assert_eq!(a.copy_slice(s![.., 1])?.to_vec()?, [2, 5]); // a column
/// assert_eq!(a.copy_slice(s![..;-1, ..;2])?.to_ndarray()?, array![[4, 6], [1, 3]]);
/// a.write_slice(s![.., 0], &target.array(&[7])?)?; // repeated
/// assert_eq!(a.copy_transposed()?.to_ndarray()?, array![[7, 7], [2, 5], [3, 6]]);
/// # Ok(()) }
/// ```
impl<S: ArrayData, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Copies a part of the array, such as `s![.., 1]` or `s![..;-1, 2..;3]`, to a new array. The
    /// slice means the same as in `ndarray`.
    ///
    /// # Errors
    ///
    /// The slice is outside the shape, or has a step of 0; the array was freed; the errors of
    /// [`Target::uninit`](crate::Target::uninit); a driver error.
    #[track_caller]
    pub fn copy_slice<I: SliceArg<D>>(&self, slice: I) -> Result<DeviceArray<T, I::OutDim>, Error> {
        let selection = Selection::new(self.shape(), slice.as_ref())?;
        self.copy_part(&selection, selection.dimension()?, Location::caller())
    }

    /// Copies the array with its axes permuted: axis `axes[n]` of this array becomes axis `n` of
    /// the copy.
    ///
    /// # Errors
    ///
    /// An axis is out of range, or named twice; the errors of
    /// [`copy_slice`](ArrayBase::copy_slice).
    #[track_caller]
    pub fn copy_permuted(
        &self,
        axes: impl IntoDimension<Dim = D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        self.permuted(axes.into_dimension(), Location::caller())
    }

    /// Copies the array with its axes reversed: a matrix is transposed.
    ///
    /// # Errors
    ///
    /// The errors of [`copy_slice`](ArrayBase::copy_slice).
    #[track_caller]
    #[doc(alias = "t")]
    pub fn copy_transposed(&self) -> Result<DeviceArray<T, D>, Error> {
        let mut axes = self.raw_dim();
        let last = axes.ndim().saturating_sub(1);
        axes.slice_mut().iter_mut().enumerate().for_each(|(nth, axis)| *axis = last - nth);
        self.permuted(axes, Location::caller())
    }

    /// Repeats the array to a larger shape, along axes of length 1 and along new leading axes.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let row = target.array(&[1, 2])?;
    /// assert_eq!(row.broadcast_to((3, 2))?.to_vec()?, [1, 2, 1, 2, 1, 2]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The array cannot be broadcast to the shape; the errors of
    /// [`copy_slice`](ArrayBase::copy_slice).
    #[track_caller]
    #[doc(alias = "repeat")]
    pub fn broadcast_to<I: IntoDimension>(
        &self,
        shape: I,
    ) -> Result<DeviceArray<T, I::Dim>, Error> {
        let shape = shape.into_dimension();
        check_repeats(self.shape(), shape.slice())?;
        let steps = strides(self.shape(), shape.slice());
        let selection = Selection { start: 0, shape: shape.slice().to_vec(), strides: steps };
        self.copy_part(&selection, shape, Location::caller())
    }

    /// Overwrites a part of the array with another array. If the other array is smaller than the
    /// part, it is repeated. The write is in stream order; the call does not wait.
    ///
    /// # Errors
    ///
    /// The slice is outside the shape, or has a step of 0; the source cannot be broadcast to the
    /// part, is on another device, or overlaps the part; an array was freed; a driver error.
    pub fn write_slice<I: SliceArg<D>, R: ArrayData, E: Dimension>(
        &mut self,
        slice: I,
        source: &ArrayBase<R, T, E>,
    ) -> Result<(), Error>
    where
        S: ArrayDataMut,
    {
        let selection = Selection::new(self.shape(), slice.as_ref())?;
        check_repeats(source.shape(), &selection.shape)?;
        let (to, from, size) = (self.window(), source.window(), size_of::<T>());
        check_device(&to, &from)?;
        check_apart(&selection, &to, &from, size)?;
        let steps = strides(source.shape(), &selection.shape);
        let is_empty = selection.shape.contains(&0) || size == 0;
        run([&to, &from, &to], |[to, from, _]| match is_empty {
            true => Vec::new(),
            false => copies(
                size,
                &selection.shape,
                selection.first(to, size),
                &selection.strides,
                from,
                &steps,
            ),
        })
    }

    fn permuted(&self, axes: D, at: Caller) -> Result<DeviceArray<T, D>, Error> {
        let (ours, order) = (self.shape(), axes.slice());
        let is_permutation = order.len() == ours.len()
            && (0..ours.len()).all(|axis| order.iter().filter(|one| **one == axis).count() == 1);
        if !is_permutation {
            return Err(ErrorKind::WrongShape.error(format!(
                "{order:?} is no order of the axes of an array of shape {ours:?}; name each of 0 to \
                 {} once",
                ours.len().saturating_sub(1)
            )));
        }
        let steps = strides(ours, ours);
        let selection = Selection {
            start: 0,
            shape: order.iter().map(|axis| ours[*axis]).collect(),
            strides: order.iter().map(|axis| steps[*axis]).collect(),
        };
        self.copy_part(&selection, selection.dimension()?, at)
    }

    fn copy_part<O: Dimension>(
        &self,
        selection: &Selection,
        shape: O,
        at: Caller,
    ) -> Result<DeviceArray<T, O>, Error> {
        let UninitArray(out) = self.target().uninit_at::<T, O>(shape, at)?;
        let (size, steps) = (size_of::<T>(), strides(&selection.shape, &selection.shape));
        run([&self.window(), &out.window()], |[from, to]| {
            copies(
                size,
                &selection.shape,
                to,
                &steps,
                selection.first(from, size),
                &selection.strides,
            )
        })?;
        Ok(out)
    }
}

/// A part of an array. The offset of its first element and its strides count elements.
struct Selection {
    start: usize,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Selection {
    fn new(shape: &[usize], slice: &[SliceInfoElem]) -> Result<Selection, Error> {
        // If an axis has length 0, the array has no elements, and the strides are 0. The product of
        // the other axes could overflow.
        let steps = if shape.contains(&0) { vec![0; shape.len()] } else { strides(shape, shape) };
        let mut selection = Selection { start: 0, shape: Vec::new(), strides: Vec::new() };
        let mut axis = 0;
        for one in slice {
            if matches!(one, SliceInfoElem::NewAxis) {
                selection.shape.push(1);
                selection.strides.push(0);
                continue;
            }
            let (Some(&length), Some(&stride)) = (shape.get(axis), steps.get(axis)) else {
                return Err(other_axes(shape, slice));
            };
            let refused =
                |why: &str| refused_slice(&format!("{why} axis {axis}, whose length is {length}"));
            let within = |index: isize| {
                let index = if index < 0 { index.checked_add_unsigned(length)? } else { index };
                usize::try_from(index).ok()
            };
            match *one {
                SliceInfoElem::Index(index) => {
                    let at = within(index).filter(|at| *at < length);
                    let at = at.ok_or_else(|| refused(&format!("index {index} is not within")))?;
                    selection.start += at * stride as usize;
                }
                SliceInfoElem::Slice { start, end, step } => {
                    let outside = || refused(&format!("{} is not within", Written(start, end)));
                    let begin = within(start).filter(|at| *at <= length).ok_or_else(outside)?;
                    let end = end.map_or(Some(length), within).filter(|at| *at <= length);
                    let end = end.ok_or_else(outside)?.max(begin);
                    if step == 0 {
                        return Err(refused("a step of 0 leads nowhere along"));
                    }
                    let count = (end - begin).div_ceil(step.unsigned_abs());
                    // A negative step starts at the far end.
                    let first = if step < 0 { end.saturating_sub(1) } else { begin };
                    if count > 0 {
                        selection.start += first * stride as usize;
                    }
                    selection.shape.push(count);
                    // A single element has no next element, so its stride is 0.
                    selection.strides.push(if count > 1 { stride * step } else { 0 });
                }
                _ => return Err(other_axes(shape, slice)),
            }
            axis += 1;
        }
        if axis == shape.len() { Ok(selection) } else { Err(other_axes(shape, slice)) }
    }

    /// Returns the shape as a dimension type.
    fn dimension<O: Dimension>(&self) -> Result<O, Error> {
        if O::NDIM.is_some_and(|axes| axes != self.shape.len()) {
            return Err(refused_slice("its type says another number of axes"));
        }
        let mut shape = O::zeros(self.shape.len());
        shape.slice_mut().copy_from_slice(&self.shape);
        Ok(shape)
    }

    fn first(&self, address: u64, size: usize) -> u64 {
        address + (self.start * size) as u64
    }

    /// Returns the lowest and the highest index of an element of the selection.
    fn reach(&self) -> (usize, usize) {
        let (mut low, mut high) = (self.start, self.start);
        for (length, stride) in self.shape.iter().zip(&self.strides) {
            let far = stride.unsigned_abs() * length.saturating_sub(1);
            if *stride < 0 { low -= far } else { high += far }
        }
        (low, high)
    }
}

/// A range of a slice, displayed as Rust writes it.
struct Written(isize, Option<isize>);

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Written(start, Some(end)) => write!(f, "the range {start}..{end}"),
            Written(start, None) => write!(f, "the range {start}.."),
        }
    }
}

fn refused_slice(why: &str) -> Error {
    ErrorKind::WrongShape.error(format!("the slice does not fit: {why}"))
}

fn other_axes(shape: &[usize], slice: &[SliceInfoElem]) -> Error {
    let named = slice.iter().filter(|one| !one.is_new_axis()).count();
    refused_slice(&format!(
        "the number of axes that it names is {named}, and the array has {} (shape {shape:?}); name \
         each of them once",
        shape.len()
    ))
}

fn check_repeats(from: &[usize], to: &[usize]) -> Result<(), Error> {
    let goes = broadcast_shape::<ndarray::IxDyn>(to, from).is_ok_and(|both| both.slice() == to);
    if goes {
        return Ok(());
    }
    Err(ErrorKind::WrongShape.error(format!(
        "an array of shape {from:?} cannot be repeated to the shape {to:?}; counted from the last, \
         each axis must have the same length, or 1"
    )))
}

/// Returns an error if a selection shares a byte with its source.
fn check_apart(
    selection: &Selection,
    to: &Window<'_>,
    from: &Window<'_>,
    size: usize,
) -> Result<(), Error> {
    if selection.shape.contains(&0) || from.bytes == 0 {
        return Ok(());
    }
    let (start, source) = (to.address()?, from.address()?);
    let (low, high) = selection.reach();
    let (low, end) = (start + (low * size) as u64, start + ((high + 1) * size) as u64);
    if end <= source || source + from.bytes <= low {
        return Ok(());
    }
    Err(ErrorKind::Overlap.error(format!(
        "the source overlaps the part that it is to be written to: both are of one memory, and the \
         source begins {} bytes from where the part does; copy the source first",
        source.abs_diff(low)
    )))
}

/// Copies elements of any size, in the largest units that divide the element size and the
/// addresses.
fn copies(
    size: usize,
    shape: &[usize],
    to: u64,
    to_strides: &[isize],
    from: u64,
    from_strides: &[isize],
) -> Vec<Launch> {
    let fits = |unit: &usize| {
        size.is_multiple_of(*unit)
            && to.is_multiple_of(*unit as u64)
            && from.is_multiple_of(*unit as u64)
    };
    let unit = [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1);
    let many = size / unit;
    if many == 1 {
        return kernels::copy(unit, shape, to, to_strides, from, from_strides);
    }
    let steps = |strides: &[isize]| -> Vec<isize> {
        strides.iter().map(|stride| stride * many as isize).chain([1]).collect()
    };
    let shape: Vec<usize> = shape.iter().copied().chain([many]).collect();
    kernels::copy(unit, &shape, to, &steps(to_strides), from, &steps(from_strides))
}
