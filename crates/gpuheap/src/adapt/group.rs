//! Adapts many values of one type, to one array or to a vector of structures.
//!
//! A `Vec<f32>` is uploaded as an array; a `Vec` of structures becomes a vector of adapted
//! structures. Each type names its own rule. Choosing by the traits of a type would be ambiguous,
//! because a number has the traits for both rules.

use ndarray::{Array, ArrayView, Dimension, Ix1};

use super::{Adapt, Download, ElementRule, Plain, Upload};
use crate::array::DeviceArray;
use crate::error::{Error, ErrorKind};

/// A type that can be an item of an adapted vector. Deriving [`Adapt`](macro@crate::Adapt)
/// implements this trait too.
#[diagnostic::on_unimplemented(
    message = "there is no rule for how to adapt many of `{Self}`",
    note = "derive `gpuheap::Adapt` for a struct or an enum of your own, with `#[adapt(element)]` if it is plain data that arrays are made of"
)]
pub trait Item {
    /// [`Elements`] if many values of this type become one array, else [`Structures`].
    type Group: Groups;
}

/// Rule by which many values become one array on the device.
pub enum Elements {}

/// Rule by which many values, such as structures, are uploaded or downloaded one by one.
pub enum Structures {}

/// A rule for many values of one type: they become one array ([`Elements`]), or each is adapted
/// separately ([`Structures`]).
pub trait Groups {
    /// Rule for many values of a compound type, such as a pair. One part of the type has this rule,
    /// and the other part has the rule `Other`. It is [`Elements`] only if both rules are.
    type With<Other: Groups>: Groups;
}

impl Groups for Elements {
    type With<Other: Groups> = Other;
}

impl Groups for Structures {
    type With<Other: Groups> = Structures;
}

/// Uploads or downloads many values of type `T`. `To` is [`Upload`] or [`Download`].
pub trait Group<T, To>: Groups {
    /// Result for a vector or a slice.
    type Vec;
    /// Result for an array of `N` items.
    type Fixed<const N: usize>;
    /// Result for an array of `ndarray`.
    type Array<D: Dimension>;

    /// Adapts a slice.
    ///
    /// # Errors
    ///
    /// The errors of [`Adapt::adapt`].
    fn vec(items: &[T], to: &To) -> Result<Self::Vec, Error>;

    /// Adapts a Rust array.
    ///
    /// # Errors
    ///
    /// The errors of [`Adapt::adapt`].
    fn fixed<const N: usize>(items: &[T; N], to: &To) -> Result<Self::Fixed<N>, Error>;

    /// Adapts an array of `ndarray`.
    ///
    /// # Errors
    ///
    /// The errors of [`Adapt::adapt`].
    fn array<D: Dimension>(items: ArrayView<'_, T, D>, to: &To) -> Result<Self::Array<D>, Error>;
}

impl<T: Plain, R: ElementRule> Group<T, Upload<R>> for Elements {
    type Vec = DeviceArray<R::Of<T>>;
    type Fixed<const N: usize> = DeviceArray<R::Of<T>>;
    type Array<D: Dimension> = DeviceArray<R::Of<T>, D>;

    fn vec(items: &[T], to: &Upload<R>) -> Result<Self::Vec, Error> {
        to.array::<R, _, _>(items, Ix1(items.len()))
    }

    fn fixed<const N: usize>(items: &[T; N], to: &Upload<R>) -> Result<Self::Fixed<N>, Error> {
        to.array::<R, _, _>(items, Ix1(N))
    }

    fn array<D: Dimension>(
        items: ArrayView<'_, T, D>,
        to: &Upload<R>,
    ) -> Result<Self::Array<D>, Error> {
        let shape = items.raw_dim();
        match items.as_standard_layout().as_slice() {
            Some(elements) => to.array::<R, _, _>(elements, shape),
            // Never used, because an array in standard layout is a slice. The copy avoids a panic.
            None => to.array::<R, _, _>(&items.iter().copied().collect::<Vec<T>>(), shape),
        }
    }
}

impl<T: Clone> Group<T, Download> for Elements {
    type Vec = Vec<T>;
    type Fixed<const N: usize> = [T; N];
    type Array<D: Dimension> = Array<T, D>;

    fn vec(items: &[T], _: &Download) -> Result<Vec<T>, Error> {
        Ok(items.to_vec())
    }

    fn fixed<const N: usize>(items: &[T; N], _: &Download) -> Result<[T; N], Error> {
        Ok(items.clone())
    }

    fn array<D: Dimension>(items: ArrayView<'_, T, D>, _: &Download) -> Result<Array<T, D>, Error> {
        Ok(items.to_owned())
    }
}

impl<To, T: Adapt<To>> Group<T, To> for Structures {
    type Vec = Vec<T::Output>;
    type Fixed<const N: usize> = [T::Output; N];
    type Array<D: Dimension> = Array<T::Output, D>;

    fn vec(items: &[T], to: &To) -> Result<Vec<T::Output>, Error> {
        items.iter().map(|item| item.adapt(to)).collect()
    }

    fn fixed<const N: usize>(items: &[T; N], to: &To) -> Result<[T::Output; N], Error> {
        let adapted: Vec<T::Output> = Self::vec(items, to)?;
        adapted.try_into().map_err(|_| ErrorKind::WrongShape.error(format!("not {N} items")))
    }

    fn array<D: Dimension>(
        items: ArrayView<'_, T, D>,
        to: &To,
    ) -> Result<Array<T::Output, D>, Error> {
        let adapted: Result<Vec<T::Output>, Error> =
            items.iter().map(|item| item.adapt(to)).collect();
        Array::from_shape_vec(items.raw_dim(), adapted?)
            .map_err(|error| ErrorKind::WrongShape.error(error.to_string()))
    }
}
