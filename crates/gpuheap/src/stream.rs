//! Streams. A stream is a queue of work that runs in order.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};

use gpuheap_driver::{CU_STREAM_NON_BLOCKING, CUcontext, CUresult, CUstream, Driver, check};
use gpuheap_pool::{Completed, Moments, SourceError, StreamHandle};

use crate::device::{CaptureStream, Context, ContextError, Device, Membership};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::thread_cache;
use crate::thread_stream::{self, OwnerThread, ThreadStream};

/// A stream of one device. Clones are the same stream.
///
/// The driver's stream is destroyed once no clone is left and no heap needs it to order a free. A
/// stream may therefore be dropped before the blocks that were used on it.
///
/// gpuheap never destroys a foreign stream ([`Device::foreign_stream`]).
/// [`Heap::retire`](crate::Heap::retire) announces the stream's end to a heap, unless the stream is
/// [unannounced](Device::unannounced_stream). A retired stream [refuses](Stream::is_retired) all
/// further work. The host and other streams can still wait for its earlier work.
///
/// # A thread's own default stream
///
/// The handle `CU_STREAM_PER_THREAD` (0x2) means a different stream on each thread. A `Stream` of
/// this handle means the default stream of the thread that made the `Stream`, also after that
/// thread's end. Other threads cannot enqueue work on that stream. For them, the `Stream` uses the
/// legacy default stream. Their work runs after all earlier work of the thread's stream, and before
/// all later work of that stream. The legacy default stream also waits for all other streams that
/// were not made as non-blocking, and these streams wait for it. While one of these streams is
/// capturing a graph, the `Stream` counts as capturing on other threads. [`raw`](Stream::raw)
/// returns the handle that the calling thread uses. Heaps over a pool of the driver
/// ([`PoolKind::Driver`](crate::PoolKind::Driver)) refuse the stream. Arrays of such a heap may be
/// used on it, and are freed on the stream that they were allocated on.
///
/// # A stream that is first seen in a capture
///
/// The driver returns no id of a stream that is capturing a graph. A `Stream` made of such a handle
/// is identified by that capture. Memory that is freed on such a stream is reused within the
/// capture. After the capture, heaps keep that memory for the graph, until the graph, its
/// executable graphs and their launches have ended. Memory that is freed after the capture is freed
/// in the order of the stream itself. The `Stream` may be used after the capture too, but each use
/// queries the driver, so make a new `Stream` instead. Heaps over a pool of the driver refuse the
/// stream while it captures.
#[derive(Clone)]
pub struct Stream {
    /// Clones of the stream share this. Heaps have only weak references, so that they notice when
    /// the program has dropped the last clone.
    inner: Arc<InUse>,
}

struct InUse {
    handle: Arc<DriverStream>,
    /// Thread whose own default stream this is.
    owner: Option<Arc<OwnerThread>>,
}

/// The driver's stream, destroyed with the last reference.
struct DriverStream {
    context: Arc<Context>,
    /// Handle that every thread uses; `CU_STREAM_PER_THREAD` for a thread's own default stream.
    raw: CUstream,
    /// Identifier of the thread whose own default stream this is.
    thread: Option<u64>,
    id: u64,
    origin: StreamOrigin,
    /// The stream's work that is known to have completed.
    completed: Arc<Completed>,
    /// The capture in which the stream was first seen; `None` if that was outside captures.
    capture: Option<Arc<CaptureStream>>,
    /// Set when the stream's end is announced to a heap. Each call that enqueues work on a foreign
    /// stream holds the read lock, so that no work follows the recorded end.
    retired: RwLock<Option<Retired>>,
    /// `true` once `retired` is set.
    is_retired: AtomicBool,
}

/// Way to wait for the work of a retired stream.
#[derive(Clone)]
enum Retired {
    /// An event that was recorded after all work of the stream.
    At(Arc<Event>),
    /// Nothing to wait for: all work of the stream has completed.
    Completed,
    /// No known state: the stream may have ended before an event was recorded.
    Unknown,
}

/// Permission to use a stream. A foreign stream is not retired while this exists.
type Alive<'a> = Option<RwLockReadGuard<'a, Option<Retired>>>;

/// The code that ends a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamOrigin {
    /// This library ends the stream with the last reference.
    Owned,
    /// The driver owns the stream. It is a default stream, and never ends.
    Default,
    /// Other code ends the stream, and announces the end.
    Foreign,
    /// Other code ends the stream without announcement.
    Unannounced,
    /// Other code ends the stream. Its handle is used only during one call of the heap.
    Passing,
}

/// A heap's reference to a stream.
struct StreamGuard {
    handle: Arc<DriverStream>,
    in_use: Weak<InUse>,
    /// Thread whose own default stream this is.
    owner: Option<Weak<OwnerThread>>,
}

impl gpuheap_pool::StreamGuard for StreamGuard {
    fn is_abandoned(&self) -> bool {
        if let Some(capture) = &self.handle.capture {
            return capture.has_ended();
        }
        match &self.owner {
            Some(owner) => owner.strong_count() == 0,
            None => {
                matches!(self.handle.origin, StreamOrigin::Owned | StreamOrigin::Passing)
                    && self.in_use.strong_count() == 0
            }
        }
    }

    fn is_foreign(&self) -> bool {
        self.handle.is_foreign() && self.handle.capture.is_none()
    }

    fn is_unannounced(&self) -> bool {
        self.handle.is_transient()
    }

    fn is_retired(&self) -> bool {
        self.handle.is_retired()
    }

    fn moments(&self) -> &Arc<Moments> {
        &self.handle.context.moments
    }

    fn completed(&self) -> u64 {
        match &self.handle.capture {
            Some(capture) => capture.completed(),
            None => self.moments().completed(&self.handle.completed),
        }
    }

    fn refuse_work(&self) {
        self.handle.retire_as(Retired::Unknown);
    }

    fn complete(&self) {
        self.handle.retire_as(Retired::Completed);
    }

    fn is_of_capture(&self) -> bool {
        self.handle.capture.is_some()
    }

    fn may_capture(&self) -> bool {
        self.handle.may_capture()
    }
}

impl Device {
    /// Makes a stream of the device that does not wait for the default stream.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn stream(&self) -> Result<Stream, Error> {
        Stream::new(self.context().clone())
    }

    /// Returns the legacy default stream.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn default_stream(&self) -> Result<Stream, Error> {
        Stream::legacy(self.context().clone())
    }

    /// Wraps a foreign stream, given by the driver's handle (`CUstream` and `cudaStream_t` are the
    /// same). gpuheap does not destroy the stream. The handle 0 is the legacy default stream. The
    /// handle `CU_STREAM_PER_THREAD` (0x2) is the calling thread's [own default
    /// stream](Stream#a-threads-own-default-stream). Heaps notice the end of that stream by
    /// themselves.
    ///
    /// # Safety
    ///
    /// `raw` is 0, one of the driver's default streams, or a stream that is alive. It stays alive
    /// until each heap that the result was used with has ended, or was notified of the stream's end
    /// by [`retire`](crate::Heap::retire). If the result is used without a heap, the stream stays
    /// alive until the last use of the result and its clones.
    ///
    /// If a stream ends before a heap is notified, the first call afterwards with that heap, its
    /// blocks or its arrays is [`retire_all`](crate::Heap::retire_all).
    ///
    /// After a heap was notified, the handle is not used for further work on memory that the heap
    /// had allocated before. The exception is memory that is freed on another stream after that
    /// work. The end of a thread's own default stream is the destruction of the thread's
    /// thread-local variables.
    ///
    /// If a stream ended without notice, any use of its handle is undefined behavior, also a use by
    /// a heap. The driver may crash. If the driver has given the handle to a new stream, memory is
    /// reused on that stream while work of the old stream still runs.
    ///
    /// # Errors
    ///
    /// The stream belongs to another context than the device's primary context; its capture of a
    /// graph was invalidated; `raw` is the legacy default stream, and would have to wait for a
    /// stream that is capturing; `raw` is `CU_STREAM_PER_THREAD` and the thread is ending; a driver
    /// error.
    pub unsafe fn foreign_stream(&self, raw: CUstream) -> Result<Stream, Error> {
        // SAFETY: this function's caller guarantees all that `Stream::foreign` requires.
        unsafe { Stream::foreign(self.context().clone(), raw, StreamOrigin::Foreign) }
    }

    /// Wraps a foreign stream that ends without announcement, for hooks that are not notified of
    /// the stream's end. Each free on the stream records an event, so that heaps no longer need the
    /// stream once all its memory is freed. [`Heap::retire`](crate::Heap::retire), even after the
    /// stream's end, frees the state that heaps keep for it.
    ///
    /// Such a free queries whether the stream is capturing a graph, and records the event (140 ns
    /// on an H200). A heap keeps at most 32 events of a stream and reuses them. If a stream has 32
    /// events, a free also queries whether the older half is reached (130 ns), and then drops that
    /// half. If the half is not reached, the free records the newest event again, and the next free
    /// repeats the query. A request for a recently freed block then waits for later frees too.
    ///
    /// # Safety
    ///
    /// `raw` is 0, one of the driver's default streams, or a stream that is alive. It must be alive
    ///
    /// * while clones of the result are used and not [retired](Stream::is_retired), and while any
    ///   array exists whose last use was on the stream;
    /// * when a block that was allocated on it is freed, unless
    ///   [`free_on_unchecked`](crate::Block::free_on_unchecked) frees the block on another stream;
    /// * if it is [capturing](Stream#a-stream-that-is-first-seen-in-a-capture) a graph, until the
    ///   capture ends.
    ///
    /// # Errors
    ///
    /// The errors of [`foreign_stream`](Device::foreign_stream).
    pub unsafe fn unannounced_stream(&self, raw: CUstream) -> Result<Stream, Error> {
        // SAFETY: this function's caller guarantees all that `Stream::foreign` requires.
        unsafe { Stream::foreign(self.context().clone(), raw, StreamOrigin::Unannounced) }
    }
}

impl Stream {
    pub(crate) fn new(context: Arc<Context>) -> Result<Stream, Error> {
        let mut raw = CUstream::NULL;
        {
            let _current = context.enter_aside()?;
            // SAFETY: the driver writes the new stream to the local `raw`; the context is current.
            let created =
                unsafe { context.driver().cuStreamCreate(&mut raw, CU_STREAM_NON_BLOCKING) };
            check("cuStreamCreate", created)?;
        }
        Stream::wrap(context, raw, StreamOrigin::Owned)
    }

    pub(crate) fn legacy(context: Arc<Context>) -> Result<Stream, Error> {
        Stream::wrap(context, CUstream::LEGACY, StreamOrigin::Default)
    }

    /// # Safety
    ///
    /// The requirements of [`Device::foreign_stream`] or of [`Device::unannounced_stream`],
    /// depending on `origin`.
    unsafe fn foreign(
        context: Arc<Context>,
        raw: CUstream,
        origin: StreamOrigin,
    ) -> Result<Stream, Error> {
        if raw == CUstream::NULL || raw == CUstream::LEGACY {
            return Stream::legacy(context);
        }
        if raw == CUstream::PER_THREAD {
            return Stream::thread_default(context);
        }
        let mut of = CUcontext::NULL;
        let code = {
            let _current = context.enter()?;
            // SAFETY: `of` is a local, and the caller guarantees that the stream is alive.
            unsafe { context.driver().cuStreamGetCtx(raw, &mut of) }
        };
        if code == CUresult::ERROR_STREAM_CAPTURE_INVALIDATED {
            // Calls `wrap` for its error, because that error names the remedy: end the capture
            // first.
            Stream::wrap(context.clone(), raw, origin)?;
        }
        check("cuStreamGetCtx", code)?;
        if of != context.raw() {
            return Err(ErrorKind::WrongDevice.error(format!(
                "the stream {:#x} is of another context than the primary one of {context}; use a \
                 stream that was made while that one was current, as those of the CUDA runtime are",
                raw.0
            )));
        }
        Stream::wrap(context, raw, origin)
    }

    fn wrap(context: Arc<Context>, raw: CUstream, origin: StreamOrigin) -> Result<Stream, Error> {
        // The handle is made first: if the id cannot be queried, its drop destroys the stream.
        let mut handle = DriverStream::new(context, raw, origin);
        let (mut id, mut capture) = (0, None);
        {
            let _current = handle.context.enter_aside()?;
            // Querying the stream's id would break the capture (H200, driver 580).
            if handle.context.is_capturing_inside(raw)? {
                capture = Some(handle.find_capture(StreamHandle(raw.0))?);
            } else {
                // SAFETY: `id` is a local; `handle` owns the stream, or the caller keeps it alive.
                let code = unsafe { handle.context.driver().cuStreamGetId(raw, &mut id) };
                check("cuStreamGetId", code)?;
                handle.context.captures.note_outside(StreamHandle(raw.0));
            }
        }
        handle.id = capture.as_ref().map_or(id, |capture| capture.number);
        handle.capture = capture;
        Ok(Stream { inner: Arc::new(InUse { handle: Arc::new(handle), owner: None }) })
    }

    /// Returns the calling thread's own default stream.
    fn thread_default(context: Arc<Context>) -> Result<Stream, Error> {
        let own = thread_stream::current(&context)?;
        let mut handle = DriverStream::new(context, CUstream::PER_THREAD, StreamOrigin::Default);
        let owner = match own {
            ThreadStream::Known { owner, id, completed } => {
                (handle.id, handle.completed) = (id, completed);
                owner
            }
            ThreadStream::Capturing(owner) => {
                let capture = {
                    let _current = handle.context.enter_aside()?;
                    handle.find_capture(StreamHandle::from_thread(owner.thread))?
                };
                (handle.id, handle.capture) = (capture.number, Some(capture));
                owner
            }
        };
        handle.thread = Some(owner.thread);
        Ok(Stream { inner: Arc::new(InUse { handle: Arc::new(handle), owner: Some(owner) }) })
    }

    /// Returns `true` if the stream was first seen while it
    /// [captured](Stream#a-stream-that-is-first-seen-in-a-capture) a graph. This object then
    /// identifies the stream by that capture.
    #[inline]
    pub fn is_of_capture(&self) -> bool {
        self.handle().capture.is_some()
    }

    /// Returns the stream with its current id. A stream first seen in a graph capture has a number
    /// of this library as its id. After the capture, its id is the driver's id.
    #[cold]
    pub(crate) fn renamed(&self) -> Result<Stream, Error> {
        let _alive = self.accept_work()?;
        let Some(capture) = &self.handle().capture else { return Ok(self.clone()) };
        match self.handle().membership(capture)? {
            Membership::Member => Ok(self.clone()),
            // SAFETY: the stream's maker keeps it alive until it is retired, and `_alive` prevents
            // its retirement.
            Membership::Ended => unsafe {
                Stream::foreign(self.context_arc().clone(), self.raw(), self.handle().origin)
            },
            Membership::Unknown => Err(refuse_unnamed(self.raw())),
        }
    }

    /// Returns the stream on which to free a block that was allocated in a capture; `None` if the
    /// memory has to be kept for the graph.
    ///
    /// # Safety
    ///
    /// The stream is alive.
    pub(crate) unsafe fn after_capture(
        context: &Arc<Context>,
        capture: &CaptureStream,
    ) -> Result<Option<Stream>, Error> {
        let handle = capture.handle();
        let raw = handle.thread().map_or(CUstream(handle.0), thread_stream::handle);
        let membership = {
            let _current = context.enter_aside()?;
            capture.membership(context.driver(), raw)?
        };
        match membership {
            Membership::Member => return Ok(None),
            Membership::Unknown => {
                capture.doubt();
                return Ok(None);
            }
            Membership::Ended => {}
        }
        // SAFETY: the caller guarantees that the stream is alive.
        unsafe { Stream::foreign(context.clone(), raw, StreamOrigin::Passing) }.map(Some)
    }

    /// Returns the driver's handle with which the calling thread enqueues work in this stream's
    /// order.
    ///
    /// The handle is the same on every thread, except for a thread's own default stream. For such a
    /// stream, the handle is `CU_STREAM_PER_THREAD` on the owning thread. On all other threads, it
    /// is the legacy default stream. Work there [is ordered](Stream#a-threads-own-default-stream)
    /// with the work of the owning thread's stream. Use the handle only on the thread that called
    /// this method.
    #[inline]
    pub fn raw(&self) -> CUstream {
        self.handle().raw_here()
    }

    /// Returns the driver's id of the stream. No other stream of the process ever has this id.
    #[inline]
    pub fn id(&self) -> u64 {
        self.handle().id
    }

    /// Returns the device of the stream.
    pub fn device(&self) -> Device {
        Device::from(self.context_arc().clone())
    }

    /// Blocks until all work of the stream has completed.
    ///
    /// # Errors
    ///
    /// The stream's work failed. The stream is [capturing](Stream::is_capturing) a graph, and the
    /// wait would break the capture. The stream is [unannounced](Device::unannounced_stream) and
    /// was [retired](Stream::is_retired), so it may have ended.
    pub fn synchronize(&self) -> Result<(), Error> {
        let alive = match self.begin_use()? {
            Ok(alive) => alive,
            Err(end) => return self.final_event(end)?.map_or(Ok(()), |event| event.synchronize()),
        };
        if self.context().is_capturing(self.raw())? {
            return Err(SourceError::Capturing.into());
        }
        if alive.is_some() || self.handle().thread.is_some() {
            // Waits for an event and not for the stream, for two reasons. A foreign stream may end
            // during a wait for the stream. A thread's own default stream may depend on work of the
            // legacy default stream, and only an event covers that work.
            let event = self.handle().record(false)?;
            drop(alive);
            event.synchronize()?;
            self.note_completed(event.moment());
            return Ok(());
        }
        let moment = self.context().moments.begin();
        {
            let _current = self.context().enter()?;
            // SAFETY: `self` keeps a stream of this library alive, and other streams took the
            // branch above.
            let waited = unsafe { self.context().driver().cuStreamSynchronize(self.raw()) };
            check("cuStreamSynchronize", waited)?;
        }
        self.note_completed(moment);
        Ok(())
    }

    /// Returns `true` if all work enqueued so far has completed. Does not wait. For a thread's own
    /// default stream, queries the legacy default stream. The result is then `false` too while work
    /// of another blocking stream is pending.
    ///
    /// # Errors
    ///
    /// The stream's work failed. The stream is [capturing](Stream::is_capturing) a graph, and the
    /// query would break the capture. The stream is [unannounced](Device::unannounced_stream) and
    /// was [retired](Stream::is_retired), so it may have ended.
    pub fn is_done(&self) -> Result<bool, Error> {
        let alive = match self.begin_use()? {
            Ok(alive) => alive,
            Err(end) => return self.final_event(end)?.map_or(Ok(true), |event| event.is_done()),
        };
        let raw = match self.handle().thread {
            // The thread's stream may wait for work on the legacy default stream. Only a query of
            // the legacy default stream covers that work too.
            Some(_) => CUstream::LEGACY,
            None => self.handle().raw,
        };
        if self.context().is_capturing(raw)? {
            return Err(SourceError::Capturing.into());
        }
        let moment = self.context().moments.begin();
        let code = {
            let _current = self.context().enter()?;
            // SAFETY: as long as `alive` exists, a foreign stream is not retired, and its handle is
            // valid.
            unsafe { self.context().driver().cuStreamQuery(raw) }
        };
        drop(alive);
        if code == CUresult::ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuStreamQuery", code)?;
        self.note_completed(moment);
        Ok(true)
    }

    /// Returns `true` if the stream's end was announced to a heap, by
    /// [`Heap::retire`](crate::Heap::retire) or [`Heap::retire_all`](crate::Heap::retire_all). A
    /// retired stream refuses work, and gpuheap no longer uses the driver's handle through this
    /// object or its clones. If the driver's stream is still alive, [`Device::foreign_stream`]
    /// makes a usable object for it.
    pub fn is_retired(&self) -> bool {
        self.handle().is_retired()
    }

    /// Returns `true` if this object has other clones. The program may have clones, and so may
    /// arrays that were last used on this stream.
    pub fn has_clones(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    /// Returns another object for the same stream. [`has_clones`](Stream::has_clones) counts the
    /// clones of each object separately. A [retirement](Stream::is_retired) applies to both
    /// objects. If this library owns the stream, returns an ordinary clone, because the stream ends
    /// with its last clone.
    pub fn counted_apart(&self) -> Stream {
        let InUse { handle, owner } = &*self.inner;
        if handle.origin == StreamOrigin::Owned {
            return self.clone();
        }
        Stream { inner: Arc::new(InUse { handle: handle.clone(), owner: owner.clone() }) }
    }

    /// Returns `true` if the stream is capturing a graph: enqueued work is recorded and does not
    /// run. The legacy default stream counts as capturing while any stream that it waits for is
    /// capturing. A [retired](Stream::is_retired) stream does not count as capturing.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn is_capturing(&self) -> Result<bool, Error> {
        match self.begin_use()? {
            Ok(_alive) => Ok(self.context().is_capturing(self.raw())?),
            Err(_) => Ok(false),
        }
    }

    /// Records an event at the current point of the stream. The event keeps no time, so it is
    /// cheap. Does not wait.
    ///
    /// # Errors
    ///
    /// The stream was [retired](Stream::is_retired); a driver error.
    pub fn record(&self) -> Result<Event, Error> {
        self.record_as(false)
    }

    /// Records an event that keeps the time at which it was reached. Does not wait.
    ///
    /// # Errors
    ///
    /// The stream was [retired](Stream::is_retired); a driver error.
    pub fn record_timed(&self) -> Result<Event, Error> {
        self.record_as(true)
    }

    /// Makes all work that is enqueued from now on wait for `event`. The event may be of another
    /// device of the same driver. The host does not wait.
    ///
    /// # Errors
    ///
    /// The event is of another driver, such as an event of an emulated device on the stream of a
    /// real device; the stream was [retired](Stream::is_retired); a driver error.
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
        // SAFETY: `accept_work` keeps the stream alive, and `event` owns its driver event.
        let waits = unsafe { context.driver().cuStreamWaitEvent(self.raw(), event.raw(), 0) };
        Ok(check("cuStreamWaitEvent", waits)?)
    }

    fn record_as(&self, timed: bool) -> Result<Event, Error> {
        let _alive = self.accept_work()?;
        let DriverStream { context, id, completed, .. } = self.handle();
        let event = self.handle().record(timed)?;
        thread_cache::note_moment(
            context.number(),
            *id,
            event.moment(),
            context.moments.completed(completed),
        );
        Ok(event)
    }

    /// Notes that all work enqueued before `moment` has completed.
    fn note_completed(&self, moment: u64) {
        let DriverStream { context, id, completed, .. } = &*self.inner.handle;
        context.moments.complete(completed, moment);
        thread_cache::note_completed(context.number(), Some(*id));
    }

    /// Makes one driver call that enqueues work on the stream.
    pub(crate) fn enqueue(
        &self,
        function: &'static str,
        call: impl FnOnce(&dyn Driver) -> CUresult,
    ) -> Result<(), Error> {
        let _enqueuing = self.begin_enqueuing()?;
        Ok(check(function, call(self.context().driver()))?)
    }

    /// Makes the stream's context current. Keeps context and stream alive until the result is
    /// dropped.
    fn begin_enqueuing(&self) -> Result<impl Sized, Error> {
        let working = self.context().gate.work()?;
        let alive = self.accept_work()?;
        let current = self.context().enter()?;
        // Fields are dropped in order: the thread leaves the context before the stream may end.
        Ok((current, alive, working))
    }

    /// Makes all work that is enqueued from now on wait for the work enqueued on `other` so far.
    /// Returns an error if only one of the two streams is capturing.
    pub(crate) fn wait_for(&self, other: &Stream) -> Result<(), Error> {
        if let Err(end) = other.begin_use()? {
            let Some(event) = other.final_event(end)? else { return Ok(()) };
            // If this stream is capturing a graph, the event would not be part of that graph.
            self.refuse_capturing()?;
            return self.wait(&event);
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

    /// Refuses an operation that would break a capture, or could not be part of its graph.
    pub(crate) fn refuse_capturing(&self) -> Result<(), Error> {
        if self.is_capturing()? { Err(SourceError::Capturing.into()) } else { Ok(()) }
    }

    /// Makes a foreign stream refuse all further work. Records an event after the stream's earlier
    /// work, unless the stream may end without announcement: its handle may be invalid by now.
    pub(crate) fn retire(&self) -> Result<(), Error> {
        let handle = &self.inner.handle;
        handle.context.check_alive()?;
        // Records the event with the lock held, so that all enqueued work is before the event.
        let mut retired = handle.retired.write().unwrap_or_else(PoisonError::into_inner);
        if retired.is_some() {
            return Ok(());
        }
        *retired = Some(match handle.origin {
            StreamOrigin::Unannounced | StreamOrigin::Passing => Retired::Unknown,
            _ => {
                if handle.context.is_capturing(handle.raw_here())? {
                    return Err(SourceError::Capturing.into());
                }
                Retired::At(Arc::new(handle.record(false)?))
            }
        });
        handle.is_retired.store(true, Ordering::Release);
        Ok(())
    }

    /// Keeps a foreign stream from being retired until the result is dropped. Returns an error if
    /// the stream is retired already.
    #[inline]
    pub(crate) fn accept_work(&self) -> Result<impl Sized, Error> {
        self.begin_use()?.map_err(|_| self.refused())
    }

    /// Returns permission to use the stream, or the state in which it was retired.
    #[inline]
    fn begin_use(&self) -> Result<Result<Alive<'_>, Retired>, Error> {
        if !self.is_foreign() {
            return Ok(Ok(None));
        }
        // Checks for a fork before taking the lock, because a thread of the parent may have held
        // the lock.
        self.context().check_alive()?;
        let retired = self.handle().retired.read().unwrap_or_else(PoisonError::into_inner);
        Ok(match &*retired {
            Some(end) => Err(end.clone()),
            None => Ok(Some(retired)),
        })
    }

    /// Returns the event after all work of a retired stream; `None` if all of it has completed.
    fn final_event(&self, end: Retired) -> Result<Option<Arc<Event>>, Error> {
        match end {
            Retired::At(event) => Ok(Some(event)),
            Retired::Completed => Ok(None),
            Retired::Unknown => Err(self.refused()),
        }
    }

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
        let owner = self.inner.owner.as_ref().map(Arc::downgrade);
        Box::new(StreamGuard { handle: self.inner.handle.clone(), in_use, owner })
    }

    /// Returns the handle in the form in which heaps store it.
    pub(crate) fn stored_handle(&self) -> StreamHandle {
        match self.handle().thread {
            Some(thread) => StreamHandle::from_thread(thread),
            None => StreamHandle(self.handle().raw.0),
        }
    }

    pub(crate) fn is_thread_default(&self) -> bool {
        self.handle().thread.is_some()
    }

    /// Returns `true` if the handle is valid only during calls that the program makes with it. Such
    /// a stream may end unannounced, or was first seen in a capture.
    #[inline]
    pub(crate) fn is_transient(&self) -> bool {
        self.handle().is_transient()
    }

    /// Returns the capture in which the stream was first seen; `None` if that was outside captures.
    #[inline]
    pub(crate) fn capture(&self) -> Option<&Arc<CaptureStream>> {
        self.handle().capture.as_ref()
    }

    /// Returns `true` if the end of the stream will be announced.
    pub(crate) fn is_announced(&self) -> bool {
        self.handle().origin == StreamOrigin::Foreign
    }

    /// Returns `true` if other code made the stream and will end it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.handle().is_foreign()
    }

    #[inline]
    fn handle(&self) -> &DriverStream {
        &self.inner.handle
    }
}

impl DriverStream {
    fn new(context: Arc<Context>, raw: CUstream, origin: StreamOrigin) -> DriverStream {
        DriverStream {
            context,
            raw,
            thread: None,
            id: 0,
            origin,
            completed: Arc::default(),
            capture: None,
            retired: RwLock::new(None),
            is_retired: AtomicBool::new(false),
        }
    }

    /// Returns the identity of a stream that is capturing a graph. The caller entered the context.
    fn find_capture(&self, stored: StreamHandle) -> Result<Arc<CaptureStream>, Error> {
        let Context { captures, moments, .. } = &*self.context;
        let named = captures.stream(self.context.driver(), moments, self.raw, stored)?;
        named.ok_or_else(|| refuse_unnamed(self.raw))
    }

    /// Queries whether the stream is still part of the capture in which it was first seen.
    fn membership(&self, capture: &CaptureStream) -> Result<Membership, ContextError> {
        let _current = self.context.enter_aside()?;
        Ok(capture.membership(self.context.driver(), self.raw_here())?)
    }

    /// Returns `true` if the capture in which the stream was first seen may still be active. Does
    /// not use the handle of a stream that may have ended.
    fn may_capture(&self) -> bool {
        let Some(capture) = &self.capture else { return false };
        let is_alive = self.origin == StreamOrigin::Foreign && !capture.is_retired();
        if is_alive {
            !matches!(self.membership(capture), Ok(Membership::Ended))
        } else {
            capture.may_capture()
        }
    }

    fn is_transient(&self) -> bool {
        matches!(self.origin, StreamOrigin::Unannounced | StreamOrigin::Passing)
            || self.capture.is_some()
    }

    /// Returns the driver's handle for the calling thread.
    #[inline]
    fn raw_here(&self) -> CUstream {
        self.thread.map_or(self.raw, thread_stream::handle)
    }

    fn record(&self, timed: bool) -> Result<Event, ContextError> {
        Event::record(&self.context, self.raw_here(), timed, &self.completed)
    }

    fn is_foreign(&self) -> bool {
        matches!(
            self.origin,
            StreamOrigin::Foreign | StreamOrigin::Unannounced | StreamOrigin::Passing
        )
    }

    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Stores how the stream was retired. Replaces only [`Retired::Unknown`].
    fn retire_as(&self, how: Retired) {
        let mut retired = self.retired.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*retired, None | Some(Retired::Unknown)) {
            *retired = Some(how);
        }
        self.is_retired.store(true, Ordering::Release);
    }
}

impl Drop for DriverStream {
    fn drop(&mut self) {
        if self.origin == StreamOrigin::Owned
            && let Ok(_current) = self.context.enter()
        {
            // SAFETY: this object owns the stream and does not use it again; its enqueued work
            // still runs.
            let _: CUresult = unsafe { self.context.driver().cuStreamDestroy_v2(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream {}", self.id())
    }
}

/// Returns the error for a capturing stream that a heap cannot identify.
#[cold]
fn refuse_unnamed(raw: CUstream) -> Error {
    ErrorKind::Capturing.error(match raw {
        CUstream::LEGACY => {
            "the legacy default stream would have to wait for a stream that is capturing a graph; use \
             the heap on the default stream before the capture begins, or begin the capture on a \
             non-blocking stream"
                .to_owned()
        }
        _ => format!(
            "the capture of a graph on the stream {:#x} was invalidated by an earlier call, so nothing \
             can be enqueued there; end the capture first",
            raw.0
        ),
    })
}
