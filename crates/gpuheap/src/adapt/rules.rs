//! Rules for types of the standard library.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};
use std::rc::Rc;
use std::sync::Arc;

use num_complex::Complex;

use super::{Adapt, ElementRule, Elements, Group, Groups, Item, Structures, Upload};
use crate::array::{DeviceArray, HostData};
use crate::error::Error;

/// A type that stays the same when it is uploaded or downloaded. If the type of a field has no type
/// parameter, it has to be such a type.
#[diagnostic::on_unimplemented(
    message = "a field of type `{Self}` is not left as it is by adapting, and its type cannot change",
    note = "make what is to be adapted a type parameter of the struct, or mark the field with `#[adapt(same)]` to have it cloned"
)]
pub trait Stays<To>: Adapt<To, Output = Self> + Sized {}

#[diagnostic::do_not_recommend]
impl<To, T: Adapt<To, Output = T>> Stays<To> for T {}

/// Host data whose element type is from another crate, so that [`Plain`](super::Plain) cannot be
/// implemented for it. The data is uploaded as one array, and its elements keep their type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaf<A>(pub A);

impl<R: ElementRule, A: HostData> Adapt<Upload<R>> for Leaf<A> {
    type Output = DeviceArray<A::Element, A::Dim>;

    fn adapt(&self, to: &Upload<R>) -> Result<Self::Output, Error> {
        to.target().uninit_at(self.0.shape(), to.made_at())?.write_from(&self.0)
    }
}

impl<A> Item for Leaf<A> {
    type Group = Structures;
}

macro_rules! stay {
    ($group:ty: $([$($parameter:ident)?] $type:ty),*) => {
        $(
            impl<To, $($parameter: Clone)?> Adapt<To> for $type {
                type Output = $type;

                fn adapt(&self, _: &To) -> Result<$type, Error> {
                    Ok(self.clone())
                }
            }

            impl $(<$parameter>)? Item for $type {
                type Group = $group;
            }
        )*
    };
}

stay!(Elements: [] i8, [] i16, [] i32, [] i64, [] i128, [] isize);
stay!(Elements: [] u8, [] u16, [] u32, [] u64, [] u128, [] usize);
stay!(Elements: [] f32, [] f64, [] bool, [] char, [T] Complex<T>);
#[cfg(feature = "half")]
stay!(Elements: [] half::f16, [] half::bf16);
stay!(Structures: [] (), [] String, [] RangeFull);
stay!(Structures: [T] Range<T>, [T] RangeFrom<T>, [T] RangeInclusive<T>, [T] RangeTo<T>);

impl<To, T: ?Sized> Adapt<To> for PhantomData<T> {
    type Output = PhantomData<T>;

    fn adapt(&self, _: &To) -> Result<PhantomData<T>, Error> {
        Ok(PhantomData)
    }
}

impl<T: ?Sized> Item for PhantomData<T> {
    type Group = Structures;
}

impl<To, T: Item<Group: Group<T, To>>> Adapt<To> for [T] {
    type Output = <T::Group as Group<T, To>>::Vec;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        T::Group::vec(self, to)
    }
}

impl<To, T: Item<Group: Group<T, To>>> Adapt<To> for Vec<T> {
    type Output = <T::Group as Group<T, To>>::Vec;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        T::Group::vec(self, to)
    }
}

impl<T> Item for Vec<T> {
    type Group = Structures;
}

impl<To, T: Item<Group: Group<T, To>>, const N: usize> Adapt<To> for [T; N] {
    type Output = <T::Group as Group<T, To>>::Fixed<N>;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        T::Group::fixed(self, to)
    }
}

impl<T: Item, const N: usize> Item for [T; N] {
    type Group = T::Group;
}

impl<To, T: Adapt<To> + ?Sized> Adapt<To> for &T {
    type Output = T::Output;

    fn adapt(&self, to: &To) -> Result<T::Output, Error> {
        (**self).adapt(to)
    }
}

impl<T: Item + ?Sized> Item for &T {
    type Group = T::Group;
}

/// Rules for pointers. The result points to the adapted value. Several pointers to one value become
/// pointers to several values, because each pointer is adapted separately.
macro_rules! pointers {
    ($($pointer:ident)*) => {
        $(
            impl<To, T: Adapt<To> + ?Sized> Adapt<To> for $pointer<T> {
                type Output = $pointer<T::Output>;

                fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
                    Ok($pointer::new((**self).adapt(to)?))
                }
            }

            impl<T: Item + ?Sized> Item for $pointer<T> {
                type Group = T::Group;
            }
        )*
    };
}

pointers! { Box Rc Arc }

impl<T> Item for [T] {
    type Group = Structures;
}

impl<To, T: Adapt<To>> Adapt<To> for Option<T> {
    type Output = Option<T::Output>;

    fn adapt(&self, to: &To) -> Result<Option<T::Output>, Error> {
        self.as_ref().map(|value| value.adapt(to)).transpose()
    }
}

impl<T: Item> Item for Option<T> {
    type Group = T::Group;
}

impl<To, T: Adapt<To>, E: Clone> Adapt<To> for Result<T, E> {
    type Output = Result<T::Output, E>;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        match self {
            Ok(value) => Ok(Ok(value.adapt(to)?)),
            Err(error) => Ok(Err(error.clone())),
        }
    }
}

impl<T, E> Item for Result<T, E> {
    type Group = Structures;
}

impl<To, K: Clone + Eq + Hash, V: Adapt<To>, S: BuildHasher + Clone> Adapt<To>
    for HashMap<K, V, S>
{
    type Output = HashMap<K, V::Output, S>;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        let mut adapted = HashMap::with_capacity_and_hasher(self.len(), self.hasher().clone());
        for (key, value) in self {
            adapted.insert(key.clone(), value.adapt(to)?);
        }
        Ok(adapted)
    }
}

impl<K, V, S> Item for HashMap<K, V, S> {
    type Group = Structures;
}

impl<To, K: Clone + Ord, V: Adapt<To>> Adapt<To> for BTreeMap<K, V> {
    type Output = BTreeMap<K, V::Output>;

    fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
        self.iter().map(|(key, value)| Ok((key.clone(), value.adapt(to)?))).collect()
    }
}

impl<K, V> Item for BTreeMap<K, V> {
    type Group = Structures;
}

macro_rules! tuples {
    ($($first:ident $($rest:ident)*;)*) => {
        $(
            #[allow(non_snake_case, reason = "a name for the type and its value")]
            impl<To, $first: Adapt<To>, $($rest: Adapt<To>),*> Adapt<To> for ($first, $($rest),*) {
                type Output = ($first::Output, $($rest::Output),*);

                fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
                    let ($first, $($rest),*) = self;
                    Ok(($first.adapt(to)?, $($rest.adapt(to)?),*))
                }
            }

            impl<$first: Item, $($rest: Item),*> Item for ($first, $($rest),*) {
                type Group = group!($first $($rest)*);
            }
        )*
    };
}

macro_rules! group {
    ($only:ident) => { $only::Group };
    ($first:ident $($rest:ident)*) => { <$first::Group as Groups>::With<group!($($rest)*)> };
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
    A B C D E F G H I J K L;
}
