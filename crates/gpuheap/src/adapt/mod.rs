//! Transfer of whole structures to the device and back.
//!
//! [`Target::adapt`] uploads the arrays inside a structure and keeps its other values. [`Host`]
//! downloads the structure again:
//!
//! ```
//! use gpuheap::{Adapt, Device, DeviceArray, Host};
//! use gpuheap::ndarray::{Array1, Array2, arr1, arr2};
//!
//! #[derive(Adapt)]
//! struct Layer<W, B> {
//!     weights: W,
//!     bias: Option<B>,
//!     rate: f64,
//! }
//!
//! # fn main() -> Result<(), gpuheap::Error> {
//! let target = Device::open("emulated:1GiB")?.heap()?.target()?;
//! let layer = Layer { weights: arr2(&[[1.0, 2.0]]), bias: Some(arr1(&[3_u8])), rate: 0.5 };
//! let up: Layer<DeviceArray<f64, _>, DeviceArray<u8>> = target.adapt(&layer)?;
//! assert_eq!((up.weights.shape(), up.rate), (&[1, 2][..], 0.5));
//! let down: Layer<Array2<f64>, Array1<u8>> = Host.adapt(&up)?;
//! assert_eq!((down.weights, down.bias), (layer.weights, layer.bias));
//! # Ok(()) }
//! ```
//!
//! # Rules
//!
//! | from | to the device | to the host |
//! |---|---|---|
//! | `Vec<T>`, `[T]`, `[T; N]` of [elements](Plain) | [`DeviceArray<T>`] | unchanged |
//! | `Vec`, slice or array of other items, such as of arrays | the same container, each item adapted | the same container, each item adapted |
//! | arrays and views of `ndarray`, of elements | [`DeviceArray<T, D>`] | an array |
//! | arrays and views of `ndarray`, of other items | an array, each item adapted | an array, each item adapted |
//! | [`DeviceArray`], [`DeviceView`], [`DeviceViewMut`] | a copy on the target | an array of `ndarray` |
//! | [`SharedArray`] | a handle to the same array, if it is on the target's device in the target's kind of memory; else a copy | an array of `ndarray` |
//! | [`Diagonal`] and the other wrappers, tuples, `Option` | the wrapper, its content adapted | the wrapper, its content adapted |
//! | `Box`, `Rc`, `Arc` | a new pointer, its content adapted | a new pointer, its content adapted |
//! | `Result`, `HashMap`, `BTreeMap` | the container, values adapted, errors and keys cloned | the container, values adapted, errors and keys cloned |
//! | references | the referenced value, adapted | the referenced value, adapted |
//! | numbers, `bool`, `char`, `String`, `()`, ranges, `PhantomData` | unchanged | unchanged |
//! | sparse matrices of `sprs`, with the feature `sprs` | `DeviceCsMat` | a matrix of `sprs` |
//! | structs and enums that derive [`Adapt`] | the type with adapted parameters | the type with adapted parameters |
//! | [`Leaf`] of host data, for elements of other crates | [`DeviceArray`] | not possible |
//!
//! Any other type is a compile error. A number in a structure is not an array, and stays unchanged:
//! a count stays a count. An uploaded vector comes back as an `ndarray` array of one axis, because
//! an array on the device does not record its source.
//!
//! # Element types
//!
//! `adapt` never changes the type of elements. [`Target::cu`] converts numbers to `f32`;
//! [`Target::narrow`] converts only 64-bit floats. An empty cell means that the type stays:
//!
//! | elements | `adapt` | `narrow` | `cu` |
//! |---|---|---|---|
//! | `f64` | | `f32` | `f32` |
//! | `f32` | | | |
//! | the numbers of `half`, with the feature `half` | | | `f32` |
//! | integers | | | `f32` |
//! | `Complex<f64>` | | `Complex<f32>` | `Complex<f32>` |
//! | other `Complex` | | | `Complex<f32>` |
//! | `bool`, `char`, types of the program | | | |
//!
//! Values are rounded to the nearest, as Rust's `as` does; values too large for `f32` become
//! infinite. The indices of sparse matrices keep their type. Arrays of numbers on the target's
//! device are [cast](crate::ArrayBase::cast) there; other arrays are converted on the host.
//!
//! # Small arrays
//!
//! A structure may hold thousands of small arrays. Arrays of at most 16 KiB are uploaded together,
//! in blocks of about 1 MiB, with one allocation and one copy for each block. In all other respects
//! the arrays are independent. The memory of a block returns to the pool when the last array in it
//! is freed.
//!
//! Small arrays are downloaded together too. They are downloaded one by one if they were used on
//! different streams since the upload, or if the host can access their memory directly.

mod arrays;
mod download;
mod element;
mod group;
mod rules;
#[cfg(feature = "sprs")]
mod sparse;
mod upload;

pub use download::{Download, Host};
pub use element::{Cu, ElementRule, Narrow, Plain, Same};
pub use group::{Elements, Group, Groups, Item, Structures};
pub use rules::{Leaf, Stays};
#[cfg(feature = "sprs")]
pub use sparse::DeviceCsMat;
pub use upload::Upload;

use crate::error::Error;
#[cfg(doc)]
use crate::{DeviceArray, DeviceView, DeviceViewMut, Diagonal, SharedArray, Target};

/// A rule for adapting a type: for making its counterpart on a device if `To` is [`Upload`], or on
/// the host if `To` is [`Download`].
///
/// gpuheap has [rules](self#rules) for the usual types of data. The derive macro of the same name
/// makes a rule for a struct or an enum. Adapting a field may change its type: a `Vec<f32>` becomes
/// a `DeviceArray<f32>`. The type of such a field has to be a type parameter of the struct, or to
/// contain one.
///
/// ```
/// use gpuheap::{Adapt, Device, Diagonal};
///
/// #[derive(Adapt)]
/// enum Filter<A> {
///     None,
///     Kernel { taps: A, gain: f32 },
///     Chain(Vec<Filter<A>>),
///     Named(A, #[adapt(same)] &'static str), // cloned, whatever its type
/// }
///
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = Device::open("emulated:1GiB")?.heap()?.target()?;
/// let filter = Filter::Chain(vec![
///     Filter::None,
///     Filter::Kernel { taps: vec![1_i64, 2], gain: 2.0 },
///     Filter::Named(vec![3], "last"),
/// ]);
/// let Filter::Chain(on_device) = target.cu(&filter)? else { unreachable!() };
/// let Filter::Kernel { taps, .. } = &on_device[1] else { unreachable!() };
/// assert_eq!(taps.to_vec()?, [1.0_f32, 2.0]);
/// # Ok(()) }
/// ```
///
/// A plain struct derives its rule with `#[adapt(element)]` to be an element of arrays:
///
/// ```
/// use bytemuck::{Pod, Zeroable};
/// use gpuheap::{Adapt, Device};
///
/// #[derive(Clone, Copy, Pod, Zeroable, Adapt)]
/// #[adapt(element)]
/// #[repr(C)]
/// struct Point {
///     x: f32,
///     y: f32,
/// }
///
/// # fn main() -> Result<(), gpuheap::Error> {
/// let target = Device::open("emulated:1GiB")?.heap()?.target()?;
/// let points = target.adapt(&vec![Point { x: 1.0, y: 2.0 }; 3])?;
/// assert_eq!(points.bytes(), 24);
/// # Ok(()) }
/// ```
///
/// A rule that is written by hand adapts the fields. It must not use the arrays that it receives,
/// because they may be uploaded only after the rule returns:
///
/// ```
/// use gpuheap::{Adapt, Error};
///
/// struct Counted<A>(A, usize);
///
/// impl<To, A: Adapt<To>> Adapt<To> for Counted<A> {
///     type Output = Counted<A::Output>;
///
///     fn adapt(&self, to: &To) -> Result<Self::Output, Error> {
///         Ok(Counted(self.0.adapt(to)?, self.1))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "there is no rule for how to adapt `{Self}`",
    label = "cannot be moved to a device or back",
    note = "derive `gpuheap::Adapt` for a struct or an enum of your own, or mark the field that holds this with `#[adapt(same)]` to have it cloned",
    note = "a struct of plain data that is an element of arrays derives it with `#[adapt(element)]`"
)]
pub trait Adapt<To> {
    /// Type of the adapted value.
    type Output;

    /// Adapts the value.
    ///
    /// # Errors
    ///
    /// On upload, the errors of [making arrays](Target::uninit). On download, the errors of
    /// [reading them](crate::ArrayBase::to_vec).
    fn adapt(&self, to: &To) -> Result<Self::Output, Error>;
}
