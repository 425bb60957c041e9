//! Vectors of the program that the device reads and writes in place.

use std::panic::Location;
use std::sync::Arc;

use ndarray::{Dimension, Ix1};

use super::DeviceArray;
use super::element::Element;
use super::registration::Registered;
use super::storage::{Memory, Storage};
use crate::array::target::Target;
use crate::error::{Error, ErrorKind, Freed};
use crate::kind::MemoryKind;
use crate::measure;

impl Target {
    /// Page-locks a vector and makes it an array that the device reads and writes in place, without
    /// a copy, at the speed of the bus. The array's kind is [`Registered`](MemoryKind::Registered),
    /// whatever the target's kind, and [`usage_of`](crate::Heap::usage_of) counts the array under
    /// that kind.
    ///
    /// Locking takes time: 18 ms for 256 MiB whose pages are already in memory (H200 host). If the
    /// driver refuses to lock more memory, the heap runs its reclaim steps on pinned memory.
    ///
    /// A free of the array unlocks and frees the vector, so it blocks until the last use of the
    /// array has completed. That applies to a drop, to the end of the array's [scope](crate::Scope)
    /// and to every other free. If the heap or the target [fills freed memory with
    /// zeros](Target::zero_on_free), the vector is filled before it is freed.
    /// [`unregister`](DeviceArray::unregister) returns the vector unchanged.
    ///
    /// A vector without elements, or with elements of zero size, is not locked: the array has a
    /// null pointer and zero bytes. `unregister` returns such a vector too.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory), with the figures of pinned memory; the device cannot
    /// register memory; the memory is registered already; a driver error. The error holds the
    /// vector.
    #[track_caller]
    pub fn register<T: Element>(
        &self,
        vector: Vec<T>,
    ) -> Result<DeviceArray<T, Ix1>, RegisterError<T>> {
        let mut vector = vector;
        let shape = Ix1(vector.len());
        let (memory, bytes) = (vector.as_mut_ptr().cast(), size_of_val(vector.as_slice()));
        let _time = measure::memory_management();
        let locked = match self.check_scope() {
            // SAFETY: the vector stays in place until its pages are unlocked, because `Registered`
            // owns both the vector and the lock.
            Ok(()) => unsafe { self.heap.lock_pages(memory, bytes, &self.stream) },
            Err(error) => Err(error),
        };
        let lock = match locked {
            Ok(lock) => lock,
            Err(error) => return Err(RegisterError { error, vector }),
        };
        let (kind, at) = (MemoryKind::Registered, Location::caller());
        let zeroed = self.heap.inner().zero_on_free;
        let registered = Registered { lock, vector: Box::new(vector), zeroed };
        let memory = Memory::Registered(registered);
        let storage = Arc::new(Storage::new(self, kind, bytes as u64, memory, at));
        match self.join(&storage) {
            Ok(()) => Ok(DeviceArray::over(storage, shape)),
            // The scope has ended, so the vector is unlocked and returned with the error.
            Err(error) => match DeviceArray::<T, Ix1>::over(storage, shape).unregister() {
                Ok(vector) => Err(RegisterError { error, vector }),
                Err(_) => Err(RegisterError { error, vector: Vec::new() }),
            },
        }
    }
}

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Waits for the last use of [registered](Target::register) memory, unlocks it and returns the
    /// same vector. If the array is a slice of the registered vector, or was reinterpreted, returns
    /// a copy of its elements.
    ///
    /// # Errors
    ///
    /// The array is not in registered memory, or was freed; its bytes are not valid `T`; a driver
    /// error. After a driver error the vector is neither freed nor used again.
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
        // `as_slice` waits, and returns an error if the bytes are not valid elements.
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

/// A vector that could not be registered, with the reason. `?` converts it to an [`Error`] and
/// frees the vector.
pub struct RegisterError<T> {
    error: Error,
    vector: Vec<T>,
}

impl<T> RegisterError<T> {
    /// Returns the reason.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the unchanged vector.
    pub fn into_vec(self) -> Vec<T> {
        self.vector
    }
}

is_error!(RegisterError<T>);
