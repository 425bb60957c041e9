//! Whole structures moved to the device and back.
//!
//! [`Target::adapt`] keeps a structure and uploads what it is made of; [`Host`] brings it back:
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
//! | `Vec<T>`, `[T]`, `[T; N]` of [elements](Plain) | [`DeviceArray<T>`] | itself |
//! | the same of anything else, such as of arrays | itself, each item adapted | the same |
//! | arrays and views of `ndarray`, of elements | [`DeviceArray<T, D>`] | an array |
//! | the same of anything else | an array, each item adapted | the same |
//! | [`DeviceArray`], [`DeviceView`], [`DeviceViewMut`] | a copy on the target | an array of `ndarray` |
//! | [`SharedArray`] | the same handle if it is there already, in that kind of memory; else a copy | an array of `ndarray` |
//! | [`Diagonal`] and the other wrappers, tuples, `Option` | itself, what is in it adapted | the same |
//! | `Box`, `Rc`, `Arc` | one of its own, what is in it adapted | the same |
//! | `Result`, `HashMap`, `BTreeMap` | itself, values adapted, errors and keys cloned | the same |
//! | references | what they point to, adapted | the same |
//! | numbers, `bool`, `char`, `String`, `()`, ranges, `PhantomData` | itself | itself |
//! | sparse matrices of `sprs`, with the feature of that name | `DeviceCsMat` | back from it |
//! | structs and enums that derive [`Adapt`] | the same type with adapted parameters | the same |
//! | [`Leaf`] of host data, for elements of other crates | [`DeviceArray`] | |
//!
//! Anything else does not compile. A number in a structure is no array and stays what it is, so a
//! count stays a count. A vector that went up comes back as `ndarray`'s array of one axis: an array
//! on the device does not remember what it was made from.
//!
//! # Element types
//!
//! `adapt` never changes one. [`Target::cu`] does, and [`Target::narrow`] less so:
//!
//! | elements | `adapt` | `narrow` | `cu` |
//! |---|---|---|---|
//! | `f64` | | `f32` | `f32` |
//! | `f32` | | | |
//! | `half`'s, with the feature of that name | | | `f32` |
//! | integers | | | `f32` |
//! | `Complex<f64>` | | `Complex<f32>` | `Complex<f32>` |
//! | other `Complex` | | | `Complex<f32>` |
//! | `bool`, `char`, your own | | | |
//!
//! Values are rounded to the nearest, as by `as`; what is too large for `f32` becomes infinite. The
//! indices of sparse matrices stay. Arrays of numbers that are on the target's device already are
//! [cast](crate::ArrayBase::cast) there; others are converted on the host.
//!
//! # Small arrays
//!
//! Of a structure with thousands of small arrays, those of at most 16 KiB are uploaded together, in
//! blocks of about 1 MiB: one allocation and one copy each. The arrays are independent of each
//! other in all else; the memory of a block goes back to the pool when its last array went. Down
//! they come together too, unless they were used on streams of their own meanwhile, or the host can
//! reach their memory.

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

/// A rule for what becomes of a type on the way to a device, where `To` is [`Upload`], or back from
/// it, where it is [`Download`].
///
/// There are [rules](self#rules) for what data is usually made of. For a struct or an enum the
/// derive macro of the same name makes one: all that is to be adapted is a type parameter, or holds
/// one, because its type changes.
///
/// ```
/// use gpuheap::{Adapt, Device, Diagonal};
///
/// #[derive(Adapt)]
/// enum Filter<A> {
///     None,
///     Kernel { taps: A, gain: f32 },
///     Chain(Vec<Filter<A>>),
///     Named(A, #[adapt(same)] &'static str), // cloned, whatever it is
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
/// A plain struct that is to be an element of arrays derives it with `#[adapt(element)]`:
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
/// By hand, a rule adapts what is inside. Arrays that it gets so may be uploaded after it returned,
/// and are not to be used before:
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
    /// What becomes of it.
    type Output;

    /// Makes that of it.
    ///
    /// # Errors
    ///
    /// As for [making arrays](Target::uninit) on the way up and for
    /// [reading them](crate::ArrayBase::to_vec) on the way down.
    fn adapt(&self, to: &To) -> Result<Self::Output, Error>;
}
