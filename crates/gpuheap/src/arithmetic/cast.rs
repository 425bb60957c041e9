//! Elements of one type as those of another.

use std::panic::Location;

use gpuheap_kernels as kernels;
use gpuheap_kernels::Type;
use ndarray::Dimension;

use super::launch::run;
use super::number::{Scalar, type_of};
use crate::array::target::Target;
use crate::array::{ArrayBase, DeviceArray, Element, Hold, UninitArray};
use crate::error::Error;

impl<S: Hold, T: Scalar, D: Dimension> ArrayBase<S, T, D> {
    /// The same numbers as elements of another type, in a new array, as by Rust's `as`: floats become
    /// integers by leaving out the fraction, with what is too large at the end of the range and NaN
    /// 0; integers become smaller ones by their low bits, and floats to the nearest. `bool` is 0 or
    /// 1, and what is not 0 becomes true. Does not wait.
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

/// As [`ArrayBase::cast`], made at a place in the program.
pub(super) fn cast<S: Hold, T: Scalar, U: Scalar, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    at: &'static Location<'static>,
) -> Result<DeviceArray<U, D>, Error> {
    made(array, T::TYPE, U::TYPE, &array.target(), at)
}

/// An array of ours as elements of another type, of its own memory if its bits stay.
pub(super) fn recast<T: Scalar, U: Scalar, D: Dimension>(
    array: DeviceArray<T, D>,
    at: &'static Location<'static>,
) -> Result<DeviceArray<U, D>, Error> {
    if T::TYPE == U::TYPE && T::TYPE != Type::Bool {
        return array.into_reinterpreted();
    }
    cast(&array, at)
}

/// The same elements as those of another type on a target of the same device; `None` where a kernel
/// does not know one of the types, or where the target is on another device.
pub(crate) fn converted<S: Hold, T: Element, U: Element, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    target: &Target,
    at: &'static Location<'static>,
) -> Option<Result<DeviceArray<U, D>, Error>> {
    let (from, to) = (type_of::<T>()?, type_of::<U>()?);
    let is_there = array.storage().context().is_same(target.stream().context());
    is_there.then(|| made(array, from, to, target, at))
}

fn made<S: Hold, T: Element, U: Element, D: Dimension>(
    array: &ArrayBase<S, T, D>,
    from: Type,
    to: Type,
    target: &Target,
    at: &'static Location<'static>,
) -> Result<DeviceArray<U, D>, Error> {
    let UninitArray(mut out) = target.uninit_at::<U, D>(array.raw_dim(), at)?;
    // A byte of a `bool` that is neither 0 nor 1 becomes 1, so those are no copies.
    if from == to && from != Type::Bool {
        out.copy_from(&array.reinterpret::<U>()?)?;
        return Ok(out);
    }
    let (input, window) = (array.window(), out.window());
    // On the stream of the new array, which is the target's.
    run([&window, &input], |[out, input]| kernels::cast(from, to, array.len(), out, input))?;
    Ok(out)
}
