//! Memory that the host reads and writes in place.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

use ndarray::Dimension;

use super::DeviceArray;
use super::element::{Element, check_bits};
use super::shape::check_alignment;
use super::storage::Storage;
use crate::error::{Error, ErrorKind};

impl<T: Element, D: Dimension> DeviceArray<T, D> {
    /// Borrows the elements of unified, pinned or registered memory in place. Waits for the array's
    /// last use.
    ///
    /// If the device has no concurrent access to managed memory (WSL2), the call waits for all work
    /// of the device. The device then refuses new work until the borrow ends, or forever if the
    /// borrow is forgotten.
    ///
    /// # Errors
    ///
    /// The array is in device memory, or was freed; its bytes are not valid `T`.
    pub fn as_slice(&self) -> Result<HostRef<'_, T>, Error> {
        let (borrow, pointer) = self.borrow_for_host()?;
        // SAFETY: the memory stays until the borrow ends, all work on it is done, and a write to it
        // requires a mutable borrow of the array.
        let elements = unsafe { slice::from_raw_parts(pointer, self.len()) };
        Ok(HostRef { elements, _borrow: borrow })
    }

    /// Borrows the elements for writing in place; waits as [`as_slice`](DeviceArray::as_slice)
    /// does. Work enqueued after the borrow ends sees the changes.
    ///
    /// # Errors
    ///
    /// The errors of [`as_slice`](DeviceArray::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<HostMut<'_, T>, Error> {
        let (borrow, pointer) = self.borrow_for_host()?;
        // SAFETY: the memory stays until the borrow ends, all work on it is done, and the array is
        // borrowed mutably.
        let elements = unsafe { slice::from_raw_parts_mut(pointer, self.len()) };
        Ok(HostMut { elements, _borrow: borrow })
    }

    fn borrow_for_host(&self) -> Result<(Borrow<'_>, *mut T), Error> {
        if !self.kind().is_host_accessible() {
            return Err(ErrorKind::WrongMemory.error(format!(
                "the host cannot read an array of shape {:?} in place, because it is in the memory of \
                 {}; copy it with to_vec, or allocate it as unified or pinned memory",
                self.shape(),
                self.device()
            )));
        }
        let address = self.storage().begin_borrow()?;
        let borrow = Borrow(self.storage());
        let pointer = match self.bytes() {
            0 => std::ptr::dangling_mut::<T>(),
            _ => {
                // The host and the device may map registered memory at different pages, so the
                // alignment is checked at the host's address.
                check_alignment::<T>(self.at(address))?;
                std::ptr::with_exposed_provenance_mut::<T>(self.at(address) as usize)
            }
        };
        // SAFETY: the memory stays until the borrow ends and all work on it is done. Any bytes are
        // a valid `T::Bits`.
        let bits = unsafe { slice::from_raw_parts(pointer.cast::<T::Bits>(), self.len()) };
        check_bits::<T>(bits)?;
        Ok((borrow, pointer))
    }
}

/// Elements of an array, borrowed for reading in place. As long as this borrow exists, the memory
/// is kept, even if the array is freed early.
pub struct HostRef<'a, T> {
    elements: &'a [T],
    _borrow: Borrow<'a>,
}

/// Elements of an array, borrowed for writing in place.
pub struct HostMut<'a, T> {
    elements: &'a mut [T],
    _borrow: Borrow<'a>,
}

impl<T> Deref for HostRef<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T> Deref for HostMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T> DerefMut for HostMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

impl<T: fmt::Debug> fmt::Debug for HostRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for HostMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt(f)
    }
}

struct Borrow<'a>(&'a Storage);

impl Drop for Borrow<'_> {
    fn drop(&mut self) {
        self.0.end_borrow();
    }
}
