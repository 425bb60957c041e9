//! Arrays on the device that manage their own memory.

mod create;
mod debug;
pub(crate) mod element;
mod fill;
mod foreign;
mod host;
mod matrix;
mod registered;
mod resize;
pub(crate) mod scope;
mod shape;
mod source;
pub(crate) mod staging;
pub(crate) mod storage;
pub(crate) mod target;
mod transfer;
pub(crate) mod unified;
mod uninit;
mod view;

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use ndarray::{Dimension, Ix1};

pub use element::Element;
pub use host::{HostMut, HostRef};
pub use matrix::{
    Diagonal, LowerTriangular, Printed, Symmetric, Transposed, Triangle, UpperTriangular,
};
pub use registered::RegisterError;
pub use resize::ResizeError;
pub use source::HostData;
pub use uninit::UninitArray;

use crate::array::target::Target;
use crate::device::Device;
use crate::error::{Error, Freed};
use crate::kind::MemoryKind;
use crate::stream::Stream;
use storage::Storage;

/// An array of `T` with dimensions `D`, which owns its memory: dropping it frees that in the order
/// of the stream of its last use, without waiting.
///
/// Elements lie in row-major order with no gaps. [`Target`] makes arrays.
pub type DeviceArray<T, D = Ix1> = ArrayBase<Owned, T, D>;

/// A handle to an array that is shared by count: the memory is freed with the last handle, or for
/// all of them by [`free_early`](ArrayBase::free_early). From
/// [`into_shared`](ArrayBase::into_shared).
pub type SharedArray<T, D = Ix1> = ArrayBase<Shared, T, D>;

/// A window of an array, borrowed for reading.
pub type DeviceView<'a, T, D = Ix1> = ArrayBase<View<'a>, T, D>;

/// A window of an array, borrowed for writing.
pub type DeviceViewMut<'a, T, D = Ix1> = ArrayBase<ViewMut<'a>, T, D>;

/// What all arrays and views have in common: a window of some memory, with a shape.
///
/// `S` says how the memory is held:
///
/// | name | `S` | |
/// |---|---|---|
/// | [`DeviceArray`] | [`Owned`] | freed when it is dropped |
/// | [`SharedArray`] | [`Shared`] | freed with the last handle, or early |
/// | [`DeviceView`] | [`View`] | borrowed |
/// | [`DeviceViewMut`] | [`ViewMut`] | borrowed, alone |
///
/// # Layout
///
/// ```text
/// ArrayBase { held, offset, shape }
///               │
///               └─► storage: heap, kind, stream of last use, memory or how it was freed
/// ```
///
/// # Streams
///
/// An array knows the stream of its last use. Work on another stream first waits for what that one
/// was given, by an event and not on the host, and the other stream is then the one of last use.
pub struct ArrayBase<S, T, D = Ix1> {
    held: S,
    /// Bytes from the start of the storage.
    offset: u64,
    shape: D,
    element: PhantomData<fn() -> T>,
}

/// How memory is held: one of [`Owned`], [`Shared`], [`View`], [`ViewMut`].
///
/// Use it as a bound, to take any array or view:
///
/// ```
/// use gpuheap::ndarray::Dimension;
/// use gpuheap::{ArrayBase, Error, Hold};
///
/// fn sum<S: Hold, D: Dimension>(array: &ArrayBase<S, f32, D>) -> Result<f32, Error> {
///     Ok(array.to_vec()?.iter().sum())
/// }
///
/// # fn main() -> Result<(), Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let array = target.filled((2, 3), 1.5_f32)?;
/// assert_eq!((sum(&array)?, sum(&array.index(0)?)?), (9.0, 4.5));
/// # Ok(()) }
/// ```
pub trait Hold: sealed::Storage {}

/// How memory is held that may be written: use it as a bound where [`Hold`] does not do.
pub trait HoldMut: Hold {}

/// Alone.
pub struct Owned(pub(crate) Arc<Storage>);

/// With others, by count.
#[derive(Clone)]
pub struct Shared(Arc<Storage>);

/// Borrowed.
#[derive(Clone, Copy)]
pub struct View<'a>(&'a Arc<Storage>);

/// Borrowed, alone.
pub struct ViewMut<'a>(&'a Arc<Storage>, PhantomData<&'a mut ()>);

impl Hold for Owned {}
impl Hold for Shared {}
impl Hold for View<'_> {}
impl Hold for ViewMut<'_> {}
impl HoldMut for Owned {}
impl HoldMut for Shared {}
impl HoldMut for ViewMut<'_> {}

impl<S: Hold, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// The length of each axis. Answered for a freed array too.
    pub fn shape(&self) -> &[usize] {
        self.shape.slice()
    }

    /// The same as `ndarray`'s type.
    pub fn raw_dim(&self) -> D {
        self.shape.clone()
    }

    /// How many axes it has.
    pub fn ndim(&self) -> usize {
        self.shape.ndim()
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.shape.size()
    }

    /// Returns `true` if it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.len() * size_of::<T>()) as u64
    }

    /// What kind of memory it is in.
    pub fn kind(&self) -> MemoryKind {
        self.storage().kind()
    }

    /// The device that it is on.
    pub fn device(&self) -> Device {
        Device::from(self.storage().context().clone())
    }

    /// The stream of its last use.
    pub fn stream(&self) -> Stream {
        self.storage().stream()
    }

    /// Where its like would be made: its heap and kind, on the stream of its last use or, if that is
    /// of another device, of its first; in its scope, while that lasts. Registered memory is the
    /// program's own, and its like is pinned.
    pub fn target(&self) -> Target {
        let storage = self.storage();
        let kind = match storage.kind() {
            MemoryKind::Registered => MemoryKind::Pinned,
            kind => kind,
        };
        let target = storage.heap().on(&storage.own_stream()).kind(kind);
        let target = target.zero_on_free(storage.zeroes_on_free());
        target.within(storage.scope().and_then(|scope| scope.of_likes()))
    }

    /// Returns `true` if it was freed early, by its owner or by the end of a scope.
    pub fn is_freed(&self) -> bool {
        self.storage().is_freed()
    }

    /// Where work on `stream` finds its first element; null for no bytes. The stream waits for what
    /// the array was used for before, the host does not, and it becomes the stream of last use. Work
    /// that uses the pointer is to be enqueued on it before the array is dropped, freed or used on
    /// another stream.
    ///
    /// # Errors
    ///
    /// The array was freed; a stream of a device that cannot reach the array's memory.
    #[doc(alias = "as_ptr")]
    pub fn device_ptr(&self, stream: &Stream) -> Result<u64, Error> {
        self.storage().use_on(Some(stream), |address, stream| {
            let _working = stream.context().gate.work()?;
            Ok(if self.bytes() == 0 { 0 } else { self.at(address) })
        })
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        self.held.storage()
    }

    /// Bytes from the start of its storage.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Where this window of memory at `address` begins.
    fn at(&self, address: u64) -> u64 {
        if address == 0 { 0 } else { address + self.offset }
    }
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// An array over the whole of a storage.
    pub(crate) fn over(storage: Arc<Storage>, shape: D) -> DeviceArray<T, D> {
        ArrayBase { held: Owned(storage), offset: 0, shape, element: PhantomData }
    }

    /// Gives its memory back to the pool now, in the order of its last use. Does not wait. Dropping
    /// does the same and has nobody to tell what failed.
    ///
    /// # Errors
    ///
    /// The array was freed already, by a scope's end; a driver error. The memory is accounted for
    /// all the same.
    #[track_caller]
    #[doc(alias = "dealloc")]
    pub fn free(self) -> Result<(), Error> {
        let freed = self.storage().free_early(Freed::Early(Location::caller()))?;
        if freed { Ok(()) } else { self.storage().use_on(None, |_, _| Ok(())) }
    }

    /// Waits for its last use and gives its memory back to the driver, past the pool's cache. The
    /// bytes that the driver regained: none where the pool has other live blocks in the same
    /// segment.
    ///
    /// # Errors
    ///
    /// The errors of [`free`](ArrayBase::free).
    #[track_caller]
    pub fn release(self) -> Result<u64, Error> {
        self.storage().use_on(None, |_, _| Ok(()))?;
        self.storage().release(Freed::Early(Location::caller()))
    }

    /// Makes it a handle that may be cloned.
    pub fn into_shared(self) -> SharedArray<T, D> {
        let ArrayBase { held, offset, shape, element } = self;
        ArrayBase { held: Shared(held.0), offset, shape, element }
    }
}

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Frees the memory for all its handles, in the order of its last use, without waiting. What
    /// they are used for later is an error that says so; freeing twice is harmless. Whether it was
    /// this call that freed it.
    ///
    /// # Errors
    ///
    /// A driver error. The memory is accounted for all the same.
    #[track_caller]
    pub fn free_early(&self) -> Result<bool, Error> {
        self.storage().free_early(Freed::Early(Location::caller()))
    }
}

impl<T, D: Clone> Clone for SharedArray<T, D> {
    fn clone(&self) -> SharedArray<T, D> {
        let ArrayBase { held, offset, shape, element } = self;
        ArrayBase { held: held.clone(), offset: *offset, shape: shape.clone(), element: *element }
    }
}

impl<T, D: Clone> Clone for DeviceView<'_, T, D> {
    fn clone(&self) -> Self {
        let ArrayBase { held, offset, shape, element } = self;
        ArrayBase { held: *held, offset: *offset, shape: shape.clone(), element: *element }
    }
}

mod sealed {
    use std::sync::Arc;

    /// Where the memory is.
    pub trait Storage {
        /// What arrays that are held so are called.
        #[doc(hidden)]
        const NAME: &'static str;

        /// The storage.
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed: nobody outside can name it")]
        fn storage(&self) -> &Arc<super::Storage>;
    }

    #[allow(private_interfaces)]
    impl Storage for super::Owned {
        const NAME: &'static str = "DeviceArray";

        fn storage(&self) -> &Arc<super::Storage> {
            &self.0
        }
    }
    #[allow(private_interfaces)]
    impl Storage for super::Shared {
        const NAME: &'static str = "SharedArray";

        fn storage(&self) -> &Arc<super::Storage> {
            &self.0
        }
    }
    #[allow(private_interfaces)]
    impl Storage for super::View<'_> {
        const NAME: &'static str = "DeviceView";

        fn storage(&self) -> &Arc<super::Storage> {
            self.0
        }
    }
    #[allow(private_interfaces)]
    impl Storage for super::ViewMut<'_> {
        const NAME: &'static str = "DeviceViewMut";

        fn storage(&self) -> &Arc<super::Storage> {
            self.0
        }
    }
}
