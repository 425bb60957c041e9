//! Streams: queues of work that runs in order.

use std::fmt;
use std::sync::Arc;

use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUresult, CUstream, check};

use crate::device::Context;
use crate::error::Error;

/// A stream of one device.
///
/// A heap that was given blocks back on a stream of one's own must hear of its end
/// ([`Heap::retire`](crate::Heap::retire)) before the stream is dropped.
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
    id: u64,
    owned: bool,
}

impl Stream {
    pub(crate) fn new(context: Arc<Context>) -> Result<Stream, Error> {
        let mut raw = CUstream::NULL;
        {
            let _current = context.enter()?;
            // SAFETY: the pointer is valid for the call.
            let created =
                unsafe { context.driver().cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) };
            check("cuStreamCreate", created)?;
        }
        Stream::wrap(context, raw, true)
    }

    pub(crate) fn legacy(context: Arc<Context>) -> Result<Stream, Error> {
        Stream::wrap(context, CUstream::LEGACY, false)
    }

    fn wrap(context: Arc<Context>, raw: CUstream, owned: bool) -> Result<Stream, Error> {
        let mut stream = Stream { context, raw, id: 0, owned };
        let _current = stream.context.enter()?;
        // SAFETY: the pointer is valid for the call and the stream is alive.
        let asked = unsafe { stream.context.driver().cuStreamGetId(raw, &mut stream.id) };
        check("cuStreamGetId", asked)?;
        drop(_current);
        Ok(stream)
    }

    /// The driver's handle for it.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// The driver's number for it, which no other stream of the process ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for its work.
    ///
    /// # Errors
    ///
    /// What that work failed with.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is alive.
        let waited = unsafe { self.context.driver().cuStreamSynchronize(self.raw) };
        Ok(check("cuStreamSynchronize", waited)?)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.context.enter()
        {
            // SAFETY: the stream is ours and is not used again; its work runs on.
            let _: CUresult = unsafe { self.context.driver().cuStreamDestroy_v2(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream {}", self.id)
    }
}
