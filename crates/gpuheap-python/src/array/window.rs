//! Defines a window of device memory, and the state that all windows of the memory share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap::ndarray::{Ix1, IxDyn};
use gpuheap::{DeviceArray, Element, Error, SharedArray, Stream};

use crate::exchange::{Lent, SHOWN};
use crate::kind::{Kind, Native};
use crate::lines::RecordId;
use crate::memory::has_ended;
use crate::owner::Owner;
use crate::scope::{Charge, Counts};

/// A window of device memory with a shape and an element type.
#[derive(Clone)]
pub(crate) struct Window {
    /// The whole memory, as bytes.
    whole: SharedArray<u8, Ix1>,
    /// Identity of the memory.
    memory: Arc<()>,
    /// Bytes from the beginning of the memory to the first element.
    offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
}

impl Window {
    pub(crate) fn from_array<T: Native>(array: DeviceArray<T, IxDyn>) -> Result<Window, Error> {
        let shape = array.shape().to_vec();
        let count = array.len();
        let bytes = array.into_shape(Ix1(count))?.into_reinterpreted::<u8>()?;
        Ok(Window::from_bytes(bytes, shape, T::KIND))
    }

    /// Makes a window of uploaded bytes. `bytes` contains the elements of `shape`.
    pub(crate) fn from_bytes(bytes: DeviceArray<u8, Ix1>, shape: Vec<usize>, kind: Kind) -> Window {
        Window { whole: bytes.into_shared(), memory: Arc::default(), offset: 0, shape, kind }
    }

    pub(crate) fn len(&self) -> usize {
        length(&self.shape)
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * self.kind.size()
    }

    /// Returns the window's bytes.
    pub(crate) fn raw(&self) -> Result<SharedArray<u8, Ix1>, Error> {
        self.whole.clone().into_slice(self.offset..self.offset + self.bytes())
    }

    /// Returns the window as an array of `T`. The size of `T` must be the element size.
    pub(crate) fn typed<T: Element>(&self) -> Result<SharedArray<T, IxDyn>, Error> {
        self.raw()?.into_reinterpreted::<T>()?.into_shape(IxDyn(&self.shape))
    }

    /// Returns the window as an array of one axis.
    pub(crate) fn row<T: Element>(&self) -> Result<SharedArray<T, Ix1>, Error> {
        self.raw()?.into_reinterpreted::<T>()
    }

    /// Returns the window with another shape that has the same number of elements.
    pub(crate) fn shaped(&self, shape: Vec<usize>) -> Window {
        debug_assert_eq!(self.len(), length(&shape));
        Window { shape, ..self.clone() }
    }

    /// Returns the part of the window that begins after `elements` elements, with its own shape.
    pub(crate) fn part(&self, elements: usize, shape: Vec<usize>) -> Window {
        Window { offset: self.offset + elements * self.kind.size(), shape, ..self.clone() }
    }

    /// Returns the window with its elements read as another kind of the same size.
    pub(crate) fn read_as(&self, kind: Kind) -> Window {
        debug_assert_eq!(self.kind.size(), kind.size());
        Window { kind, ..self.clone() }
    }

    /// Returns the address, for work on `stream`. Makes `stream` wait for earlier work on the
    /// memory.
    pub(crate) fn address(&self, stream: &Stream) -> Result<u64, Error> {
        self.raw()?.device_ptr(stream)
    }

    /// Returns the stream of the last use.
    pub(crate) fn stream(&self) -> Stream {
        self.whole.stream()
    }

    /// Returns whether both windows have the same elements of the same memory.
    pub(crate) fn is_same(&self, other: &Window) -> bool {
        self.shares(other) && self.offset == other.offset && self.shape == other.shape
    }

    /// Returns whether both windows are parts of the same memory.
    pub(crate) fn shares(&self, other: &Window) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }
}

/// Returns the number of elements of a shape. The product does not overflow, because an axis has
/// length 0, or an array of that shape is in memory.
pub(crate) fn length(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

/// The memory that an array and its windows share. It is freed when the last window is dropped.
/// [`free`](Held::free) frees it earlier, for all windows.
pub(crate) struct Held {
    whole: SharedArray<u8, Ix1>,
    pub(crate) owner: Arc<Owner>,
    /// `true` if the memory belongs to another library that forbids writes.
    pub(crate) is_read_only: bool,
    /// `true` after the first read of the memory's address through the CUDA array interface.
    is_exposed: AtomicBool,
    state: Mutex<Holding>,
}

#[derive(Default)]
struct Holding {
    record: Option<RecordId>,
    /// Charge of the memory to Python's scopes. The charge ends when the memory is freed.
    charge: Option<Charge>,
    /// Other streams that use the memory. The free comes after their work.
    used_on: Vec<Stream>,
    /// Number of exports to other libraries. A library reads the memory until it releases its
    /// export.
    exports: usize,
    is_freed: bool,
}

impl Holding {
    /// Returns the state, and replaces it with the state of freed memory.
    fn take_out(&mut self) -> Holding {
        std::mem::replace(self, Holding { is_freed: true, ..Holding::default() })
    }
}

impl Held {
    pub(crate) fn new(
        window: &Window,
        owner: &Arc<Owner>,
        record: Option<RecordId>,
        charge: Option<Charge>,
        is_read_only: bool,
    ) -> Arc<Held> {
        let state = Mutex::new(Holding { record, charge, ..Holding::default() });
        Arc::new(Held {
            whole: window.whole.clone(),
            owner: owner.clone(),
            is_read_only,
            is_exposed: AtomicBool::new(false),
            state,
        })
    }

    /// Notes that a reader of the CUDA array interface may refer to the memory. The reader holds
    /// the `Array`, and does not report when it stops using the memory.
    pub(crate) fn expose(self: &Arc<Held>) -> Result<(), Error> {
        self.is_exposed.store(true, Ordering::Relaxed);
        self.show()
    }

    /// Notes that the memory was handed to another library.
    pub(crate) fn show(self: &Arc<Held>) -> Result<(), Error> {
        SHOWN.note(&self.owner, self.address()?, self.bytes() as u64, self);
        Ok(())
    }

    /// Returns whether a reader of the CUDA array interface may refer to the memory.
    pub(crate) fn is_exposed(&self) -> bool {
        self.is_exposed.load(Ordering::Relaxed)
    }

    /// The innermost scope that the memory is charged to.
    pub(crate) fn scope(&self) -> Option<Arc<Counts>> {
        self.lock().charge.as_ref().map(|charge| charge.scope().clone())
    }

    /// Returns whether the memory was freed early.
    pub(crate) fn is_freed(&self) -> bool {
        self.lock().is_freed || self.whole.is_freed()
    }

    /// Returns the address. For work on a stream, use [`Window::address`] instead.
    pub(crate) fn address(&self) -> Result<u64, Error> {
        self.whole.device_ptr(&self.whole.stream())
    }

    /// Returns the size of the whole memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.whole.len()
    }

    /// Frees the memory for all windows. If another library holds an export, the memory is freed
    /// when the last export is released.
    pub(crate) fn free(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_freed, true) || state.exports > 0 {
            return Ok(());
        }
        let ended = state.take_out();
        drop(state);
        self.give_back(ended)
    }

    /// Orders the free after the work that `stream` has at the time of the free.
    pub(crate) fn use_on(&self, stream: &Stream) {
        let used = &mut self.lock().used_on;
        if !used.iter().any(|known| known.id() == stream.id()) {
            used.push(stream.clone());
        }
    }

    fn give_back(&self, state: Holding) -> Result<(), Error> {
        if let Some(record) = state.record {
            self.owner.lines.freed(record);
        }
        drop(state.charge);
        for stream in state.used_on {
            // The work of a destroyed stream may still run, and no event can be recorded on that
            // stream. So wait for the whole device.
            match has_ended(&stream) {
                true => stream.device().synchronize()?,
                false => self.whole.device_ptr(&stream).map(drop)?,
            }
        }
        self.whole.free_early().map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, Holding> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !state.is_freed {
            // A destructor returns no error. If the free fails, the heap counts the memory as
            // pending.
            let _ = self.give_back(state);
        }
    }
}

/// A window that another library reads. The library releases it by dropping this value.
pub(crate) struct Export {
    window: Window,
    held: Arc<Held>,
}

impl Export {
    /// Makes the export; `None` if the memory was freed.
    pub(crate) fn new(window: &Window, held: &Arc<Held>) -> Option<Export> {
        let mut state = held.lock();
        if state.is_freed || held.whole.is_freed() {
            return None;
        }
        state.exports += 1;
        drop(state);
        Some(Export { window: window.clone(), held: held.clone() })
    }
}

impl Lent for Held {
    fn hand_to(&self, consumer: &Stream) -> Result<(), Error> {
        if self.is_freed() {
            return Ok(());
        }
        self.whole.device_ptr(consumer)?;
        self.use_on(consumer);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}

impl Lent for Export {
    fn hand_to(&self, consumer: &Stream) -> Result<(), Error> {
        self.window.address(consumer)?;
        self.held.use_on(consumer);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.held.is_read_only
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let mut state = self.held.lock();
        state.exports = state.exports.saturating_sub(1);
        if state.exports == 0 && state.is_freed {
            let ended = state.take_out();
            drop(state);
            // A destructor returns no error. If the free fails, the heap counts the memory as
            // pending.
            let _ = self.held.give_back(ended);
        }
    }
}
