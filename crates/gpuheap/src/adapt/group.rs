//! What becomes of many of a type: one array, or as many structures.
//!
//! A `Vec<f32>` is an array to be uploaded, a `Vec` of structures is a vector of what becomes of
//! them. Every type says which it is: were it decided by what traits a type happens to have, both
//! rules would fit a number.

use ndarray::{Array, ArrayView, Dimension, Ix1};

use super::{Adapt, Download, ElementRule, Plain, Upload};
use crate::array::DeviceArray;
use crate::error::{Error, ErrorKind};

/// What can stand in a vector that is adapted. Derived together with [`Adapt`](macro@crate::Adapt).
#[diagnostic::on_unimplemented(
    message = "there is no rule for how to adapt many of `{Self}`",
    note = "derive `gpuheap::Adapt` for a struct or an enum of your own, with `#[adapt(element)]` if it is plain data that arrays are made of"
)]
pub trait Item {
    /// [`Elements`] or [`Structures`].
    type Group: Groups;
}

/// Many of them are an array on the device.
pub enum Elements {}

/// Many of them are as many of what becomes of one.
pub enum Structures {}

/// [`Elements`] or [`Structures`].
pub trait Groups {
    /// What a type is that holds this and another: elements only if both are.
    type With<Other: Groups>: Groups;
}

impl Groups for Elements {
    type With<Other: Groups> = Other;
}

impl Groups for Structures {
    type With<Other: Groups> = Structures;
}

/// What becomes of many `T` on the way to `To`.
pub trait Group<T, To>: Groups {
    /// Of a vector or a slice of them.
    type Vec;
    /// Of exactly so many.
    type Fixed<const N: usize>;
    /// Of an array of `ndarray`.
    type Array<D: Dimension>;

    /// Makes that of it.
    ///
    /// # Errors
    ///
    /// The errors of [`Adapt::adapt`].
    fn vec(items: &[T], to: &To) -> Result<Self::Vec, Error>;

    /// The same.
    ///
    /// # Errors
    ///
    /// The errors of [`Adapt::adapt`].
    fn fixed<const N: usize>(items: &[T; N], to: &To) -> Result<Self::Fixed<N>, Error>;

    /// The same.
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
            // Never: a standard layout is a slice.
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
