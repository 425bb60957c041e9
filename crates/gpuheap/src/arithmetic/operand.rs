//! Right sides of operations, and the shape to which both sides are broadcast.

use gpuheap_kernels as kernels;
use ndarray::{DimMax, Dimension};

use super::launch::Window;
use super::number::Number;
use crate::array::{ArrayBase, ArrayData};
use crate::error::{Error, ErrorKind};

/// The right side of an operation on an array of `T` with dimensions `D`. It is a number that is
/// used for each element, or an array that can be broadcast. An array is passed by reference or
/// value.
///
/// Shapes are compared from their last axes on. Two axes match if their lengths are equal, or if
/// one of them has length 1 or is missing. An axis of length 1, or a missing one, is repeated.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be on the right of an array of `{T}`",
    label = "neither a `{T}` nor an array of `{T}`",
    note = "both sides have elements of the same type: cast one of them",
    note = "the result of an operator is a `Result`: write `(&a * 2.0)?` before it goes on"
)]
pub trait Operand<T, D: Dimension>: sealed::AsSide {
    /// The dimensions of the result.
    type Dim: Dimension;
}

impl<T: Number, D: Dimension> Operand<T, D> for T {
    type Dim = D;
}

impl<S: ArrayData, T: Number, D: Dimension + DimMax<E>, E: Dimension> Operand<T, D>
    for ArrayBase<S, T, E>
{
    type Dim = <D as DimMax<E>>::Output;
}

impl<S: ArrayData, T: Number, D: Dimension + DimMax<E>, E: Dimension> Operand<T, D>
    for &ArrayBase<S, T, E>
{
    type Dim = <D as DimMax<E>>::Output;
}

/// Operand of an operation, as kernels take it: the bits of a number, or the memory of an array.
#[derive(Clone, Copy)]
pub(crate) enum Side<'a> {
    /// The bits of a number.
    Scalar(u64),
    Array(Window<'a>),
}

mod sealed {
    use super::{ArrayBase, ArrayData, Dimension, Number, Side};

    pub trait AsSide {
        /// Returns the operand in the form that kernels take.
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed: nobody outside can call it")]
        fn side(&self) -> Side<'_>;
    }

    #[allow(private_interfaces)]
    impl<T: Number> AsSide for T {
        fn side(&self) -> Side<'_> {
            Side::Scalar(self.bits())
        }
    }

    #[allow(private_interfaces)]
    impl<S: ArrayData, T: Number, E: Dimension> AsSide for ArrayBase<S, T, E> {
        fn side(&self) -> Side<'_> {
            Side::Array(self.window())
        }
    }

    #[allow(private_interfaces)]
    impl<S: ArrayData, T: Number, E: Dimension> AsSide for &ArrayBase<S, T, E> {
        fn side(&self) -> Side<'_> {
            Side::Array(self.window())
        }
    }
}

impl Side<'_> {
    /// Returns the shape; empty for a number.
    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Side::Scalar(_) => &[],
            Side::Array(array) => array.shape,
        }
    }
}

/// Returns the shape to which both sides are broadcast.
pub(super) fn broadcast_shape<O: Dimension>(left: &[usize], right: &[usize]) -> Result<O, Error> {
    let axes = left.len().max(right.len());
    let mut shape = O::zeros(axes);
    let at = |of: &[usize], axis: usize| (axis + of.len()).checked_sub(axes).map_or(1, |at| of[at]);
    for (axis, length) in shape.slice_mut().iter_mut().enumerate() {
        *length = match (at(left, axis), at(right, axis)) {
            (one, other) if one == other => one,
            (1, other) => other,
            (one, 1) => one,
            (one, other) => {
                return Err(ErrorKind::WrongShape.error(format!(
                    "the shapes {left:?} and {right:?} do not go together: counted from the last, \
                     axis {} has length {one} in one and {other} in the other; make them equal, or \
                     one of them 1",
                    axes - axis
                )));
            }
        };
    }
    Ok(shape)
}

/// Returns the strides, in elements, with which an array of shape `from` is read in shape `to`. The
/// stride of a repeated axis is 0.
pub(super) fn strides(from: &[usize], to: &[usize]) -> Vec<isize> {
    let mut strides = vec![0; to.len()];
    let mut step = 1_isize;
    for ((stride, to), length) in strides.iter_mut().zip(to).rev().zip(from.iter().rev()) {
        if length == to {
            *stride = step;
        }
        step = step.saturating_mul(*length as isize);
    }
    strides
}

/// Converts the left or right side of an operation to the operand of a kernel.
pub(super) fn operand<'a>(
    side: &Side<'_>,
    address: u64,
    strides: &'a [isize],
) -> kernels::Operand<'a> {
    match side {
        Side::Scalar(bits) => kernels::Operand::Scalar(*bits),
        Side::Array(_) => kernels::Operand::Array { address, strides },
    }
}
