//! Rules by which arrays of `ndarray` and of gpuheap are adapted.

use ndarray::{Array, Data, Dimension};

use super::{Adapt, Download, ElementRule, Group, Item, Plain, Structures, Upload};
use crate::array::DeviceArray;
use crate::array::{
    ArrayBase, ArrayData, Diagonal, Element, LowerTriangular, Owned, Shared, SharedArray,
    Symmetric, Transposed, UpperTriangular, View, ViewMut,
};
use crate::error::Error;

impl<To, T, S, D> Adapt<To> for ndarray::ArrayBase<S, D>
where
    T: Item<Group: Group<T, To>>,
    S: Data<Elem = T>,
    D: Dimension,
{
    type Output = <T::Group as Group<T, To>>::Array<D>;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        T::Group::array(self.view(), to)
    }
}

impl<S: ndarray::RawData, D> Item for ndarray::ArrayBase<S, D> {
    type Group = Structures;
}

impl<S: ArrayData, T: Element, D: Dimension> Adapt<Download> for ArrayBase<S, T, D> {
    type Output = Array<T, D>;

    fn adapt(&self, to: &Download) -> Result<Array<T, D>, Error> {
        to.array(self)
    }
}

macro_rules! copied {
    ($($held:ty),*) => {
        $(
            impl<R: ElementRule, T: Plain, D: Dimension> Adapt<Upload<R>> for ArrayBase<$held, T, D> {
                type Output = DeviceArray<R::Of<T>, D>;

                fn adapt(&self, to: &Upload<R>) -> Result<Self::Output, Error> {
                    to.copy::<R, _, _, _>(self)
                }
            }
        )*
    };
}

copied!(Owned, View<'_>, ViewMut<'_>);

impl<R: ElementRule, T: Plain, D: Dimension> Adapt<Upload<R>> for ArrayBase<Shared, T, D> {
    type Output = SharedArray<R::Of<T>, D>;

    fn adapt(&self, to: &Upload<R>) -> Result<Self::Output, Error> {
        to.share(self)
    }
}

impl<S, T, D> Item for ArrayBase<S, T, D> {
    type Group = Structures;
}

macro_rules! wrappers {
    ($($wrapper:ident),*) => {
        $(
            impl<To, A: Adapt<To>> Adapt<To> for $wrapper<A> {
                type Output = $wrapper<A::Output>;

                fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
                    Ok($wrapper(self.0.adapt(to)?))
                }
            }

            impl<A> Item for $wrapper<A> {
                type Group = Structures;
            }
        )*
    };
}

wrappers!(Diagonal, UpperTriangular, LowerTriangular, Transposed);

impl<To, A: Adapt<To>> Adapt<To> for Symmetric<A> {
    type Output = Symmetric<A::Output>;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        Ok(Symmetric { matrix: self.matrix.adapt(to)?, from: self.from })
    }
}

impl<A> Item for Symmetric<A> {
    type Group = Structures;
}
