//! Sums, means, minima and maxima of all elements or along an axis.

use std::panic::Location;

use bytemuck::Zeroable;
use gpuheap_kernels as kernels;
use gpuheap_kernels::{Arithmetic, Reduction, Type};
use ndarray::{Axis, Dimension, Ix1, RemoveAxis};

use super::cast::recast;
use super::launch::run;
use super::number::{Number, Scalar};
use super::operand::Side;
use super::operators::{Op, enqueue};
use crate::Caller;
use crate::array::target::Target;
use crate::array::{ArrayBase, ArrayData, DeviceArray, Element, UninitArray};
use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;

/// Sums and means. A method that returns a value waits for that value. A method that returns an
/// array does not wait; this array's [`target`](ArrayBase::target) allocates the result.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let a = target.array(&gpuheap::ndarray::array![[1_u8, 2, 3], [4, 5, 255]])?;
/// assert_eq!((a.sum()?, a.mean()?), (270_u64, 45.0_f64));
/// assert_eq!(a.sum_axis(0)?.to_vec()?, [5, 7, 258]);
/// assert_eq!(a.mean_axis(1)?.to_vec()?, [2.0, 88.0]);
/// # Ok(()) }
/// ```
impl<S: ArrayData, T: Scalar, D: Dimension> ArrayBase<S, T, D> {
    /// Returns the sum of all elements; 0 for an empty array. Integers wrap in 64 bits. Floats are
    /// added in `f64`, in an order that is the same on every device, and rounded at the end. Waits.
    ///
    /// # Errors
    ///
    /// The array was freed; the errors of [`Target::uninit`], for temporary memory; a driver error.
    #[track_caller]
    pub fn sum(&self) -> Result<T::Sum, Error> {
        let total = read_one(Reduction::Sum, self, Location::caller())?;
        Ok(T::sum(total.unwrap_or(T::Total::zeroed())))
    }

    /// Returns the mean of all elements. Each element is converted to `f64`. The sum is divided by
    /// the number of elements, and the quotient is rounded. For `bool`, the mean is the fraction of
    /// elements that are true. Waits.
    ///
    /// # Errors
    ///
    /// The array is empty; the errors of [`sum`](ArrayBase::sum).
    #[track_caller]
    pub fn mean(&self) -> Result<T::Mean, Error> {
        let total: Option<f64> = read_one(Reduction::Total, self, Location::caller())?;
        let total = total.ok_or_else(|| nothing("mean", self.shape()))?;
        Ok(T::mean(total / self.len() as f64))
    }

    /// Returns the sums along `axis`; 0 if the axis has length 0. The result lacks that axis.
    /// Does not wait.
    ///
    /// # Errors
    ///
    /// The array has no such axis; the errors of [`sum`](ArrayBase::sum).
    #[track_caller]
    pub fn sum_axis(&self, axis: usize) -> Result<DeviceArray<T::Sum, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        let at = Location::caller();
        let (sizes, shape) = split(self, axis)?;
        if sizes.n == 0 {
            self.storage().use_on(None, |_, _| Ok(()))?;
            let UninitArray(array) = self.target().uninit_at::<T::Sum, _>(shape, at)?;
            return UninitArray(array).fill(T::Sum::zeroed());
        }
        let target = &self.target();
        recast(reduced::<T::Total, _, _, _, _>(Reduction::Sum, self, sizes, target, shape, at)?, at)
    }

    /// Returns the means along `axis`. The result lacks that axis. Does not wait.
    ///
    /// # Errors
    ///
    /// The array has no such axis, or the axis has length 0; the errors of [`sum`](ArrayBase::sum).
    #[track_caller]
    pub fn mean_axis(&self, axis: usize) -> Result<DeviceArray<T::Mean, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        let at = Location::caller();
        let (sizes, shape) = split(self, axis)?;
        if sizes.n == 0 {
            return Err(nothing("mean", self.shape()));
        }
        let target = &self.target();
        let means = reduced::<f64, _, _, _, _>(Reduction::Total, self, sizes, target, shape, at)?;
        let (window, count) = (means.window(), Side::Scalar((sizes.n as f64).to_bits()));
        enqueue(
            Op::Arithmetic(Arithmetic::Divide),
            Type::F64,
            &window,
            &Side::Array(window),
            &count,
        )?;
        recast(means, at)
    }
}

/// Minima and maxima. If an element is NaN, the result is NaN. -0.0 is less than 0.0.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let a = target.array(&gpuheap::ndarray::array![[1.5_f32, -2.0], [4.0, 0.0]])?;
/// assert_eq!((a.min()?, a.max()?), (-2.0, 4.0));
/// assert_eq!(a.max_axis(1)?.to_vec()?, [1.5, 4.0]);
/// # Ok(()) }
/// ```
impl<S: ArrayData, T: Number, D: Dimension> ArrayBase<S, T, D> {
    /// Returns the least element. Waits.
    ///
    /// # Errors
    ///
    /// The array is empty; the array was freed; the errors of [`Target::uninit`], for temporary
    /// memory; a driver error.
    #[track_caller]
    pub fn min(&self) -> Result<T, Error> {
        read_one(Reduction::Min, self, Location::caller())?
            .ok_or_else(|| nothing("least element", self.shape()))
    }

    /// Returns the greatest element. Waits.
    ///
    /// # Errors
    ///
    /// The errors of [`min`](ArrayBase::min).
    #[track_caller]
    pub fn max(&self) -> Result<T, Error> {
        read_one(Reduction::Max, self, Location::caller())?
            .ok_or_else(|| nothing("greatest element", self.shape()))
    }

    /// Returns the least elements along `axis`. The result lacks that axis. Does not wait.
    ///
    /// # Errors
    ///
    /// The array has no such axis, or the axis has length 0; the errors of [`min`](ArrayBase::min).
    #[track_caller]
    pub fn min_axis(&self, axis: usize) -> Result<DeviceArray<T, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        extremes(Reduction::Min, "least element", self, axis, Location::caller())
    }

    /// Returns the greatest elements along `axis`. The result lacks that axis. Does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`min_axis`](ArrayBase::min_axis).
    #[track_caller]
    pub fn max_axis(&self, axis: usize) -> Result<DeviceArray<T, D::Smaller>, Error>
    where
        D: RemoveAxis,
    {
        extremes(Reduction::Max, "greatest element", self, axis, Location::caller())
    }
}

fn extremes<S: ArrayData, T: Number, D: RemoveAxis>(
    op: Reduction,
    what: &str,
    array: &ArrayBase<S, T, D>,
    axis: usize,
    at: Caller,
) -> Result<DeviceArray<T, D::Smaller>, Error> {
    let (sizes, shape) = split(array, axis)?;
    if sizes.n == 0 {
        return Err(nothing(what, array.shape()));
    }
    reduced(op, array, sizes, &array.target(), shape, at)
}

/// Reduces all elements to one value on the host; `None` for an empty array. Waits.
pub(super) fn read_one<A: Scalar, S: ArrayData, T: Scalar, D: Dimension>(
    op: Reduction,
    array: &ArrayBase<S, T, D>,
    at: Caller,
) -> Result<Option<A>, Error> {
    if array.is_empty() {
        array.storage().use_on(None, |_, _| Ok(()))?;
        return Ok(None);
    }
    let sizes = Sizes { outer: 1, n: array.len(), inner: 1 };
    let target = array.target().kind(MemoryKind::Device);
    let one = reduced::<A, _, _, _, _>(op, array, sizes, &target, Ix1(1), at)?;
    Ok(one.to_vec()?.first().copied())
}

/// Rows of `n` elements into which an array is divided. Adjacent elements of a row are `inner`
/// elements apart.
#[derive(Clone, Copy)]
struct Sizes {
    outer: usize,
    n: usize,
    inner: usize,
}

/// Returns the product of the lengths of some axes. The product saturates only if another axis has
/// length 0, and then the product is not used.
pub(super) fn size(lengths: &[usize]) -> usize {
    lengths.iter().fold(1, |size, length| size.saturating_mul(*length))
}

/// Divides an array into rows along an axis. Returns the division, and the shape without the axis.
fn split<S: ArrayData, T: Element, D: RemoveAxis>(
    array: &ArrayBase<S, T, D>,
    axis: usize,
) -> Result<(Sizes, D::Smaller), Error> {
    let shape = array.shape();
    let Some(&n) = shape.get(axis) else {
        let advice = match shape.len() {
            0 => "which has no axis".to_owned(),
            1 => "whose only axis is 0".to_owned(),
            axes => format!("whose axes are 0 to {}", axes - 1),
        };
        return Err(ErrorKind::WrongShape
            .error(format!("there is no axis {axis} in an array of shape {shape:?}, {advice}")));
    };
    let [outer, inner] = [&shape[..axis], &shape[axis + 1..]].map(size);
    Ok((Sizes { outer, n, inner }, array.raw_dim().remove_axis(Axis(axis))))
}

/// Reduces an axis of length `n` (not 0) to one element, in as many passes as needed. Intermediate
/// results are in device memory.
fn reduced<A: Scalar, S: ArrayData, T: Scalar, D: Dimension, O: Dimension>(
    op: Reduction,
    array: &ArrayBase<S, T, D>,
    Sizes { outer, mut n, inner }: Sizes,
    target: &Target,
    shape: O,
    at: Caller,
) -> Result<DeviceArray<A, O>, Error> {
    let mut pass: Option<DeviceArray<A>> = None;
    loop {
        let partials = match outer * inner {
            0 => 1,
            _ => kernels::partials(n, inner),
        };
        let (input, op, of) = match &pass {
            None => (array.window(), op, T::TYPE),
            Some(partial) => (partial.window(), again(op), A::TYPE),
        };
        let plan = |[input, out]: [u64; 2]| kernels::reduce(op, of, outer, n, inner, out, input);
        if partials == 1 {
            let UninitArray(out) = target.uninit_at(shape, at)?;
            run([&input, &out.window()], plan)?;
            return Ok(out);
        }
        let count = Ix1(outer * partials * inner);
        let UninitArray(out) = target.kind(MemoryKind::Device).uninit_at(count, at)?;
        run([&input, &out.window()], plan)?;
        (pass, n) = (Some(out), partials);
    }
}

/// Returns the reduction that combines the results of a pass.
fn again(op: Reduction) -> Reduction {
    if op == Reduction::Total { Reduction::Sum } else { op }
}

fn nothing(what: &str, shape: &[usize]) -> Error {
    ErrorKind::WrongShape.error(format!(
        "there is no {what} of no elements (shape {shape:?}); check for an axis of length 0 first"
    ))
}
