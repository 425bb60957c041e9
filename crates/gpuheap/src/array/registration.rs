//! Vectors of the program, page-locked while they are registered.

use std::any::Any;

use super::element::Element;
use crate::error::Error;
use crate::heap::page_lock::PageLock;
use crate::stream::Stream;

/// A vector of the program whose memory is page-locked.
pub(crate) struct Registered {
    pub(super) lock: PageLock,
    /// The vector: a `Vec` of elements.
    pub(super) vector: Box<dyn Any + Send>,
    /// `true` if the heap fills freed memory with zeros.
    pub(super) zeroed: bool,
}

impl Registered {
    pub(super) fn is_vector_of<T: Element>(&self, count: usize) -> bool {
        self.vector.downcast_ref::<Vec<T>>().is_some_and(|vector| vector.len() == count)
    }

    /// Waits for all work of `last`, then unlocks the pages and returns the vector.
    ///
    /// After an error, the memory is never freed, because the device may still access it.
    pub(super) fn unlock(self, last: &Stream) -> Result<Box<dyn Any + Send>, Error> {
        let Registered { lock, vector, .. } = self;
        match lock.unlock_after(last) {
            Ok(()) => Ok(vector),
            Err(error) => {
                std::mem::forget(vector);
                Err(error)
            }
        }
    }

    /// Unlocks and frees the vector. If `zeroed`, the vector is filled with zeros before it is
    /// freed.
    pub(super) fn free(self, last: &Stream, zeroed: bool) -> Result<(), Error> {
        let (host, bytes) = (self.lock.host_address(), self.lock.bytes() as usize);
        let zeroed = zeroed || self.zeroed;
        let vector = self.unlock(last)?;
        if zeroed && bytes > 0 {
            let first = std::ptr::with_exposed_provenance_mut::<u8>(host as usize);
            // SAFETY: the vector still exists, is owned here, and its elements have no destructors.
            unsafe { first.write_bytes(0, bytes) };
            // Without this line, the compiler may remove the fill, because nothing reads the zeros.
            std::hint::black_box(first);
        }
        drop(vector);
        Ok(())
    }
}
