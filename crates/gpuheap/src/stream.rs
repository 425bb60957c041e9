//! Streams: queues of work that runs in order.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};

use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUcontext, CUresult, CUstream, Driver, check};
use gpuheap_pool::{Completed, Moments, SourceError};

use crate::device::{Context, Device};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::front;

/// A stream of one device. Clones are the same stream.
///
/// The driver's stream is destroyed once no clone is left and no heap needs it to order what was
/// freed on it, so a stream may be dropped before the blocks that were used on it. One that somebody
/// else made ([`Device::foreign_stream`]) is never destroyed here, and heaps are told of its end by
/// [`Heap::retire`](crate::Heap::retire), unless it is an
/// [unannounced](Device::unannounced_stream) one.
///
/// A stream that was retired [refuses](Stream::is_retired) all work from then on. What it was given
/// before can still be waited for, by the host and by other streams.
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
    /// How far its work is known to have got.
    completed: Arc<Completed>,
    /// Work that can be waited for since a heap was told of the stream's end. Read-locked by each
    /// call that gives a foreign stream work, so that no work comes after its end was noted.
    retired: RwLock<Option<Retired>>,
    /// `true` once `retired` is set.
    is_retired: AtomicBool,
}

/// Waitable state of a stream that was retired.
#[derive(Clone)]
enum Retired {
    /// An event that comes after all its work.
    At(Arc<Event>),
    /// Nothing, because all its work is completed.
    Completed,
    /// Nothing that is known: the stream may have ended before anything was recorded.
    Unknown,
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
struct StreamGuard {
    handle: Arc<Handle>,
    in_use: Weak<InUse>,
}

impl gpuheap_pool::StreamGuard for StreamGuard {
    fn is_abandoned(&self) -> bool {
        self.handle.origin == Origin::Owned && self.in_use.strong_count() == 0
    }

    fn is_foreign(&self) -> bool {
        self.handle.is_foreign()
    }

    fn is_unannounced(&self) -> bool {
        self.handle.origin == Origin::Unannounced
    }

    fn is_retired(&self) -> bool {
        self.handle.is_retired()
    }

    fn moments(&self) -> &Arc<Moments> {
        &self.handle.context.moments
    }

    fn completed(&self) -> u64 {
        self.moments().completed(&self.handle.completed)
    }

    fn refuse_work(&self) {
        self.handle.retire_as(Retired::Unknown);
    }

    fn complete(&self) {
        self.handle.retire_as(Retired::Completed);
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
        let (retired, is_retired) = (RwLock::new(None), AtomicBool::new(false));
        let mut handle =
            Handle { context, raw, id: 0, origin, completed: Arc::default(), retired, is_retired };
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
    /// the wait would break. An unannounced stream that was retired, which may be gone.
    pub fn synchronize(&self) -> Result<(), Error> {
        let alive = match self.ask()? {
            Asked::Stream(alive) => alive,
            Asked::Retired(Retired::At(event)) => return event.synchronize(),
            Asked::Retired(Retired::Completed) => return Ok(()),
            Asked::Retired(Retired::Unknown) => return Err(self.refused()),
        };
        if self.context().is_capturing(self.raw())? {
            return Err(SourceError::Capturing.into());
        }
        if alive.is_some() {
            // The wait is for an event, because a foreign stream may end meanwhile.
            let Handle { context, raw, completed, .. } = self.handle();
            let event = Event::record(context, *raw, false, completed)?;
            drop(alive);
            event.synchronize()?;
            self.note_completed(event.moment());
            return Ok(());
        }
        let moment = self.context().moments.begin();
        {
            let _current = self.context().enter()?;
            // SAFETY: the stream is alive.
            let waited = unsafe { self.context().driver().cuStreamSynchronize(self.raw()) };
            check("cuStreamSynchronize", waited)?;
        }
        self.note_completed(moment);
        Ok(())
    }

    /// Returns `true` if all the work that it was given is done. Does not wait.
    ///
    /// # Errors
    ///
    /// What that work failed with. A stream that is [capturing](Stream::is_capturing) a graph, which
    /// the question would break. An unannounced stream that was retired, which may be gone.
    pub fn is_done(&self) -> Result<bool, Error> {
        let alive = match self.ask()? {
            Asked::Stream(alive) => alive,
            Asked::Retired(Retired::At(event)) => return event.is_done(),
            Asked::Retired(Retired::Completed) => return Ok(true),
            Asked::Retired(Retired::Unknown) => return Err(self.refused()),
        };
        if self.context().is_capturing(self.raw())? {
            return Err(SourceError::Capturing.into());
        }
        let moment = self.context().moments.begin();
        let asked = {
            let _current = self.context().enter()?;
            // SAFETY: the stream is alive.
            unsafe { self.context().driver().cuStreamQuery(self.raw()) }
        };
        drop(alive);
        if asked == CUresult::ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuStreamQuery", asked)?;
        self.note_completed(moment);
        Ok(true)
    }

    /// Returns `true` if a heap was told of the stream's end, by
    /// [`Heap::retire`](crate::Heap::retire) or [`Heap::retire_all`](crate::Heap::retire_all). Such
    /// a stream refuses work, and the library does not touch the driver's handle any more by this
    /// object or its clones. If the driver's stream is alive after all, [`Device::foreign_stream`]
    /// makes an object that can be used.
    pub fn is_retired(&self) -> bool {
        self.handle().is_retired()
    }

    /// Returns `true` if it is capturing a graph: the work that it is given is recorded and does
    /// not run. So is the legacy default stream while a stream does that it would have to wait for.
    /// False for a stream that was [retired](Stream::is_retired).
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn is_capturing(&self) -> Result<bool, Error> {
        match self.ask()? {
            Asked::Stream(_alive) => Ok(self.context().is_capturing(self.raw())?),
            Asked::Retired(_) => Ok(false),
        }
    }

    /// Marks this point of the stream. The event keeps no time, which makes it cheap.
    ///
    /// # Errors
    ///
    /// A stream that was [retired](Stream::is_retired); a driver error.
    pub fn record(&self) -> Result<Event, Error> {
        self.record_as(false)
    }

    /// The same with an event that keeps the time at which it was reached.
    ///
    /// # Errors
    ///
    /// A stream that was [retired](Stream::is_retired); a driver error.
    pub fn record_timed(&self) -> Result<Event, Error> {
        self.record_as(true)
    }

    /// Makes the work that the stream is given from now on wait for `event`, which may be of
    /// another device of the same driver. The host does not wait.
    ///
    /// # Errors
    ///
    /// An event of another driver, such as an emulated device's on a real one's stream; a stream
    /// that was [retired](Stream::is_retired); a driver error.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        let context = self.context();
        event.context().check_alive()?;
        if !context.shares_driver(event.context()) {
            return Err(ErrorKind::WrongDevice.error(format!(
                "the stream is of {} and the event of {}, which know nothing of each other; call \
                 synchronize on the event instead",
                context.beside(event.context()),
                event.context().beside(context)
            )));
        }
        let _alive = self.accept_work()?;
        let _current = context.enter()?;
        // SAFETY: the stream and the event are alive.
        let waits = unsafe { context.driver().cuStreamWaitEvent(self.raw(), event.raw(), 0) };
        Ok(check("cuStreamWaitEvent", waits)?)
    }

    fn record_as(&self, timed: bool) -> Result<Event, Error> {
        let _alive = self.accept_work()?;
        let Handle { context, raw, id, completed, .. } = &*self.inner.handle;
        let event = Event::record(context, *raw, timed, completed)?;
        front::marked(context, *id, event.moment(), context.moments.completed(completed));
        Ok(event)
    }

    /// Notes that what the stream was given before `moment` is completed.
    fn note_completed(&self, moment: u64) {
        let Handle { context, id, completed, .. } = &*self.inner.handle;
        context.moments.complete(completed, moment);
        front::completed(context, Some(*id));
    }

    /// Makes one driver call that gives the stream work.
    pub(crate) fn enqueue(
        &self,
        function: &'static str,
        call: impl FnOnce(&dyn Driver) -> CUresult,
    ) -> Result<(), Error> {
        let _working = self.context().gate.work()?;
        let _alive = self.accept_work()?;
        let _current = self.context().enter()?;
        Ok(check(function, call(self.context().driver()))?)
    }

    /// Makes the work that it is given from now on wait for what `other` was given so far. Both or none
    /// are part of a capture.
    pub(crate) fn wait_for(&self, other: &Stream) -> Result<(), Error> {
        match other.ask()? {
            Asked::Stream(alive) => drop(alive),
            Asked::Retired(Retired::At(event)) => {
                // The event is no part of a graph.
                self.refuse_capturing()?;
                return self.wait(&event);
            }
            Asked::Retired(Retired::Completed) => return Ok(()),
            Asked::Retired(Retired::Unknown) => return Err(other.refused()),
        }
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

    /// Makes a foreign stream refuse all work from now on, behind what it was given. Of an
    /// unannounced one the handle is not touched: it may be gone.
    pub(crate) fn retire(&self) -> Result<(), Error> {
        let handle = &self.inner.handle;
        handle.context.check_alive()?;
        // Written under the lock, so that what is given to the stream is wholly before the event.
        let mut retired = handle.retired.write().unwrap_or_else(PoisonError::into_inner);
        if retired.is_some() {
            return Ok(());
        }
        *retired = Some(match handle.origin {
            Origin::Unannounced => Retired::Unknown,
            _ => {
                if handle.context.is_capturing(handle.raw)? {
                    return Err(SourceError::Capturing.into());
                }
                let Handle { context, raw, completed, .. } = &**handle;
                Retired::At(Arc::new(Event::record(context, *raw, false, completed)?))
            }
        });
        handle.is_retired.store(true, Ordering::Release);
        Ok(())
    }

    /// Keeps a foreign stream open for work until the result is dropped: it is not retired
    /// meanwhile. An error if it was.
    #[inline]
    pub(crate) fn accept_work(&self) -> Result<Option<Accepts<'_>>, Error> {
        match self.ask()? {
            Asked::Stream(alive) => Ok(alive),
            Asked::Retired(_) => Err(self.refused()),
        }
    }

    /// Looks up if the stream was retired. A foreign stream is not retired before the result is
    /// dropped.
    #[inline]
    fn ask(&self) -> Result<Asked<'_>, Error> {
        if !self.is_foreign() {
            return Ok(Asked::Stream(None));
        }
        // Before the lock is taken: a thread of a forked child's parent may have held it.
        self.context().check_alive()?;
        let retired = self.handle().retired.read().unwrap_or_else(PoisonError::into_inner);
        Ok(match &*retired {
            Some(how) => Asked::Retired(how.clone()),
            None => Asked::Stream(Some(Accepts { _retired: retired })),
        })
    }

    /// Refuses a stream that was retired.
    pub(crate) fn refuse_retired(&self) -> Result<(), Error> {
        if self.is_retired() { Err(self.refused()) } else { Ok(()) }
    }

    #[cold]
    fn refused(&self) -> Error {
        ErrorKind::StreamUnusable.error(format!(
            "the stream {:#x} was retired, so the driver may have ended it; use another stream, or \
             wrap the handle again by Device::foreign_stream if it is alive",
            self.raw().0
        ))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.handle().context
    }

    pub(crate) fn context_arc(&self) -> &Arc<Context> {
        &self.handle().context
    }

    pub(crate) fn guard(&self) -> Box<dyn gpuheap_pool::StreamGuard> {
        let in_use = Arc::downgrade(&self.inner);
        Box::new(StreamGuard { handle: self.inner.handle.clone(), in_use })
    }

    /// Returns `true` if it may end without anybody being told.
    #[inline]
    pub(crate) fn is_unannounced(&self) -> bool {
        self.handle().origin == Origin::Unannounced
    }

    /// Returns `true` if somebody else made it and will end it.
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

    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Notes what can be waited for; an event or a completed wait is never replaced by less.
    fn retire_as(&self, how: Retired) {
        let mut retired = self.retired.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*retired, None | Some(Retired::Unknown)) {
            *retired = Some(how);
        }
        self.is_retired.store(true, Ordering::Release);
    }
}

/// Where questions about a stream are answered.
enum Asked<'a> {
    /// By the driver. A foreign stream is not retired meanwhile.
    Stream(Option<Accepts<'a>>),
    /// By the state that was noted when the stream was retired.
    Retired(Retired),
}

/// While it lives, a foreign stream is not retired.
pub(crate) struct Accepts<'a> {
    _retired: RwLockReadGuard<'a, Option<Retired>>,
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
