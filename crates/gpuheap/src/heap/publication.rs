//! Answers questions of other processes about a published heap.
//!
//! An answer flushes no thread caches, and reads the tracked memory by site instead of by
//! allocation. It therefore costs the program's threads at most one short wait for the heap's lock.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use gpuheap_pool::Limits;
use gpuheap_publish::{
    Access, HeapStatus, Leaks, MOST_ENTRIES, Member, OpenScope, Recorded, Site, join,
};

use crate::error::{Error, ErrorKind};
use crate::heap::open_scopes::OpenScopes;
use crate::heap::recording::Recording;
use crate::heap::{Heap, HeapInner, limits};
use crate::logging;
use crate::track::Tracking;

/// A heap that answers questions of other processes.
struct PublishedHeap {
    heap: Weak<HeapInner>,
    /// Read-locked while an answer to another process keeps the heap alive. [`Heap::close`] waits
    /// for the answer.
    visits: Arc<RwLock<()>>,
    /// Recording that a question started.
    recording: Mutex<Option<Recording>>,
}

impl Heap {
    /// Returns the access that other processes have; `None` if the heap is not published. The
    /// Python package calls it to decide whether to publish Python's figures too.
    #[doc(hidden)]
    pub fn published(&self) -> Option<Access> {
        self.inner().publication.get()?.as_ref().ok().map(|(access, _)| *access)
    }
}

impl HeapInner {
    /// Begins to answer questions of other processes about the heap.
    pub(super) fn publish(self: &Arc<Self>, access: Access) -> Result<(), Error> {
        let (heap, visits) = (Arc::downgrade(self), self.visits.clone());
        let member = PublishedHeap { heap, visits, recording: Mutex::default() };
        let joined = join(Arc::new(member), access);
        let published = joined.map(|membership| (access, membership)).map_err(|error| {
            ErrorKind::HostResources.error(format!(
                "the heap cannot be published: {error}; set XDG_RUNTIME_DIR to a folder of this \
                 user, or leave GPUHEAP_PUBLISH and HeapBuilder::publish out"
            ))
        });
        self.publication.get_or_init(|| published).as_ref().map(drop).map_err(Error::clone)
    }

    /// Warns, once in a process, that a heap is not published although `GPUHEAP_PUBLISH` is set.
    /// Call it with no lock held.
    pub(super) fn warn_unpublished(&self) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if let Some(Err(error)) = self.publication.get()
            && !WARNED.swap(true, Ordering::Relaxed)
        {
            logging::warn(logging::ENVIRONMENT, format_args!("{error}"));
        }
    }

    /// Returns the list of open scopes. Returns `None` if the heap is not published, and in a
    /// forked child: a thread of the parent may have held the lock of the list.
    pub(crate) fn open_scopes(&self) -> Option<&OpenScopes> {
        let is_published = matches!(self.publication.get(), Some(Ok(_)));
        (is_published && self.context.check_alive().is_ok()).then_some(&self.scopes)
    }

    fn status_of_device(&self) -> HeapStatus {
        let (stats, limits, reserved) = {
            let mut state = self.device.lock();
            let stats = state.observed_stats();
            let reserved = match state.source.is_stream_ordered() {
                true => state.source.reserved().unwrap_or(stats.taken),
                false => stats.taken,
            };
            (stats, state.limits, reserved)
        };
        let (info, Limits { soft, hard }) = (self.context.info(), limits);
        HeapStatus {
            device: info.name.clone(),
            uuid: info.uuid.clone(),
            pool: self.pool.name().to_owned(),
            live: stats.live,
            live_peak: stats.live_peak.max(stats.live),
            cached: reserved.saturating_sub(stats.live_blocks),
            reserved,
            allocations: stats.allocations,
            frees: stats.frees,
            soft_limit: soft,
            hard_limit: hard,
            ..HeapStatus::default()
        }
    }

    fn lines(&self) -> Option<Leaks> {
        if self.tracker.tracking() == Tracking::Off {
            return None;
        }
        let (changes, left_out) = self.tracker.snapshot().largest(MOST_ENTRIES);
        let mut lines: Vec<Site> = Vec::new();
        for change in changes {
            let (allocations, bytes) = (change.allocations as u64, change.bytes as u64);
            // No lock is held: the first look-up of a stack's names takes milliseconds.
            let first = change.stack.frames().first();
            let function = first.and_then(|frame| frame.name.clone()).unwrap_or_default();
            let line = match first.and_then(|frame| Some((frame.file.as_ref()?, frame.line?))) {
                Some((file, line)) => format!("{file}:{line}"),
                None => format!("{}:{}", change.at.file(), change.at.line()),
            };
            let kind = change.kind.to_string();
            let is_same = |known: &&mut Site| {
                (&known.line, &known.function, &known.kind) == (&line, &function, &kind)
            };
            match lines.iter_mut().find(is_same) {
                Some(known) => {
                    known.allocations += allocations;
                    known.bytes += bytes;
                }
                None => {
                    let device = self.context.info().name.clone();
                    lines.push(Site { line, function, device, kind, allocations, bytes });
                }
            }
        }
        Some(Leaks { is_tracked: true, sites: lines, left_out: left_out as u64 })
    }

    fn set_published_limit(&self, bytes: Option<u64>) -> Result<u64, Error> {
        let limits = Limits { hard: bytes, soft: self.device.lock().limits.soft };
        limits::check(limits)?;
        limits::check_usable(limits, self.pool)?;
        self.device.set_limits(limits)
    }
}

impl PublishedHeap {
    /// Calls `work` with the heap; `None` if the heap or its context has ended.
    fn with_heap<R>(&self, work: impl FnOnce(&Arc<HeapInner>) -> R) -> Option<R> {
        let _visit = self.visits.read().unwrap_or_else(PoisonError::into_inner);
        let heap = self.heap.upgrade()?;
        heap.context.check_alive().ok()?;
        Some(work(&heap))
    }

    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe(recording: &Recording) -> Recorded {
    Recorded { path: recording.path().display().to_string(), stopped: recording.stopped() }
}

impl Member for PublishedHeap {
    fn heaps(&self) -> Vec<HeapStatus> {
        self.with_heap(|heap| heap.status_of_device()).into_iter().collect()
    }

    fn leaks(&self) -> Option<Leaks> {
        self.with_heap(|heap| heap.lines())?
    }

    fn scopes(&self) -> Vec<OpenScope> {
        let figures =
            |heap: &Arc<HeapInner>| Some(heap.open_scopes()?.figures(&heap.context.info().name));
        self.with_heap(figures).flatten().unwrap_or_default()
    }

    fn start_recording(&self, file: &Path) -> Result<Option<Recorded>, String> {
        let started = self.with_heap(|heap| Recording::start(heap, file));
        let Some(recording) = started.transpose().map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let recorded = describe(&recording);
        *self.recording() = Some(recording);
        Ok(Some(recorded))
    }

    fn stop_recording(&self) -> Option<Recorded> {
        let recording = self.recording().take()?;
        let recorded = describe(&recording);
        // Drops the recording in `with_heap`, because the drop keeps the heap alive for a moment.
        // `Heap::close` waits for the end of `with_heap`.
        self.with_heap(|_| drop(recording));
        Some(recorded)
    }

    fn flush(&self) -> Result<u64, String> {
        let flushed = self.with_heap(|heap| {
            let (mut sum, mut failure) = (0, Ok(()));
            for store in heap.stores() {
                match store.reclaim(u64::MAX) {
                    Ok(bytes) => sum += bytes,
                    Err(error) => failure = failure.and(Err(error)),
                }
            }
            // If one store gave bytes back, returns their number even if another store failed.
            if sum > 0 { Ok(sum) } else { failure.map(|()| 0) }
        });
        flushed.unwrap_or(Ok(0)).map_err(|error: Error| error.to_string())
    }

    fn set_limit(&self, device: &str, bytes: Option<u64>) -> Result<Option<u64>, String> {
        let set = self.with_heap(|heap| {
            let is_its = heap.context.info().name == device;
            is_its.then(|| heap.set_published_limit(bytes))
        });
        set.flatten().transpose().map_err(|error| error.to_string())
    }
}
