//! The program's streams, by handle.
//!
//! The driver is asked once what a handle stands for. That is allowed because the program says when
//! a stream ends: until then its handle means nothing else.

use std::sync::{PoisonError, RwLock};

use gpuheap::{Device, Error, Stream};
use gpuheap_driver::CUstream;
use rustc_hash::FxHashMap;

#[derive(Default)]
pub(crate) struct Streams {
    known: RwLock<FxHashMap<CUstream, Stream>>,
}

impl Streams {
    /// The stream of a handle.
    ///
    /// # Safety
    ///
    /// As [`Device::foreign_stream`].
    pub(crate) unsafe fn get(&self, device: &Device, raw: CUstream) -> Result<Stream, Error> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&raw).cloned();
        if let Some(stream) = known {
            return Ok(stream);
        }
        // SAFETY: the caller keeps this function's contract.
        let stream = unsafe { device.foreign_stream(raw) }?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        Ok(known.entry(raw).or_insert(stream).clone())
    }

    /// The stream of a handle, if it was ever used here.
    pub(crate) fn find(&self, raw: CUstream) -> Option<Stream> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&raw).cloned()
    }

    /// From now on the handle may mean another stream than that with the driver's `id`, and may
    /// do so already, where another thread said so too.
    pub(crate) fn forget(&self, raw: CUstream, id: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.get(&raw).is_some_and(|stream| stream.id() == id) {
            known.remove(&raw);
        }
    }
}
