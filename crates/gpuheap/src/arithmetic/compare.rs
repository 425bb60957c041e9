//! Elementwise comparisons, and reductions of the masks that they return.

use std::panic::Location;

use gpuheap_kernels::{Comparison, Reduction};
use ndarray::Dimension;

use super::number::Number;
use super::operand::{Operand, Side, broadcast_shape};
use super::operators::{Op, check_sides, enqueue};
use super::reduce::read_one;
use crate::Caller;
use crate::array::{ArrayBase, ArrayData, DeviceArray, UninitArray};
use crate::error::Error;

macro_rules! comparisons {
    ($($method:ident $op:ident $doc:literal;)*) => {
        /// Elementwise comparisons with a number or an array, by the rules of Rust's operators. A
        /// comparison with NaN is false, except `not_equal`, which is true. The result is a new
        /// array, allocated by the left side's [`target`](ArrayBase::target). Comparisons do not
        /// wait.
        ///
        /// ```
        /// # fn main() -> Result<(), gpuheap::Error> {
        /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
        /// let a = target.array(&[1.0_f32, 2.0, 3.0])?;
        /// let b = target.array(&[3.0, 2.0, 1.0])?;
        /// assert_eq!(a.less(&b)?.to_vec()?, [true, false, false]);
        /// let mask = a.greater_equal(2.0)?;
        /// assert_eq!((mask.sum()?, mask.any()?, mask.all()?), (2, true, false));
        /// # Ok(()) }
        /// ```
        impl<S: ArrayData, T: Number, D: Dimension> ArrayBase<S, T, D> {
            $(
                #[doc = $doc]
                ///
                /// # Errors
                ///
                /// The shapes cannot be broadcast together; the arrays are on different devices; an
                /// array was freed; the errors of [`Target::uninit`](crate::Target::uninit).
                #[track_caller]
                pub fn $method<R: Operand<T, D>>(
                    &self,
                    right: R,
                ) -> Result<DeviceArray<bool, R::Dim>, Error> {
                    compared(Comparison::$op, self, &right.side(), Location::caller())
                }
            )*
        }
    };
}

comparisons! {
    equal Equal "Compares each element: `self == right`. Zeros of either sign are equal.";
    not_equal NotEqual "Compares each element: `self != right`.";
    less Less "Compares each element: `self < right`.";
    less_equal LessEqual "Compares each element: `self <= right`.";
    greater Greater "Compares each element: `self > right`.";
    greater_equal GreaterEqual "Compares each element: `self >= right`.";
}

/// Reductions of masks. Each method waits for its result.
impl<S: ArrayData, D: Dimension> ArrayBase<S, bool, D> {
    /// Returns `true` if all elements are true, or if the array is empty. Waits.
    ///
    /// # Errors
    ///
    /// The array was freed; the errors of [`Target::uninit`](crate::Target::uninit).
    #[track_caller]
    pub fn all(&self) -> Result<bool, Error> {
        Ok(read_one::<bool, _, _, _>(Reduction::All, self, Location::caller())?.unwrap_or(true))
    }

    /// Returns `true` if any element is true; `false` if the array is empty. Waits.
    ///
    /// # Errors
    ///
    /// The errors of [`all`](ArrayBase::all).
    #[track_caller]
    pub fn any(&self) -> Result<bool, Error> {
        Ok(read_one::<bool, _, _, _>(Reduction::Any, self, Location::caller())?.unwrap_or(false))
    }
}

fn compared<S: ArrayData, T: Number, D: Dimension, O: Dimension>(
    op: Comparison,
    left: &ArrayBase<S, T, D>,
    right: &Side<'_>,
    at: Caller,
) -> Result<DeviceArray<bool, O>, Error> {
    let shape: O = broadcast_shape(left.shape(), right.shape())?;
    let side = Side::Array(left.window());
    check_sides(&side, right)?;
    let UninitArray(out) = left.target().uninit_at::<bool, O>(shape, at)?;
    enqueue(Op::Comparison(op), T::TYPE, &out.window(), &side, right)?;
    Ok(out)
}
