//! Operators: `+`, `-`, `*`, `/`, unary `-` and `!`, and the methods that work in place.

use crate::Caller;
use std::ops::{Add, Div, Mul, Neg, Not, Sub};
use std::panic::Location;

use gpuheap_kernels as kernels;
use gpuheap_kernels::{Arithmetic, Comparison, Type, Unary};
use ndarray::Dimension;

use super::launch::{Window, check_device, run};
use super::number::{Number, Signed};
use super::operand::{Operand, Side, broadcast_shape, operand, strides};
use crate::array::{ArrayBase, ArrayData, ArrayDataMut, DeviceArray, Element, UninitArray};
use crate::error::{Error, ErrorKind};

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident $in_place:ident $named:ident, $verb:literal, $noun:literal;)*) => {
        $(
            /// Returns a new array, allocated by the left side's [`target`](ArrayBase::target).
            /// Does not wait. See the [rules](crate::arithmetic#operators).
            impl<S: ArrayData, T: Number, D: Dimension, R: Operand<T, D>> $trait<R> for &ArrayBase<S, T, D> {
                type Output = Result<DeviceArray<T, R::Dim>, Error>;

                #[track_caller]
                fn $method(self, right: R) -> Self::Output {
                    let (left, right) = (Side::Array(self.window()), right.side());
                    apply(Op::Arithmetic(Arithmetic::$op), self, left, right, Location::caller())
                }
            }

            /// Reuses the left side's memory if the result has the left side's shape. Otherwise
            /// returns a new array.
            impl<T: Number, D: Dimension, R: Operand<T, D>> $trait<R> for DeviceArray<T, D> {
                type Output = Result<DeviceArray<T, R::Dim>, Error>;

                #[track_caller]
                fn $method(self, right: R) -> Self::Output {
                    let at = Location::caller();
                    if !is_kept(&self, &right.side()) {
                        let (left, right) = (Side::Array(self.window()), right.side());
                        return apply(Op::Arithmetic(Arithmetic::$op), &self, left, right, at);
                    }
                    let shape = broadcast_shape(self.shape(), right.side().shape())?;
                    let (left, right) = (Side::Array(self.window()), right.side());
                    enqueue(Op::Arithmetic(Arithmetic::$op), T::TYPE, &self.window(), &left, &right)?;
                    self.into_shape::<R::Dim>(shape)
                }
            }
        )*

        /// Operators as methods, for chains. Each method returns a new array, like the operator on
        /// references, and does not wait. See the [rules](crate::arithmetic#operators).
        ///
        /// ```
        /// # fn main() -> Result<(), gpuheap::Error> {
        /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
        /// let a = target.array(&[1.0_f32, 2.0])?;
        /// let b = target.array(&[3.0, 4.0])?;
        /// assert_eq!(a.try_add(&b)?.try_mul(2.0)?.to_vec()?, [8.0, 12.0]);
        /// assert_eq!(a.try_sub_from(1.0)?.try_neg()?.to_vec()?, [0.0, 1.0]);
        /// # Ok(()) }
        /// ```
        impl<S: ArrayData, T: Number, D: Dimension> ArrayBase<S, T, D> {
            $(
                #[doc = $noun]
                ///
                /// # Errors
                ///
                /// The shapes cannot be broadcast together; the arrays are on different devices; an
                /// array was freed; the errors of [`Target::uninit`](crate::Target::uninit); a
                /// driver error.
                #[track_caller]
                pub fn $named<R: Operand<T, D>>(
                    &self,
                    right: R,
                ) -> Result<DeviceArray<T, R::Dim>, Error> {
                    self.$method(right)
                }
            )*

            /// Returns a number minus each element: `left - self`.
            ///
            /// # Errors
            ///
            /// The array was freed; the errors of [`Target::uninit`](crate::Target::uninit); a
            /// driver error.
            #[track_caller]
            pub fn try_sub_from(&self, left: T) -> Result<DeviceArray<T, D>, Error> {
                number_on_the_left(Arithmetic::Subtract, left, self, Location::caller())
            }

            /// Returns a number divided by each element: `left / self`.
            ///
            /// # Errors
            ///
            /// The errors of [`try_sub_from`](ArrayBase::try_sub_from).
            #[track_caller]
            pub fn try_div_into(&self, left: T) -> Result<DeviceArray<T, D>, Error> {
                number_on_the_left(Arithmetic::Divide, left, self, Location::caller())
            }
        }

        /// Arithmetic in place. It neither waits nor allocates.
        ///
        /// ```
        /// # fn main() -> Result<(), gpuheap::Error> {
        /// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
        /// let mut a = target.array(&[1_i32, 2, 3, 4])?;
        /// a.mul_assign(10)?;
        /// let b = target.array(&[1, 1])?;
        /// a.slice_mut(2..)?.sub_assign(&b)?;
        /// assert_eq!(a.to_vec()?, [10, 20, 29, 39]);
        /// # Ok(()) }
        /// ```
        impl<S: ArrayDataMut, T: Number, D: Dimension> ArrayBase<S, T, D> {
            $(
                #[doc = $verb]
                ///
                /// # Errors
                ///
                /// The right side cannot be broadcast to this array's shape; it overlaps this array
                /// but starts at another address or has another length; it is on another device; an
                /// array was freed; a driver error.
                pub fn $in_place<R: Operand<T, D>>(&mut self, right: R) -> Result<(), Error> {
                    in_place(Op::Arithmetic(Arithmetic::$op), T::TYPE, &self.window(), &right.side())
                }
            )*
        }
    };
}

operators! {
    Add add Add add_assign try_add, "Adds a number or an array to each element.",
        "The sum with a number or an array, element by element: `self + right`.";
    Sub sub Subtract sub_assign try_sub, "Subtracts a number or an array from each element.",
        "The difference from a number or an array, element by element: `self - right`.";
    Mul mul Multiply mul_assign try_mul, "Multiplies each element by a number or an array.",
        "The product with a number or an array, element by element: `self * right`.";
    Div div Divide div_assign try_div, "Divides each element by a number or an array.",
        "The quotient by a number or an array, element by element: `self / right`.";
}

/// Operators with a number on the left. The traits are foreign, so they are implemented for each
/// number type.
macro_rules! numbers_on_the_left {
    ($($of:ty)*) => {
        $(
            numbers_on_the_left!($of: Add add Add, Sub sub Subtract, Mul mul Multiply, Div div Divide);
        )*
    };
    ($of:ty: $($trait:ident $method:ident $op:ident),*) => {
        $(
            /// Allocates the result from the array's [`target`](ArrayBase::target).
            impl<S: ArrayData, D: Dimension> $trait<&ArrayBase<S, $of, D>> for $of {
                type Output = Result<DeviceArray<$of, D>, Error>;

                #[track_caller]
                fn $method(self, right: &ArrayBase<S, $of, D>) -> Self::Output {
                    number_on_the_left(Arithmetic::$op, self, right, Location::caller())
                }
            }

            /// Stores the result in the array's own memory.
            impl<D: Dimension> $trait<DeviceArray<$of, D>> for $of {
                type Output = Result<DeviceArray<$of, D>, Error>;

                fn $method(self, right: DeviceArray<$of, D>) -> Self::Output {
                    let (out, left) = (right.window(), Side::Scalar(bits(self)));
                    enqueue(Op::Arithmetic(Arithmetic::$op), type_of(&self), &out, &left, &Side::Array(out))?;
                    Ok(right)
                }
            }
        )*
    };
}

numbers_on_the_left!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64);

fn number_on_the_left<S: ArrayData, T: Number, D: Dimension>(
    op: Arithmetic,
    left: T,
    right: &ArrayBase<S, T, D>,
    at: Caller,
) -> Result<DeviceArray<T, D>, Error> {
    apply(Op::Arithmetic(op), right, Side::Scalar(left.bits()), Side::Array(right.window()), at)
}

fn bits<T: Number>(number: T) -> u64 {
    number.bits()
}

fn type_of<T: Number>(_: &T) -> Type {
    T::TYPE
}

macro_rules! unary_operators {
    ($($verb:literal $trait:ident $method:ident $op:ident [$($number:tt)*] $element:ty, $of:expr;)*) => {
        $(
            #[doc = concat!($verb, " each element, in a new array.")]
            impl<S: ArrayData, $($number)* D: Dimension> $trait for &ArrayBase<S, $element, D> {
                type Output = Result<DeviceArray<$element, D>, Error>;

                #[track_caller]
                fn $method(self) -> Self::Output {
                    apply_unary(Unary::$op, $of, self, Location::caller())
                }
            }

            #[doc = concat!($verb, " each element in the array's own memory.")]
            impl<$($number)* D: Dimension> $trait for DeviceArray<$element, D> {
                type Output = Result<DeviceArray<$element, D>, Error>;

                fn $method(self) -> Self::Output {
                    unary(Unary::$op, $of, &self.window(), &self.window())?;
                    Ok(self)
                }
            }
        )*
    };
}

unary_operators! {
    "Negates" Neg neg Negate [T: Signed,] T, T::TYPE;
    "Inverts" Not not Not [] bool, Type::Bool;
}

impl<S: ArrayData, T: Signed, D: Dimension> ArrayBase<S, T, D> {
    /// Negates each element, in a new array: `-self`. The smallest integer of a type stays
    /// unchanged.
    ///
    /// # Errors
    ///
    /// The array was freed; the errors of [`Target::uninit`](crate::Target::uninit); a driver
    /// error.
    #[track_caller]
    pub fn try_neg(&self) -> Result<DeviceArray<T, D>, Error> {
        self.neg()
    }
}

impl<S: ArrayData, D: Dimension> ArrayBase<S, bool, D> {
    /// Inverts each element, in a new array: `!self`.
    ///
    /// # Errors
    ///
    /// The errors of [`try_neg`](ArrayBase::try_neg).
    #[track_caller]
    pub fn try_not(&self) -> Result<DeviceArray<bool, D>, Error> {
        self.not()
    }
}

/// An elementwise operation on a left and a right side.
#[derive(Clone, Copy)]
pub(super) enum Op {
    Arithmetic(Arithmetic),
    Comparison(Comparison),
}

/// Returns the result of an operation on `left` and `right`, in a new array of `like`'s target.
fn apply<S: ArrayData, T: Number, D: Dimension, O: Dimension>(
    op: Op,
    like: &ArrayBase<S, T, D>,
    left: Side<'_>,
    right: Side<'_>,
    at: Caller,
) -> Result<DeviceArray<T, O>, Error> {
    let shape: O = broadcast_shape(left.shape(), right.shape())?;
    check_sides(&left, &right)?;
    let UninitArray(out) = like.target().uninit_at::<T, O>(shape, at)?;
    enqueue(op, T::TYPE, &out.window(), &left, &right)?;
    Ok(out)
}

fn apply_unary<S: ArrayData, T: Element, D: Dimension>(
    op: Unary,
    of: Type,
    input: &ArrayBase<S, T, D>,
    at: Caller,
) -> Result<DeviceArray<T, D>, Error> {
    let UninitArray(out) = input.target().uninit_at(input.raw_dim(), at)?;
    unary(op, of, &out.window(), &input.window())?;
    Ok(out)
}

fn unary(op: Unary, of: Type, out: &Window<'_>, input: &Window<'_>) -> Result<(), Error> {
    run([input, out], |[input, to]| kernels::unary(op, of, out.len(), to, input))
}

/// Writes the result of an operation on two sides to `out`. The array `out` has the result's shape
/// and may be one of the sides.
pub(super) fn enqueue(
    op: Op,
    of: Type,
    out: &Window<'_>,
    left: &Side<'_>,
    right: &Side<'_>,
) -> Result<(), Error> {
    let steps = [left, right].map(|side| strides(side.shape(), out.shape));
    enqueue_strided(op, of, out, [left, right], &steps)
}

/// Enqueues the operation as [`enqueue`] does, with given strides for each side.
pub(super) fn enqueue_strided(
    op: Op,
    of: Type,
    out: &Window<'_>,
    [left, right]: [&Side<'_>; 2],
    steps: &[Vec<isize>; 2],
) -> Result<(), Error> {
    // If the left side is an array, the operation runs on its stream. A number has no address, so
    // the other side's array is passed in its place.
    let (one, other) = match (left, right) {
        (Side::Array(left), Side::Array(right)) => (left, right),
        (Side::Array(array), _) | (_, Side::Array(array)) => (array, array),
        _ => (out, out),
    };
    run([one, other, out], |[one, other, to]| {
        let (left, right) = (operand(left, one, &steps[0]), operand(right, other, &steps[1]));
        match op {
            Op::Arithmetic(op) => kernels::arithmetic(op, of, out.shape, to, left, right),
            Op::Comparison(op) => kernels::comparison(op, of, out.shape, to, left, right),
        }
    })
}

/// Returns an error if the sides are on two devices.
pub(super) fn check_sides(left: &Side<'_>, right: &Side<'_>) -> Result<(), Error> {
    match (left, right) {
        (Side::Array(left), Side::Array(right)) => check_device(left, right),
        _ => Ok(()),
    }
}

fn in_place(op: Op, of: Type, out: &Window<'_>, right: &Side<'_>) -> Result<(), Error> {
    let shape: ndarray::IxDyn = broadcast_shape(out.shape, right.shape())?;
    if shape.slice() != out.shape {
        return Err(ErrorKind::WrongShape.error(format!(
            "an array of shape {:?} cannot take in place what has the shape {:?}; write the result \
             to a new array, with an operator",
            out.shape,
            shape.slice()
        )));
    }
    check_sides(&Side::Array(*out), right)?;
    if let Side::Array(right) = right
        && let Overlap::Shifted(bytes) = overlap(out, right)
    {
        return Err(ErrorKind::Overlap.error(format!(
            "the right side overlaps the array that is changed: both are windows of one memory, \
             {bytes} bytes apart, and have {} and {} bytes; copy the right side first",
            out.bytes, right.bytes
        )));
    }
    enqueue(op, of, out, &Side::Array(*out), right)
}

/// Returns `true` if the array `left` can be kept for the result of an operation, and overwritten.
fn is_kept<T: Number, D: Dimension>(left: &DeviceArray<T, D>, right: &Side<'_>) -> bool {
    let Side::Array(right) = right else { return true };
    let shape = broadcast_shape::<ndarray::IxDyn>(left.shape(), right.shape);
    // Another array may also overlap `left`, because two arrays can wrap the same memory. So all
    // arrays on the right side are checked.
    shape.is_ok_and(|shape| shape.slice() == left.shape())
        && !matches!(overlap(&left.window(), right), Overlap::Shifted(_))
}

/// Overlap of two windows. A window is the memory that an operand uses.
enum Overlap {
    /// The windows do not overlap, or one has no memory. Missing memory causes an error later.
    None,
    /// The windows are identical: they have the same bytes in the same order.
    Same,
    /// The windows overlap and are not identical. The number is the distance of their starts in
    /// bytes; it is 0 if only the lengths differ.
    Shifted(u64),
}

fn overlap(one: &Window<'_>, other: &Window<'_>) -> Overlap {
    let (Ok(first), Ok(second)) = (one.address(), other.address()) else { return Overlap::None };
    if one.bytes == 0 || other.bytes == 0 {
        return Overlap::None;
    }
    if first >= second.saturating_add(other.bytes) || second >= first.saturating_add(one.bytes) {
        return Overlap::None;
    }
    match (first.abs_diff(second), one.bytes == other.bytes) {
        (0, true) => Overlap::Same,
        (apart, _) => Overlap::Shifted(apart),
    }
}
