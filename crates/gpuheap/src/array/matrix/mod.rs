//! Matrices of which an array holds only what is needed.

mod debug;

pub use debug::Printed;

/// A square matrix with zeros everywhere but on its diagonal, which is what is stored: an array of
/// one axis.
///
/// Like the other wrappers it holds anything: a [`DeviceArray`](crate::DeviceArray), a view of one,
/// an array of `ndarray`, a vector. It says what the elements mean and computes nothing. Printed, it
/// is the matrix, with a dot for each zero that is not stored:
///
/// ```
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let matrix = gpuheap::Diagonal(target.array(&[1, 2])?);
/// assert_eq!(
///     format!("{matrix:?}"),
///     "Diagonal(DeviceArray<i32>([2], device))\n[[1, ⋅],\n [⋅, 2]]"
/// );
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Diagonal<A>(pub A);

/// A matrix with zeros below its diagonal. What the array has there means nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct UpperTriangular<A>(pub A);

/// A matrix with zeros above its diagonal. What the array has there means nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LowerTriangular<A>(pub A);

/// A square matrix that is its own transpose. Of the array one triangle counts, the diagonal
/// included; what the other one has means nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Symmetric<A> {
    /// What holds the elements.
    pub matrix: A,
    /// The triangle that counts.
    pub from: Triangle,
}

impl<A> Symmetric<A> {
    /// The matrix with that upper triangle.
    pub fn from_upper(matrix: A) -> Symmetric<A> {
        Symmetric { matrix, from: Triangle::Upper }
    }

    /// The matrix with that lower triangle.
    pub fn from_lower(matrix: A) -> Symmetric<A> {
        Symmetric { matrix, from: Triangle::Lower }
    }
}

/// One half of a matrix, its diagonal included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Triangle {
    /// On and above the diagonal.
    #[default]
    Upper,
    /// On and below the diagonal.
    Lower,
}

/// The transpose of a matrix, without moving an element. The transpose of a vector is a row.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Transposed<A>(pub A);
