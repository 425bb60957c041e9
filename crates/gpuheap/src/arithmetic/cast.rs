//! Conversion of elements to another type.

use std::panic::Location;

use gpuheap_kernels as kernels;
use gpuheap_kernels::Type;
use ndarray::Dimension;

use super::launch::run;
use super::number::{Scalar, type_of};
use crate::Caller;
use crate::array::target::Target;
use crate::array::{ArrayBase, ArrayData, DeviceArray, Element, UninitArray};
use crate::error::Error;

impl<S: ArrayData, T: Scalar, D: Dimension> ArrayBase<S, T, D> {
    /// Converts the elements to another type, by the rules of Rust's `as`. Returns a new array of
    /// the same shape.
    ///
    /// * Float to integer: truncates, saturates at the ends of the range, and turns NaN into 0.
    /// * Integer to smaller integer: keeps the low bits.
    /// * To float: rounds to the nearest.
    /// * From `bool`: 0 or 1. To `bool`: `true` unless the element is 0.
    ///
    /// Does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
    /// let a = target.array(&[-1.5_f64, 0.0, 300.7])?;
    /// assert_eq!(a.cast::<u8>()?.to_vec()?, [0, 0, 255]);
    /// assert_eq!(a.cast::<bool>()?.to_vec()?, [true, false, true]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The array was freed; the errors of [`Target::uninit`]; a driver error.
    #[track_caller]
    pub fn cast<U: Scalar>(&self) -> Result<DeviceArray<U, D>, Error> {
        cast(self, Location::caller())
    }
}

/// Converts as [`ArrayBase::cast`] does, and records `at` as the line that made the result.
pub(super) fn cast<S: ArrayData, T: Scalar, U: Scalar, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    at: Caller,
) -> Result<DeviceArray<U, D>, Error> {
    cast_to(array, T::TYPE, U::TYPE, &array.target(), at)
}

/// Converts an owned array to another element type. If the conversion does not change the bits, the
/// result reuses the memory.
pub(super) fn recast<T: Scalar, U: Scalar, D: Dimension>(
    array: DeviceArray<T, D>,
    at: Caller,
) -> Result<DeviceArray<U, D>, Error> {
    if T::TYPE == U::TYPE && T::TYPE != Type::Bool {
        return array.into_reinterpreted();
    }
    cast(&array, at)
}

/// Converts elements to another type on a target of the same device. Returns `None` if no kernel
/// supports one of the types, or if the target is on another device.
pub(crate) fn converted<S: ArrayData, T: Element, U: Element, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    target: &Target,
    at: Caller,
) -> Option<Result<DeviceArray<U, D>, Error>> {
    let (from, to) = (type_of::<T>()?, type_of::<U>()?);
    let is_there = array.storage().context().is_same(target.stream().context());
    is_there.then(|| cast_to(array, from, to, target, at))
}

fn cast_to<S: ArrayData, T: Element, U: Element, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    from: Type,
    to: Type,
    target: &Target,
    at: Caller,
) -> Result<DeviceArray<U, D>, Error> {
    let UninitArray(mut out) = target.uninit_at::<U, D>(array.raw_dim(), at)?;
    // A byte of a `bool` that is neither 0 nor 1 becomes 1, so `bool` to `bool` is not a plain
    // copy.
    if from == to && from != Type::Bool {
        out.copy_from(&array.reinterpret::<U>()?)?;
        return Ok(out);
    }
    let (input, window) = (array.window(), out.window());
    // The kernel runs on the target's stream.
    run([&window, &input], |[out, input]| kernels::cast(from, to, array.len(), out, input))?;
    Ok(out)
}
