//! Streams: queues of work that runs in order.

use std::fmt;
use std::sync::{Arc, Weak};

use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUcontext, CUresult, CUstream, Driver, check};

use crate::device::{Context, Device};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::source::SourceError;

/// A stream of one device. Clones are the same stream.
///
/// The driver's stream is destroyed once no clone is left and no heap needs it to order what was
/// freed on it, so a stream may be dropped before the blocks that were used on it. One that somebody
/// else made ([`Device::foreign_stream`]) is never destroyed here, and heaps are told of its end by
/// [`Heap::retire`](crate::Heap::retire), unless it is an
/// [unannounced](Device::unannounced_stream) one.
///
/// A thread's own default stream (`CU_STREAM_PER_THREAD`) cannot be had as one of these: its handle
/// means another stream on every thread, and a `Stream` may go to any.
#[derive(Clone)]
pub struct Stream {
    /// Held by the program's clones and not by heaps, which see by it that the last one went.
    inner: Arc<InUse>,
}

struct InUse {
    handle: Arc<Handle>,
}

/// The driver's stream, destroyed with the last reference.
struct Handle {
    context: Arc<Context>,
    raw: CUstream,
    id: u64,
    origin: Origin,
}

/// Who ends a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The last reference to it here.
    Owned,
    /// Nobody: a default stream.
    Default,
    /// Whoever made it, who says so before.
    Foreign,
    /// Whoever made it, in silence.
    Unannounced,
}

/// A heap's hold on a stream.
pub(crate) struct StreamGuard {
    handle: Arc<Handle>,
    in_use: Weak<InUse>,
}

impl StreamGuard {
    /// Whether the program holds the stream no more. A default stream is there for everybody, so
    /// nobody can let go of it; of a foreign one the program says so.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.handle.origin == Origin::Owned && self.in_use.strong_count() == 0
    }

    /// Whether somebody else made the stream and will end it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.handle.is_foreign()
    }

    /// Whether it will end in silence.
    pub(crate) fn is_unannounced(&self) -> bool {
        self.handle.origin == Origin::Unannounced
    }
}

impl Stream {
    pub(crate) fn new(context: Arc<Context>) -> Result<Stream, Error> {
        let mut raw = CUstream::NULL;
        {
            let _current = context.enter_aside()?;
            // SAFETY: the pointer is valid for the call.
            let created =
                unsafe { context.driver().cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) };
            check("cuStreamCreate", created)?;
        }
        Stream::wrap(context, raw, Origin::Owned)
    }

    pub(crate) fn legacy(context: Arc<Context>) -> Result<Stream, Error> {
        Stream::wrap(context, CUstream::LEGACY, Origin::Default)
    }

    /// # Safety
    ///
    /// As [`Device::foreign_stream`], or, if it may end `unannounced`, as
    /// [`Device::unannounced_stream`].
    pub(crate) unsafe fn foreign(
        context: Arc<Context>,
        raw: CUstream,
        unannounced: bool,
    ) -> Result<Stream, Error> {
        if raw == CUstream::NULL || raw == CUstream::LEGACY {
            return Stream::legacy(context);
        }
        if raw == CUstream::PER_THREAD {
            return Err(ErrorKind::StreamUnusable.error(
                "CU_STREAM_PER_THREAD (0x2) means another stream on every thread, so memory cannot \
                 be kept in its order; use a stream of your own, or 0 for the legacy default stream"
                    .to_owned(),
            ));
        }
        let mut of = CUcontext::NULL;
        {
            let _current = context.enter()?;
            // SAFETY: the pointer is valid for the call; the caller says that the stream is alive.
            let asked = unsafe { context.driver().cuStreamGetCtx(raw, &mut of) };
            check("cuStreamGetCtx", asked)?;
        }
        if of != context.raw() {
            return Err(ErrorKind::WrongDevice.error(format!(
                "the stream {:#x} is of another context than the primary one of {context}; use a \
                 stream that was made while that one was current, as those of the CUDA runtime are",
                raw.0
            )));
        }
        let origin = if unannounced { Origin::Unannounced } else { Origin::Foreign };
        Stream::wrap(context, raw, origin)
    }

    fn wrap(context: Arc<Context>, raw: CUstream, origin: Origin) -> Result<Stream, Error> {
        // Made first, so that a stream whose id cannot be had is destroyed again.
        let mut handle = Handle { context, raw, id: 0, origin };
        let mut id = 0;
        {
            let _current = handle.context.enter_aside()?;
            // The question for its number would break the capture (H200, driver 580).
            if handle.context.is_capturing_inside(raw)? {
                return Err(ErrorKind::Capturing.error(format!(
                    "the stream {:#x} is capturing a graph, and the driver says which stream a handle \
                     stands for only before or after; use the heap on the stream before the capture \
                     begins, which it then knows",
                    raw.0
                )));
            }
            // SAFETY: the pointer is valid for the call and the stream is alive.
            let asked = unsafe { handle.context.driver().cuStreamGetId(raw, &mut id) };
            check("cuStreamGetId", asked)?;
        }
        handle.id = id;
        Ok(Stream { inner: Arc::new(InUse { handle: Arc::new(handle) }) })
    }

    /// The driver's handle for it.
    pub fn raw(&self) -> CUstream {
        self.handle().raw
    }

    /// The driver's number for it, which no other stream of the process ever has.
    #[inline]
    pub fn id(&self) -> u64 {
        self.handle().id
    }

    /// The device that it is of.
    pub fn device(&self) -> Device {
        Device::from(self.context_arc().clone())
    }

    /// Waits for its work.
    ///
    /// # Errors
    ///
    /// What that work failed with. A stream that is [capturing](Stream::is_capturing) a graph, which
    /// the wait would break.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.refuse_capturing()?;
        let _current = self.context().enter()?;
        // SAFETY: the stream is alive.
        let waited = unsafe { self.context().driver().cuStreamSynchronize(self.raw()) };
        Ok(check("cuStreamSynchronize", waited)?)
    }

    /// Whether all the work that it was given is done. Does not wait.
    ///
    /// # Errors
    ///
    /// What that work failed with. A stream that is [capturing](Stream::is_capturing) a graph, which
    /// the question would break.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.refuse_capturing()?;
        let _current = self.context().enter()?;
        // SAFETY: the stream is alive.
        match unsafe { self.context().driver().cuStreamQuery(self.raw()) } {
            CUresult::ERROR_NOT_READY => Ok(false),
            code => Ok(check("cuStreamQuery", code).map(|()| true)?),
        }
    }

    /// Whether it is capturing a graph: the work that it is given is recorded and does not run. So is
    /// the legacy default stream while a stream does that it would have to wait for.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn is_capturing(&self) -> Result<bool, Error> {
        Ok(self.context().is_capturing(self.raw())?)
    }

    /// Marks this point of the stream. The event keeps no time, which makes it cheap.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn record(&self) -> Result<Event, Error> {
        Ok(Event::record(self.context_arc(), self.raw(), false)?)
    }

    /// The same with an event that keeps the time at which it was reached.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn record_timed(&self) -> Result<Event, Error> {
        Ok(Event::record(self.context_arc(), self.raw(), true)?)
    }

    /// Makes the work that the stream is given from now on wait for `event`, which may be of
    /// another device of the same driver. The host does not wait.
    ///
    /// # Errors
    ///
    /// An event of another driver, such as an emulated device's on a real one's stream; the
    /// driver's own.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        let context = self.context();
        if !context.shares_driver(event.context()) {
            return Err(ErrorKind::WrongDevice.error(format!(
                "the stream is of {context} and the event of {}, which know nothing of each other; \
                 call synchronize on the event instead",
                event.context()
            )));
        }
        event.context().check_alive()?;
        let _current = context.enter()?;
        // SAFETY: the stream and the event are alive.
        let waits = unsafe { context.driver().cuStreamWaitEvent(self.raw(), event.raw(), 0) };
        Ok(check("cuStreamWaitEvent", waits)?)
    }

    /// Makes one driver call that gives the stream work.
    pub(crate) fn enqueue(
        &self,
        function: &'static str,
        call: impl FnOnce(&dyn Driver) -> CUresult,
    ) -> Result<(), Error> {
        let _working = self.context().gate.work()?;
        let _current = self.context().enter()?;
        Ok(check(function, call(self.context().driver()))?)
    }

    /// Makes the work that it is given from now on wait for what `other` was given so far. Both or none
    /// are part of a capture.
    pub(crate) fn wait_for(&self, other: &Stream) -> Result<(), Error> {
        if self.is_capturing()? != other.is_capturing()? {
            return Err(ErrorKind::Capturing.error(
                "an array was last used on another stream, and one of the two is capturing a graph, \
                 which would break if one waited for the other; use the array on the stream that \
                 captures before the capture begins, and on others after it ended"
                    .to_owned(),
            ));
        }
        self.wait(&other.record()?)
    }

    /// Refuses what would break a capture, or could not be part of its graph.
    pub(crate) fn refuse_capturing(&self) -> Result<(), Error> {
        if self.is_capturing()? { Err(SourceError::Capturing.into()) } else { Ok(()) }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.handle().context
    }

    pub(crate) fn context_arc(&self) -> &Arc<Context> {
        &self.handle().context
    }

    pub(crate) fn guard(&self) -> StreamGuard {
        StreamGuard { handle: self.inner.handle.clone(), in_use: Arc::downgrade(&self.inner) }
    }

    /// Whether it may end without anybody being told.
    #[inline]
    pub(crate) fn is_unannounced(&self) -> bool {
        self.handle().origin == Origin::Unannounced
    }

    /// Whether somebody else made it and will end it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.handle().is_foreign()
    }

    #[inline]
    fn handle(&self) -> &Handle {
        &self.inner.handle
    }
}

impl Handle {
    fn is_foreign(&self) -> bool {
        matches!(self.origin, Origin::Foreign | Origin::Unannounced)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.origin == Origin::Owned
            && let Ok(_current) = self.context.enter()
        {
            // SAFETY: the stream is ours and is not used again; its work runs on.
            let _: CUresult = unsafe { self.context.driver().cuStreamDestroy_v2(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream {}", self.id())
    }
}
