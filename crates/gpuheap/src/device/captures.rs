//! Streams that were first seen while they captured a graph.
//!
//! The driver does not return the id of a stream that captures: the query breaks the capture (H200,
//! driver 580). Until the capture ends, such a stream is identified by the capture's id and the
//! stream's handle. Memory that is freed on the stream is kept for the graph, because a launch of
//! the graph on any stream writes to that memory. A user object of the driver shows when the graph,
//! its executable graphs and their launches have ended. From then on, every stream may reuse the
//! memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap_driver::{
    CU_GRAPH_USER_OBJECT_MOVE, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUgraph, CUresult, CUstream,
    CUstreamCaptureStatus, CUuserObject, Driver, DriverError, check,
};
use gpuheap_pool::{Completed, Moments, StreamHandle};
use rustc_hash::FxHashMap;

/// Bit that marks the number of a capture's stream. Such a number replaces the driver's id. The
/// driver's ids never have this bit, because they count up from a small number.
const OF_CAPTURE: u64 = 1 << 63;

/// Number that replaces the id of a stream whose handle may be invalid.
pub(crate) const NO_STREAM: u64 = !OF_CAPTURE;

#[inline]
pub(crate) fn is_of_capture(id: u64) -> bool {
    id & OF_CAPTURE != 0
}

/// The streams of captures in one context.
#[derive(Default)]
pub(crate) struct Captures {
    known: Mutex<Known>,
    /// Number of `active` streams.
    active: AtomicUsize,
}

#[derive(Default)]
struct Known {
    by_number: FxHashMap<u64, Arc<CaptureStream>>,
    by_handle: FxHashMap<(u64, StreamHandle), Arc<CaptureStream>>,
    /// The streams whose captures are not known to have ended.
    active: Vec<Arc<CaptureStream>>,
}

/// A stream within one capture.
pub(crate) struct CaptureStream {
    /// Number of the stream, in place of the driver's id.
    pub(crate) number: u64,
    handle: StreamHandle,
    graph: Arc<CapturedGraph>,
    /// Number of blocks that were allocated on the stream and are not freed.
    live: AtomicU64,
    /// `true` once the end of the driver's stream was announced: its handle may be stale.
    is_retired: AtomicBool,
}

struct CapturedGraph {
    /// The driver's id of the capture.
    capture: u64,
    moments: Arc<Moments>,
    /// Moment before which all frees in the capture are completed. The end of the graph sets it.
    completed: Completed,
    /// `true` once the capture is known to have ended: all of the graph is captured.
    is_captured: AtomicBool,
    /// `true` if work after the capture may use memory that was freed in the capture. That work may
    /// still run when the graph has ended, so the graph's end does not complete the frees.
    is_doubtful: AtomicBool,
    /// `true` once the graph, its executable graphs and their launches have ended.
    has_ended: AtomicBool,
}

/// Relation of a stream to the capture in which a heap first saw the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    Member,
    Ended,
    /// The driver returns no id of the stream's capture, for example because the capture was
    /// invalidated. The stream may be part of this capture or of a later one.
    Unknown,
}

/// State of a stream with regard to captures.
enum CaptureState {
    None,
    Active(u64, CUgraph),
    /// The capture was invalidated, so the driver no longer returns the id of the capture.
    Invalidated,
    /// The stream is the legacy default stream, and would have to wait for a stream that captures.
    Implicit,
}

impl CaptureState {
    /// Queries the capture state of a stream. The caller has entered the stream's context.
    fn query(driver: &dyn Driver, stream: CUstream) -> Result<CaptureState, DriverError> {
        let (mut status, mut id, mut graph) = (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL);
        let (nodes, count) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `status`, `id` and `graph` outlive the call; the driver skips results whose
        // pointer is null. `stream` is alive: the caller is using it.
        let code = unsafe {
            driver.cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, nodes, count)
        };
        if code == CUresult::ERROR_STREAM_CAPTURE_IMPLICIT {
            return Ok(CaptureState::Implicit);
        }
        check("cuStreamGetCaptureInfo_v2", code)?;
        Ok(match status {
            CUstreamCaptureStatus::NONE => CaptureState::None,
            CUstreamCaptureStatus::ACTIVE => CaptureState::Active(id, graph),
            _ => CaptureState::Invalidated,
        })
    }
}

impl Captures {
    /// Returns the [`CaptureStream`] of the stream `raw`, and makes it at the first call in a
    /// capture. Returns `None` if `raw` is not capturing, or its capture was invalidated. The
    /// caller has entered the context, and keeps the stream alive.
    pub(crate) fn stream(
        &self,
        driver: &dyn Driver,
        moments: &Arc<Moments>,
        raw: CUstream,
        handle: StreamHandle,
    ) -> Result<Option<Arc<CaptureStream>>, DriverError> {
        let CaptureState::Active(capture, graph) = CaptureState::query(driver, raw)? else {
            return Ok(None);
        };
        let mut known = self.lock();
        if let Some(stream) = known.by_handle.get(&(capture, handle)) {
            return Ok(Some(stream.clone()));
        }
        known.forget_ended();
        let same = known.by_number.values().find(|stream| stream.graph.capture == capture);
        let graph = match same {
            Some(stream) => stream.graph.clone(),
            None => CapturedGraph::follow(driver, moments, capture, graph)?,
        };
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed) | OF_CAPTURE;
        let (live, is_retired) = (AtomicU64::new(0), AtomicBool::new(false));
        let stream = Arc::new(CaptureStream { number, handle, graph, live, is_retired });
        known.by_number.insert(number, stream.clone());
        known.by_handle.insert((capture, handle), stream.clone());
        known.active.push(stream.clone());
        self.active.store(known.active.len(), Ordering::Release);
        Ok(Some(stream))
    }

    /// Returns a stream by its number, while its blocks are live or its graph exists.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<CaptureStream>> {
        self.lock().by_number.get(&number).cloned()
    }

    /// Marks a stream, or all streams, as retired.
    pub(crate) fn retire(&self, handle: Option<StreamHandle>) {
        let known = self.lock();
        let ended = |stream: &&Arc<CaptureStream>| handle.is_none_or(|of| of == stream.handle);
        for stream in known.by_number.values().filter(ended) {
            stream.is_retired.store(true, Ordering::Release);
        }
    }

    /// Records that a live stream is part of no capture.
    #[inline]
    pub(crate) fn note_outside(&self, handle: StreamHandle) {
        if self.active.load(Ordering::Acquire) > 0 {
            self.note_captured(handle);
        }
    }

    #[cold]
    fn note_captured(&self, handle: StreamHandle) {
        let mut known = self.lock();
        known.active.retain(|stream| {
            if stream.handle == handle {
                stream.graph.is_captured.store(true, Ordering::Release);
            }
            stream.may_capture()
        });
        self.active.store(known.active.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Forgets the streams that no block and no graph needs.
    fn forget_ended(&mut self) {
        let is_needed = |of: &CaptureStream| !of.has_ended() || of.live.load(Ordering::Relaxed) > 0;
        self.by_handle.retain(|_, stream| is_needed(stream));
        self.by_number.retain(|_, stream| is_needed(stream));
        self.active.retain(|stream| stream.may_capture());
    }
}

impl CaptureStream {
    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Returns `true` if the graph, its executable graphs and their launches have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.graph.has_ended.load(Ordering::Acquire)
    }

    /// Returns `true` if the capture is not known to have ended.
    pub(crate) fn may_capture(&self) -> bool {
        !self.has_ended() && !self.graph.is_captured.load(Ordering::Acquire)
    }

    /// Returns the moment (see [`Moments`]) before which all frees in the capture are completed.
    pub(crate) fn completed(&self) -> u64 {
        self.graph.moments.completed_by_itself(&self.graph.completed)
    }

    /// Counts a block that was allocated on the stream.
    pub(crate) fn note_allocated(&self) {
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a block of the stream was freed.
    pub(crate) fn note_freed(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that the end of the graph does not complete the frees in the capture. The heap then
    /// waits for the whole device, after that end, before it reuses the freed memory.
    pub(crate) fn doubt(&self) {
        self.graph.is_doubtful.store(true, Ordering::SeqCst);
    }

    /// Queries whether the stream is still part of the capture. `raw` is the stream's handle on the
    /// calling thread. The caller has entered the context, and keeps the stream alive.
    pub(crate) fn membership(
        &self,
        driver: &dyn Driver,
        raw: CUstream,
    ) -> Result<Membership, DriverError> {
        if !self.may_capture() {
            return Ok(Membership::Ended);
        }
        match CaptureState::query(driver, raw)? {
            CaptureState::Active(capture, _) if capture == self.graph.capture => {
                return Ok(Membership::Member);
            }
            CaptureState::None | CaptureState::Active(..) => {}
            CaptureState::Invalidated | CaptureState::Implicit => return Ok(Membership::Unknown),
        }
        self.graph.is_captured.store(true, Ordering::Release);
        Ok(Membership::Ended)
    }
}

impl CapturedGraph {
    /// Makes the graph of a capture hold a user object, so that the end of the graph is reported.
    fn follow(
        driver: &dyn Driver,
        moments: &Arc<Moments>,
        capture: u64,
        graph: CUgraph,
    ) -> Result<Arc<CapturedGraph>, DriverError> {
        let made = Arc::new(CapturedGraph {
            capture,
            moments: moments.clone(),
            completed: Completed::default(),
            is_captured: AtomicBool::new(false),
            is_doubtful: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let mut object = CUuserObject::NULL;
        let data = Arc::into_raw(made.clone());
        // SAFETY: `object` outlives the call. `data` is a strong reference, and `note_end` drops it
        // once.
        let created = unsafe {
            let (data, flags) = (data.cast_mut().cast(), CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
            driver.cuUserObjectCreate(&mut object, data, Some(note_end), 1, flags)
        };
        if let Err(error) = check("cuUserObjectCreate", created) {
            // SAFETY: the driver made no user object, so `note_end` never drops this reference.
            drop(unsafe { Arc::from_raw(data) });
            return Err(error);
        }
        // SAFETY: the capture is active, so its graph exists; the object was just made.
        let kept =
            unsafe { driver.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) };
        if let Err(error) = check("cuGraphRetainUserObject", kept) {
            // SAFETY: `object` was created with one reference, and the graph did not take it.
            let _: CUresult = unsafe { driver.cuUserObjectRelease(object, 1) };
            return Err(error);
        }
        Ok(made)
    }
}

/// Records that a graph has ended. The driver calls this function on any thread, once for each user
/// object. The function makes no driver call and takes no lock.
unsafe extern "C" fn note_end(data: *mut c_void) {
    // SAFETY: `follow` passed this strong reference, and the driver passes it to one call only.
    let graph = unsafe { Arc::from_raw(data.cast_const().cast::<CapturedGraph>()) };
    let moment = graph.moments.begin();
    // Reads the flag after `begin`. If another thread calls `doubt` after this load, the frees of
    // that thread have later moments than `moment`, so `complete` below does not cover them.
    if !graph.is_doubtful.load(Ordering::SeqCst) {
        graph.moments.complete(&graph.completed, moment);
    }
    graph.has_ended.store(true, Ordering::Release);
}
