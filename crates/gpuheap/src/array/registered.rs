//! Vectors of the program's own that the device reads and writes in place.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gpuheap_driver::check;
use gpuheap_pool::Gone;
use ndarray::{Dimension, Ix1};

use super::DeviceArray;
use super::element::Element;
use super::storage::{Memory, Storage};
use crate::array::target::Target;
use crate::device::Context;
use crate::error::{Error, ErrorKind, Freed, failure};
use crate::heap::Heap;
use crate::kind::MemoryKind;
use crate::measure;
use crate::stream::Stream;
use crate::track::TrackId;

/// `CU_MEMHOSTREGISTER_PORTABLE`, for all devices, and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const FLAGS: u32 = 1 | 2;

impl Target {
    /// Page-locks a vector and makes it an array that the device reads and writes in place, with no
    /// copy, at the speed of the bus. It is of the kind [`Registered`](MemoryKind::Registered),
    /// whatever kind the target has, and counts in [`usage_of`](Heap::usage_of) that.
    ///
    /// Locking takes time: 18 ms for 256 MiB that were written before (H200 host). Where the driver
    /// locks no more, the ladder is climbed over the heap's pinned memory.
    ///
    /// Freeing the array, by dropping it, by the end of its [scope](crate::Scope) or otherwise, blocks
    /// until its last use is over, since the vector is then unlocked and freed; it is filled with zeros
    /// before if the heap or the target
    /// [says so](Target::zero_on_free). [`unregister`](DeviceArray::unregister) gives the vector
    /// back as it is.
    ///
    /// Of a vector with no elements, or with elements of no size, nothing is locked: the array has a
    /// null pointer and takes no bytes, and `unregister` gives the vector back all the same.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory), with the figures of pinned memory; a device that
    /// cannot register memory; memory that is registered already; a driver error. The error holds
    /// the vector.
    #[track_caller]
    pub fn register<T: Element>(
        &self,
        vector: Vec<T>,
    ) -> Result<DeviceArray<T, Ix1>, RegisterError<T>> {
        let mut vector = vector;
        let shape = Ix1(vector.len());
        let bytes = size_of_val(vector.as_slice());
        let host = vector.as_mut_ptr().expose_provenance() as u64;
        let _time = measure::memory_management();
        let device = match self.check_scope().and_then(|()| self.lock_pages(host, bytes)) {
            Ok(device) => device,
            Err(error) => return Err(RegisterError { error, vector }),
        };
        let (kind, bytes, at) = (MemoryKind::Registered, bytes as u64, Location::caller());
        let track = self.heap.track(device, bytes, kind, at);
        let heap = self.heap.clone();
        let registered = Registered { heap, host, device, bytes, vector: Box::new(vector), track };
        self.heap.registered().add(bytes);
        measure::note(bytes);
        let storage = Arc::new(Storage::new(self, kind, bytes, Memory::Registered(registered), at));
        match self.join(&storage) {
            Ok(()) => Ok(DeviceArray::over(storage, shape)),
            // Its scope ended: the vector comes back as the array's end would give it back.
            Err(error) => match DeviceArray::<T, Ix1>::over(storage, shape).unregister() {
                Ok(vector) => Err(RegisterError { error, vector }),
                Err(_) => Err(RegisterError { error, vector: Vec::new() }),
            },
        }
    }

    /// The device's address for the locked pages; zero for no bytes.
    fn lock_pages(&self, host: u64, bytes: usize) -> Result<u64, Error> {
        self.heap.check_device(&self.stream)?;
        let context = self.stream.context();
        context.check_alive()?;
        if !context.info().host_register {
            return Err(ErrorKind::Unsupported.error(format!(
                "{context} cannot register memory of the program's own; copy it to pinned memory"
            )));
        }
        if bytes == 0 {
            return Ok(0);
        }
        let register = || {
            let _current = context.enter_aside()?;
            // SAFETY: the vector has these bytes and stays where it is until they are unlocked.
            let locked =
                unsafe { context.driver().cuMemHostRegister_v2(pointer(host), bytes, FLAGS) };
            check("cuMemHostRegister_v2", locked).map_err(failure)
        };
        self.heap.pin(bytes as u64, &self.stream, register)?;
        mapped(context, host).inspect_err(|_| {
            // It may be used again by then, and no work can know of it.
            let _ = unlock(context, host);
        })
    }
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Waits for the last use of [registered](Target::register) memory, unlocks it and gives the
    /// vector back, the same one. An array that is a slice of what was registered, or was
    /// reinterpreted, gives a copy of its elements.
    ///
    /// # Errors
    ///
    /// An array that is not registered memory or was freed; bytes that are no valid `T`; a driver
    /// error, in which case the vector is neither freed nor used again.
    #[track_caller]
    #[doc(alias = "into_vec")]
    pub fn unregister(self) -> Result<Vec<T>, Error> {
        if self.kind() != MemoryKind::Registered {
            return Err(ErrorKind::WrongMemory.error(format!(
                "an array of shape {:?} in {} memory is no vector that was registered; copy it with \
                 to_vec",
                self.shape(),
                self.kind()
            )));
        }
        // Waits, and finds what is no valid element.
        let elements = self.as_slice()?;
        if !self.storage().is_vector_of::<T>(self.len()) {
            return Ok(elements.to_vec());
        }
        drop(elements);
        let how = Freed::Early(Location::caller());
        let vector = self.storage().take_registered(how)?.downcast::<Vec<T>>();
        vector.map(|vector| *vector).map_err(|_| {
            ErrorKind::WrongType.error(format!(
                "the vector that was registered has other elements than {}; reinterpret the array as \
                 the type that it was registered with",
                std::any::type_name::<T>()
            ))
        })
    }
}

/// Page-locked memory of the program's own.
pub(crate) struct Registered {
    heap: Heap,
    /// Where the host sees it.
    pub(crate) host: u64,
    /// Where the device does, which on Windows' drivers may be elsewhere.
    pub(crate) device: u64,
    bytes: u64,
    /// A `Vec` of elements.
    vector: Box<dyn Any + Send>,
    track: Option<TrackId>,
}

impl Registered {
    /// Returns `true` if it is a vector of that many `T`.
    pub(super) fn is_vector_of<T: Element>(&self, count: usize) -> bool {
        self.vector.downcast_ref::<Vec<T>>().is_some_and(|vector| vector.len() == count)
    }

    /// Unlocks the pages after all work of `last`, for which it waits.
    ///
    /// Where that fails, the device may still reach the memory, so it is never freed.
    pub(super) fn unlock(self, last: &Stream) -> Result<Box<dyn Any + Send>, Error> {
        let Registered { heap, host, bytes, vector, track, .. } = self;
        let _time = measure::memory_management();
        let unlocked = match last.context().check_alive() {
            // The context took the lock with it.
            Err(Gone::Reset) => Ok(()),
            _ if bytes == 0 => Ok(()),
            _ => last.synchronize().and_then(|()| unlock(last.context(), host)),
        };
        match unlocked {
            Ok(()) => {
                heap.registered().remove(bytes);
                measure::note_freed(bytes);
                heap.untrack(track);
                Ok(vector)
            }
            Err(error) => {
                std::mem::forget(vector);
                Err(error)
            }
        }
    }

    /// Unlocks it and frees the vector, with zeros in it if `zeroed`.
    pub(super) fn free(self, last: &Stream, zeroed: bool) -> Result<(), Error> {
        let (host, bytes) = (self.host, self.bytes as usize);
        let zeroed = zeroed || self.heap.zeroes_on_free();
        let vector = self.unlock(last)?;
        if zeroed && bytes > 0 {
            let first = pointer(host).cast::<u8>();
            // SAFETY: the vector is still there, is nobody else's, and has no destructors to run.
            unsafe { first.write_bytes(0, bytes) };
            // Else it would be a write that nobody reads, and gone.
            std::hint::black_box(first);
        }
        drop(vector);
        Ok(())
    }
}

/// A vector that could not be registered, and why. It becomes an [`Error`] by `?`, which frees the
/// vector.
pub struct RegisterError<T> {
    error: Error,
    vector: Vec<T>,
}

impl<T> RegisterError<T> {
    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The vector, as it was.
    pub fn into_vec(self) -> Vec<T> {
        self.vector
    }
}

impl<T> From<RegisterError<T>> for Error {
    fn from(error: RegisterError<T>) -> Error {
        error.error
    }
}

impl<T> fmt::Debug for RegisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Display for RegisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for RegisterError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Where the device sees locked memory.
fn mapped(context: &Context, host: u64) -> Result<u64, Error> {
    let _current = context.enter()?;
    let mut device = 0;
    // SAFETY: the pointer is valid for the call, and the memory was locked for the device.
    let asked =
        unsafe { context.driver().cuMemHostGetDevicePointer_v2(&mut device, pointer(host), 0) };
    check("cuMemHostGetDevicePointer_v2", asked)?;
    Ok(device)
}

fn unlock(context: &Context, host: u64) -> Result<(), Error> {
    let _current = context.enter_aside()?;
    // SAFETY: locked by `lock_pages`, and no work uses it any more.
    let unlocked = unsafe { context.driver().cuMemHostUnregister(pointer(host)) };
    Ok(check("cuMemHostUnregister", unlocked)?)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
