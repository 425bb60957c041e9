//! Page-locked memory of the program's own, while it is registered.

use std::any::Any;
use std::ffi::c_void;

use gpuheap_driver::check;
use gpuheap_pool::Gone;

use super::element::Element;
use crate::device::Context;
use crate::error::Error;
use crate::heap::Heap;
use crate::measure;
use crate::stream::Stream;
use crate::track::TrackId;

/// Page-locked memory that belongs to the program.
pub(crate) struct Registered {
    pub(super) heap: Heap,
    /// Address on the host.
    pub(crate) host: u64,
    /// Address on the device, which may differ with Windows drivers.
    pub(crate) device: u64,
    pub(super) bytes: u64,
    /// The vector: a `Vec` of elements.
    pub(super) vector: Box<dyn Any + Send>,
    pub(super) track: Option<TrackId>,
}

impl Registered {
    /// Returns `true` if the memory is a vector of `count` elements of `T`.
    pub(super) fn is_vector_of<T: Element>(&self, count: usize) -> bool {
        self.vector.downcast_ref::<Vec<T>>().is_some_and(|vector| vector.len() == count)
    }

    /// Unlocks the pages after all work of `last`, for which it waits.
    ///
    /// If that fails, the device may still access the memory, so it is never freed.
    pub(super) fn unlock(self, last: &Stream) -> Result<Box<dyn Any + Send>, Error> {
        let Registered { heap, host, bytes, vector, track, .. } = self;
        let _time = measure::memory_management();
        let unlocked = match last.context().check_alive() {
            // The reset of the context unlocked the pages.
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

    /// Unlocks the vector and frees it, filled with zeros if `zeroed`.
    pub(super) fn free(self, last: &Stream, zeroed: bool) -> Result<(), Error> {
        let (host, bytes) = (self.host, self.bytes as usize);
        let zeroed = zeroed || self.heap.zeroes_on_free();
        let vector = self.unlock(last)?;
        if zeroed && bytes > 0 {
            let first = pointer(host).cast::<u8>();
            // SAFETY: the vector still exists, is owned here, and its elements have no destructors.
            unsafe { first.write_bytes(0, bytes) };
            // Otherwise the compiler may remove a write that is never read.
            std::hint::black_box(first);
        }
        drop(vector);
        Ok(())
    }
}

/// Unlocks the pages of the host's memory at an address.
pub(super) fn unlock(context: &Context, host: u64) -> Result<(), Error> {
    let _current = context.enter_aside()?;
    // SAFETY: `lock_pages` locked the memory, and no work uses it any more.
    let unlocked = unsafe { context.driver().cuMemHostUnregister(pointer(host)) };
    Ok(check("cuMemHostUnregister", unlocked)?)
}

/// The host's memory at an address.
pub(super) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
