//! Matrices that store only part of their elements.

/// A square matrix with zeros except on its diagonal. It wraps the diagonal, an array with one
/// axis.
///
/// The wrapped value is a [`DeviceArray`](crate::DeviceArray), a view of one, an array of
/// `ndarray`, a vector or any other value. The wrapper states the meaning of the elements, and
/// computes nothing.
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let matrix = gpuheap::Diagonal(target.array(&[1, 2])?);
/// assert_eq!(format!("{matrix:?}"), "Diagonal(DeviceArray<i32>([2], device) [1, 2])");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagonal<A>(pub A);

/// A matrix with zeros below its diagonal. Stored elements below the diagonal are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpperTriangular<A>(pub A);

/// A matrix with zeros above its diagonal. Stored elements above the diagonal are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerTriangular<A>(pub A);

/// A square matrix that equals its transpose. Only one stored triangle and the diagonal are used.
/// Stored elements of the other triangle are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symmetric<A> {
    /// Stored elements.
    pub matrix: A,
    /// Triangle whose elements are used.
    pub from: Triangle,
}

impl<A> Symmetric<A> {
    /// Makes a symmetric matrix from its upper triangle.
    pub fn from_upper(matrix: A) -> Symmetric<A> {
        Symmetric { matrix, from: Triangle::Upper }
    }

    /// Makes a symmetric matrix from its lower triangle.
    pub fn from_lower(matrix: A) -> Symmetric<A> {
        Symmetric { matrix, from: Triangle::Lower }
    }
}

/// One half of a matrix, with its diagonal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Triangle {
    /// Elements on and above the diagonal.
    #[default]
    Upper,
    /// Elements on and below the diagonal.
    Lower,
}

/// The transpose of a matrix. Its elements are not moved. The transpose of a vector is a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transposed<A>(pub A);
