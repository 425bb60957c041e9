//! Device arrays. They own their memory.

/// Implements the traits of an error type. The type has a field `error` with the reason, and a
/// field that gives a value back to the caller of the failed function.
macro_rules! is_error {
    ($name:ident<$($parameter:ident),*>) => {
        impl<$($parameter),*> From<$name<$($parameter),*>> for Error {
            fn from(error: $name<$($parameter),*>) -> Error {
                error.error
            }
        }

        impl<$($parameter),*> std::fmt::Debug for $name<$($parameter),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.error, f)
            }
        }

        impl<$($parameter),*> std::fmt::Display for $name<$($parameter),*> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.error, f)
            }
        }

        impl<$($parameter),*> std::error::Error for $name<$($parameter),*> {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.error)
            }
        }
    };
}

pub(crate) mod admission;
mod create;
mod debug;
pub(crate) mod element;
mod fill;
mod foreign;
mod host;
mod matrix;
mod registered;
mod registration;
mod resize;
pub(crate) mod scope;
pub(crate) mod scope_report;
mod scope_state;
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
pub use matrix::{Diagonal, LowerTriangular, Symmetric, Transposed, Triangle, UpperTriangular};
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

/// An array of `T` with dimensions `D` that owns its memory. Dropping the array frees the memory in
/// the order of the stream of its last use, without waiting.
///
/// Elements lie in row-major order with no gaps. [`Target`] makes arrays.
pub type DeviceArray<T, D = Ix1> = ArrayBase<Owned, T, D>;

/// A reference-counted handle to a shared array, made by [`into_shared`](ArrayBase::into_shared).
/// The memory is freed when the last handle is dropped, or when
/// [`free_early`](ArrayBase::free_early) frees it for all handles.
pub type SharedArray<T, D = Ix1> = ArrayBase<Shared, T, D>;

/// A window of an array, borrowed for reading.
pub type DeviceView<'a, T, D = Ix1> = ArrayBase<View<'a>, T, D>;

/// A window of an array, borrowed for writing.
pub type DeviceViewMut<'a, T, D = Ix1> = ArrayBase<ViewMut<'a>, T, D>;

/// The base of all arrays and views. It is a window of some memory, with a shape.
///
/// `S` is the way the memory is held:
///
/// | name | `S` | |
/// |---|---|---|
/// | [`DeviceArray`] | [`Owned`] | freed when it is dropped |
/// | [`SharedArray`] | [`Shared`] | freed with the last handle, or early |
/// | [`DeviceView`] | [`View`] | borrowed |
/// | [`DeviceViewMut`] | [`ViewMut`] | borrowed exclusively |
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
/// An array records the stream of its last use. If the array is then used on a second stream, the
/// second stream first waits for an event after the work of the recorded stream. The host does not
/// wait. The second stream then becomes the stream of last use.
pub struct ArrayBase<S, T, D = Ix1> {
    held: S,
    /// Offset in bytes from the start of the storage.
    offset: u64,
    shape: D,
    element: PhantomData<fn() -> T>,
}

/// A way of holding memory: [`Owned`], [`Shared`], [`View`] or [`ViewMut`].
///
/// Use it as a bound, to take any array or view:
///
/// ```
/// use gpuheap::ndarray::Dimension;
/// use gpuheap::{ArrayBase, Error, ArrayData};
///
/// fn sum<S: ArrayData, D: Dimension>(array: &ArrayBase<S, f32, D>) -> Result<f32, Error> {
///     Ok(array.to_vec()?.iter().sum())
/// }
///
/// # fn main() -> Result<(), Error> {
/// # let target = gpuheap::Device::open("emulated:1GiB")?.heap()?.target()?;
/// let array = target.filled((2, 3), 1.5_f32)?;
/// assert_eq!((sum(&array)?, sum(&array.index(0)?)?), (9.0, 4.5));
/// # Ok(()) }
/// ```
pub trait ArrayData: sealed::HasStorage {}

/// A way of holding memory that may be written: [`Owned`] or [`ViewMut`]. Use it as a bound if
/// [`ArrayData`] does not suffice.
pub trait ArrayDataMut: ArrayData {}

/// Memory with one owner.
pub struct Owned(pub(crate) Arc<Storage>);

/// Memory shared by counted handles.
#[derive(Clone)]
pub struct Shared(Arc<Storage>);

/// Borrowed memory.
#[derive(Clone, Copy)]
pub struct View<'a>(&'a Arc<Storage>);

/// Mutably borrowed memory.
pub struct ViewMut<'a>(&'a Arc<Storage>, PhantomData<&'a mut ()>);

impl ArrayData for Owned {}
impl ArrayData for Shared {}
impl ArrayData for View<'_> {}
impl ArrayData for ViewMut<'_> {}
impl ArrayDataMut for Owned {}
impl ArrayDataMut for Shared {}
impl ArrayDataMut for ViewMut<'_> {}

impl<S: ArrayData, T: Element, D: Dimension> ArrayBase<S, T, D> {
    /// Returns the length of each axis, even of a freed array.
    pub fn shape(&self) -> &[usize] {
        self.shape.slice()
    }

    /// Returns the shape as `ndarray`'s type.
    pub fn raw_dim(&self) -> D {
        self.shape.clone()
    }

    /// Returns the number of axes.
    pub fn ndim(&self) -> usize {
        self.shape.ndim()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.size()
    }

    /// Returns `true` if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.len() * size_of::<T>()) as u64
    }

    /// Returns the kind of memory that the array is in.
    pub fn kind(&self) -> MemoryKind {
        self.storage().kind()
    }

    /// Returns the device of the array's memory.
    pub fn device(&self) -> Device {
        Device::from(self.storage().context().clone())
    }

    /// Returns the stream of the array's last use.
    pub fn stream(&self) -> Stream {
        self.storage().stream()
    }

    /// Returns a target for new arrays like this one, with the same heap and kind of memory. Its
    /// stream is the stream of this array's last use. If that stream belongs to another device, the
    /// target uses the stream of the array's first use. While this array's scope is open, new
    /// arrays belong to that scope. If this array is in registered memory, the target's kind is
    /// pinned, because registered memory belongs to the program.
    pub fn target(&self) -> Target {
        let storage = self.storage();
        let kind = match storage.kind() {
            MemoryKind::Registered => MemoryKind::Pinned,
            kind => kind,
        };
        let target = storage.heap().on(&storage.own_stream()).kind(kind);
        let target = target.zero_on_free(storage.zeroes_on_free());
        target.within(storage.scope().and_then(|scope| scope.for_new_arrays()))
    }

    /// Returns `true` if `free_early` or the end of a scope freed the memory although this handle
    /// exists.
    pub fn is_freed(&self) -> bool {
        self.storage().is_freed()
    }

    /// Returns the device address of the first element, for work on `stream`; 0 for an array of
    /// zero bytes. `stream` waits for earlier work on the array, and becomes the stream of last
    /// use. The host does not wait.
    ///
    /// On `stream`, enqueue all work that uses the pointer before the array is dropped, freed or
    /// used on another stream.
    ///
    /// # Errors
    ///
    /// The array was freed; the stream's device cannot access the array's memory.
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

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the address of this window, in a storage at `address`.
    fn at(&self, address: u64) -> u64 {
        if address == 0 { 0 } else { address + self.offset }
    }
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Makes an array over a whole storage.
    pub(crate) fn over(storage: Arc<Storage>, shape: D) -> DeviceArray<T, D> {
        ArrayBase { held: Owned(storage), offset: 0, shape, element: PhantomData }
    }

    /// Frees the memory to the pool now, in the order of its last use. Does not wait. A drop does
    /// the same, but cannot return an error.
    ///
    /// # Errors
    ///
    /// The array was freed already, by the end of a scope; a driver error. After a driver error,
    /// the memory stays counted as live.
    #[track_caller]
    #[doc(alias = "dealloc")]
    pub fn free(self) -> Result<(), Error> {
        let freed = self.storage().free_early(Freed::Early(Location::caller()))?;
        if freed { Ok(()) } else { self.storage().use_on(None, |_, _| Ok(())) }
    }

    /// Waits for the last use and returns the memory to the driver, not to the pool's cache.
    /// Returns the bytes that the driver regained: 0 if other live blocks are in the segment.
    ///
    /// # Errors
    ///
    /// The errors of [`free`](ArrayBase::free).
    #[track_caller]
    pub fn release(self) -> Result<u64, Error> {
        self.storage().use_on(None, |_, _| Ok(()))?;
        self.storage().release(Freed::Early(Location::caller()))
    }

    /// Converts the array to a handle that can be cloned.
    pub fn into_shared(self) -> SharedArray<T, D> {
        let ArrayBase { held, offset, shape, element } = self;
        ArrayBase { held: Shared(held.0), offset, shape, element }
    }
}

impl<T: Element, D: Dimension> SharedArray<T, D> {
    /// Frees the memory for all handles, in the order of its last use, without waiting. If a handle
    /// is used later, the use returns an error that names this call. A second call does nothing.
    /// Returns `true` if this call freed the memory.
    ///
    /// # Errors
    ///
    /// A driver error. The memory then stays counted as live.
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

    /// Access to the storage of a handle.
    pub trait HasStorage {
        /// Name of arrays held in this way.
        #[doc(hidden)]
        const NAME: &'static str;

        /// Returns the storage.
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed: nobody outside can name it")]
        fn storage(&self) -> &Arc<super::Storage>;
    }

    macro_rules! has_storage {
        ($($held:ty = $name:literal, |$this:ident| $storage:expr;)*) => {$(
            #[allow(private_interfaces)]
            impl HasStorage for $held {
                const NAME: &'static str = $name;

                fn storage(&self) -> &Arc<super::Storage> {
                    let $this = self;
                    $storage
                }
            }
        )*};
    }

    has_storage! {
        super::Owned = "DeviceArray", |array| &array.0;
        super::Shared = "SharedArray", |array| &array.0;
        super::View<'_> = "DeviceView", |array| array.0;
        super::ViewMut<'_> = "DeviceViewMut", |array| array.0;
    }
}
