//! Host data that arrays are made from.

use ndarray::{ArrayRef, Data, Dimension, Ix1};

use super::element::Element;

/// Host data with a shape: slices, vectors, arrays and `ndarray`'s arrays and views.
///
/// Nothing relies on an implementation to be right: one whose shape has another number of elements
/// than it hands over is an error where it is used.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not host data that an array is made from",
    label = "not a slice, array, vector or `ndarray` array of elements",
    note = "pass one reference to it, as in `target.array(&vec)`",
    note = "collect the items of an iterator into a `Vec` first"
)]
pub trait HostData {
    /// What it holds.
    type Element: Element;
    /// Its dimensions.
    type Dim: Dimension;

    /// Its shape.
    fn shape(&self) -> Self::Dim;

    /// Hands its elements over in row-major order. They are copied first where they are laid out
    /// in another order.
    fn with_elements<R>(&self, work: impl FnOnce(&[Self::Element]) -> R) -> R;
}

impl<T: Element> HostData for [T] {
    type Element = T;
    type Dim = Ix1;

    fn shape(&self) -> Ix1 {
        Ix1(self.len())
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[T]) -> R) -> R {
        work(self)
    }
}

impl<T: Element, const N: usize> HostData for [T; N] {
    type Element = T;
    type Dim = Ix1;

    fn shape(&self) -> Ix1 {
        Ix1(N)
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[T]) -> R) -> R {
        work(self)
    }
}

impl<T: Element> HostData for Vec<T> {
    type Element = T;
    type Dim = Ix1;

    fn shape(&self) -> Ix1 {
        Ix1(self.len())
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[T]) -> R) -> R {
        work(self)
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> HostData for ndarray::ArrayBase<S, D> {
    type Element = T;
    type Dim = D;

    fn shape(&self) -> D {
        self.raw_dim()
    }

    fn with_elements<R>(&self, work: impl FnOnce(&[T]) -> R) -> R {
        let array: &ArrayRef<T, D> = self;
        if size_of::<T>() == 0 {
            // Elements of no size are counted and not copied: a broadcast one may be there 2^63 times.
            // SAFETY: such elements take no memory, all of them lie at the first one's address, and
            // where there are none the pointer is aligned and not null all the same.
            return work(unsafe { std::slice::from_raw_parts(array.as_ptr(), array.len()) });
        }
        let standard = array.as_standard_layout();
        match standard.as_slice() {
            Some(elements) => work(elements),
            // Never: a standard layout is a slice.
            None => work(&array.iter().copied().collect::<Vec<T>>()),
        }
    }
}
