//! Host data that arrays are made from.

use ndarray::{ArrayRef, Data, Dimension, Ix1};

use super::element::Element;

/// Host data with a shape: slices, vectors, arrays, and the arrays and views of `ndarray`.
///
/// Implementations are checked. If the number of elements does not match the shape, the call that
/// uses the data returns an error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not host data that an array is made from",
    label = "not a slice, array, vector or `ndarray` array of elements",
    note = "pass one reference to it, as in `target.array(&vec)`",
    note = "collect the items of an iterator into a `Vec` first"
)]
pub trait HostData {
    /// Type of the elements.
    type Element: Element;
    /// Number of dimensions, as a type.
    type Dim: Dimension;

    /// Returns the shape.
    fn shape(&self) -> Self::Dim;

    /// Calls `work` with the elements in row-major order. Elements in another order are copied
    /// first.
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
            // Elements of zero size are counted and not copied, because a broadcast array may have
            // 2^63 of them.
            // SAFETY: elements of zero size take no memory, and all of them are at the address of
            // the first. If the array is empty, the pointer is still aligned and not null.
            return work(unsafe { std::slice::from_raw_parts(array.as_ptr(), array.len()) });
        }
        let standard = array.as_standard_layout();
        match standard.as_slice() {
            Some(elements) => work(elements),
            // Unreachable: an array in standard layout is a slice.
            None => work(&array.iter().copied().collect::<Vec<T>>()),
        }
    }
}
