//! Streams: queues of work that runs in order.

use std::fmt;
use std::sync::{Arc, Weak};

use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUresult, CUstream, check};

use crate::device::Context;
use crate::error::Error;

/// A stream of one device. Clones are the same stream.
///
/// The driver's stream is destroyed once no clone is left and no heap needs it to order what was
/// freed on it, so a stream may be dropped before the blocks that were used on it.
#[derive(Clone)]
pub struct Stream {
    handle: Arc<Handle>,
    /// Held by the program's clones and not by heaps, which see by it that the last one went.
    in_use: Arc<()>,
}

/// The driver's stream, destroyed with the last reference.
struct Handle {
    context: Arc<Context>,
    raw: CUstream,
    id: u64,
    owned: bool,
}

/// A heap's hold on a stream.
pub(crate) struct StreamGuard {
    handle: Arc<Handle>,
    in_use: Weak<()>,
}

impl StreamGuard {
    /// Whether the program holds the stream no more. A default stream is there for everybody, so
    /// nobody can let go of it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.handle.owned && self.in_use.strong_count() == 0
    }
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
        // Made first, so that a stream whose id cannot be had is destroyed again.
        let mut handle = Handle { context, raw, id: 0, owned };
        let mut id = 0;
        {
            let _current = handle.context.enter()?;
            // SAFETY: the pointer is valid for the call and the stream is alive.
            let asked = unsafe { handle.context.driver().cuStreamGetId(raw, &mut id) };
            check("cuStreamGetId", asked)?;
        }
        handle.id = id;
        Ok(Stream { handle: Arc::new(handle), in_use: Arc::new(()) })
    }

    /// The driver's handle for it.
    pub fn raw(&self) -> CUstream {
        self.handle.raw
    }

    /// The driver's number for it, which no other stream of the process ever has.
    pub fn id(&self) -> u64 {
        self.handle.id
    }

    /// Waits for its work.
    ///
    /// # Errors
    ///
    /// What that work failed with.
    pub fn synchronize(&self) -> Result<(), Error> {
        let _current = self.handle.context.enter()?;
        // SAFETY: the stream is alive.
        let waited = unsafe { self.handle.context.driver().cuStreamSynchronize(self.handle.raw) };
        Ok(check("cuStreamSynchronize", waited)?)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.handle.context
    }

    pub(crate) fn guard(&self) -> StreamGuard {
        StreamGuard { handle: self.handle.clone(), in_use: Arc::downgrade(&self.in_use) }
    }
}

impl Drop for Handle {
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
        write!(f, "Stream {}", self.handle.id)
    }
}
