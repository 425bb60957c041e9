//! Tracks outstanding allocations with their sites, ages and threads.
//!
//! * This module: records, made at an allocation and removed at its free.
//! * [`site`]: the places in code that allocate, each stored once.
//! * [`stack`]: stacks, captured as addresses and resolved when they are displayed.
//! * [`recorder`]: recording of allocations and frees into a file.
//! * [`thread`]: threads, and their outstanding allocations when they end.
//! * [`report`] and [`diff`]: reports for people and programs.

mod diff;
mod recorder;
mod report;
mod site;
mod stack;
#[cfg(test)]
mod tests;
mod thread;

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use gpuheap_driver::nvtx::MemoryNames;
use rustc_hash::FxHashMap;

pub use diff::{Change, Diff, Snapshot};
pub(crate) use recorder::{DeviceFacts, Recorder};
pub use recorder::{RecordingStatus, WalkFrames, walk_frames_by};
pub use report::{
    Leak, Leaks, Outstanding, ThreadShare, Tracking, UnknownTracking, assert_no_leaks,
};
pub(crate) use report::{Many, seconds};
pub use stack::{CallStack, Frame};
pub use thread::ThreadEnd;

use crate::Caller;
use crate::MemoryKind;
use crate::error::{Cause, Consumer, Error};
use crate::program::Callback;
use recorder::Recorded;
use site::{SiteKey, Sites};
use thread::{ThreadEndHandler, Threads};

/// Outstanding allocations of one heap, of all kinds of memory.
pub(crate) struct Tracker {
    tracking: Tracking,
    /// Reference to this tracker, to copy to each thread that allocates with the tracker.
    this: Weak<Tracker>,
    state: Mutex<TrackerState>,
    /// `true` while there is a recorder.
    is_recording: AtomicBool,
    recorder: RwLock<Option<DeviceRecorder>>,
    /// Names of blocks in a profiler.
    names: OnceLock<&'static MemoryNames>,
}

/// Recorder, and the ordinal of the heap's device.
#[derive(Clone)]
struct DeviceRecorder {
    recorder: Arc<Recorder>,
    device: i32,
}

/// Identifier of a tracked allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackId(NonZeroU32);

#[derive(Default)]
struct TrackerState {
    /// All records, indexed by identifier; `None` for a freed allocation.
    records: Vec<Option<Record>>,
    vacant: Vec<u32>,
    sites: Sites,
    threads: Threads,
    on_thread_end: Option<ThreadEndHandler>,
}

#[derive(Clone, Copy)]
struct Record {
    address: u64,
    bytes: u64,
    time: Instant,
    site: u32,
    thread: u32,
    stream: u64,
    /// Identifier of the recorder that recorded the allocation; 0 if no recorder did.
    recorder: u64,
}

impl Tracker {
    /// Makes a tracker without outstanding allocations.
    pub(crate) fn new(tracking: Tracking) -> Arc<Tracker> {
        Arc::new_cyclic(|this| Tracker {
            tracking,
            this: this.clone(),
            state: Mutex::default(),
            is_recording: AtomicBool::new(false),
            recorder: RwLock::new(None),
            names: OnceLock::new(),
        })
    }

    /// Returns `true` if allocations are tracked, recorded or named.
    pub(crate) fn is_on(&self) -> bool {
        self.tracking != Tracking::Off
            || self.is_recording.load(Ordering::Relaxed)
            || self.names.get().is_some()
    }

    /// Names blocks in a profiler from now on.
    pub(crate) fn name_blocks(&self, names: &'static MemoryNames) {
        self.names.get_or_init(|| names);
    }

    /// Starts to record, unless allocations are recorded already. Returns the recorder in use.
    pub(crate) fn start(&self, recorder: &Arc<Recorder>, device: i32) -> Arc<Recorder> {
        let mut current = self.recorder.write().unwrap_or_else(PoisonError::into_inner);
        let recorder = recorder.clone();
        let current = current.get_or_insert_with(|| DeviceRecorder { recorder, device });
        self.is_recording.store(true, Ordering::Relaxed);
        current.recorder.clone()
    }

    /// Ends the recording.
    pub(crate) fn stop(&self) {
        let mut current = self.recorder.write().unwrap_or_else(PoisonError::into_inner);
        self.is_recording.store(false, Ordering::Relaxed);
        let ended = current.take();
        drop(current);
        if self.tracking == Tracking::Off {
            self.lock().forget_all();
        }
        if let Some(ended) = ended {
            ended.recorder.end_section();
        }
    }

    /// Returns the status of the recording; `None` if allocations are not recorded.
    pub(crate) fn recording(&self) -> Option<RecordingStatus> {
        Some(self.current()?.status())
    }

    /// Returns the recorder; `None` if allocations are not recorded.
    pub(crate) fn current(&self) -> Option<Arc<Recorder>> {
        Some(self.recorder()?.recorder)
    }

    fn recorder(&self) -> Option<DeviceRecorder> {
        if !self.is_recording.load(Ordering::Relaxed) {
            return None;
        }
        self.recorder.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the amount of detail recorded.
    pub(crate) fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// Records an allocation that the line `at` requested. `#[track_caller]` functions passed that
    /// line on. `stream` is the driver's id of the stream; 0 for memory without a stream. Returns
    /// `None` if allocations are not tracked, recorded or named.
    #[inline]
    pub(crate) fn allocated(
        &self,
        address: u64,
        bytes: u64,
        kind: MemoryKind,
        stream: u64,
        at: Caller,
    ) -> Option<TrackId> {
        if self.is_on() { self.record(address, bytes, kind, stream, at) } else { None }
    }

    /// Records a request that failed, if memory was short and allocations are recorded.
    #[cold]
    pub(crate) fn failed(
        &self,
        bytes: u64,
        kind: MemoryKind,
        stream: u64,
        at: Caller,
        error: &Error,
    ) {
        let Some(DeviceRecorder { recorder, device }) = self.recorder() else { return };
        let Some(shortage) = error.out_of_memory() else { return };
        let key = SiteKey::capture(at, kind, self.detail(true));
        let thread = thread::identity_for(&recorder);
        let (addresses, thread) = (key.addresses(), thread.as_deref());
        let failed = Recorded { kind, address: 0, bytes, stream, at, addresses, thread };
        let is_limit = matches!(shortage.cause, Cause::Limit | Cause::LargerThanLimit);
        recorder.failed(device, &failed, is_limit);
    }

    /// Removes a freed allocation. `stream` is the driver's id of the stream that orders the free;
    /// `None` for the stream of the allocation. A second call is harmless, until the identifier is
    /// used again.
    pub(crate) fn freed(&self, id: TrackId, stream: Option<u64>) {
        let index = id.0.get() - 1;
        let (record, kind) = {
            let mut state = self.lock();
            let state = &mut *state;
            let Some(record) = state.records.get_mut(index as usize).and_then(Option::take) else {
                return;
            };
            state.vacant.push(index);
            let kind = state.sites.get(record.site).kind;
            state.sites.freed(record.site, record.bytes);
            state.threads.freed(record.thread);
            (record, kind)
        };
        if let Some(names) = self.names.get().filter(|_| record.bytes > 0) {
            names.remove_block(record.address);
        }
        if record.recorder != 0
            && let Some(DeviceRecorder { recorder, .. }) = self.recorder()
            && record.recorder == recorder.number
        {
            let thread = thread::identity_for(&recorder);
            let stream = stream.unwrap_or(record.stream);
            recorder.freed(kind, record.address, stream, thread.as_deref());
        }
    }

    /// Returns the outstanding allocations, by site.
    pub(crate) fn leaks(&self) -> Leaks {
        self.leaks_by_thread(None)
    }

    /// Returns every outstanding allocation, the oldest first.
    pub(crate) fn outstanding(&self) -> Vec<Outstanding> {
        let now = Instant::now();
        if self.tracking == Tracking::Off {
            return Vec::new();
        }
        let state = self.lock();
        let mut all: Vec<_> = state.records.iter().flatten().collect();
        all.sort_by_key(|record| record.time);
        let show = |record: &Record| {
            let site = state.sites.get(record.site);
            Outstanding {
                address: record.address,
                bytes: record.bytes,
                kind: site.kind,
                age: now.saturating_duration_since(record.time),
                thread: state.threads.share(record.thread, 1, record.bytes),
                at: site.at,
                stack: site.stack.clone(),
            }
        };
        all.into_iter().map(show).collect()
    }

    /// Returns the number and the bytes of each site's outstanding allocations. The time grows with
    /// the number of sites, not of allocations.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let sites = match self.tracking {
            Tracking::Off => Vec::new(),
            _ => self.lock().sites.outstanding(),
        };
        Snapshot::new(self.tracking, sites)
    }

    /// Returns the three lines that hold the most bytes of a kind of memory, most bytes first.
    /// Resolves no stack.
    pub(crate) fn consumers(&self, kind: MemoryKind) -> Vec<Consumer> {
        const SHOWN: usize = 3;
        let mut lines: FxHashMap<Caller, Consumer> = FxHashMap::default();
        if self.tracking == Tracking::Off {
            return Vec::new();
        }
        let sites = self.lock().sites.outstanding();
        for (site, allocations, bytes) in sites.iter().filter(|(site, ..)| site.kind == kind) {
            let none = Consumer { at: site.at, allocations: 0, bytes: 0 };
            let line = lines.entry(site.at).or_insert(none);
            line.allocations += allocations;
            line.bytes += bytes;
        }
        let mut lines: Vec<_> = lines.into_values().collect();
        lines.sort_by_key(|line| (Reverse(line.bytes), *line.at));
        lines.truncate(SHOWN);
        lines
    }

    /// Sets a handler for threads that end with outstanding allocations, in place of the report to
    /// stderr. The handler is called on the ending thread at its very end, without a lock held. A
    /// panic of the handler is ignored.
    pub(crate) fn set_on_thread_end(&self, handler: impl Fn(&ThreadEnd) + Send + Sync + 'static) {
        let handler: ThreadEndHandler = Arc::new(Callback::new(Box::new(handler)));
        let old = self.lock().on_thread_end.replace(handler);
        // Drops the old handler without the lock: it may have captured memory that this tracker
        // tracks.
        drop(old);
    }

    #[cold]
    #[inline(never)]
    fn record(
        &self,
        address: u64,
        bytes: u64,
        kind: MemoryKind,
        stream: u64,
        at: Caller,
    ) -> Option<TrackId> {
        let recorder = self.recorder();
        // The stack and the thread are captured before the lock is taken, because capturing takes
        // most of the time.
        let key = SiteKey::capture(at, kind, self.detail(recorder.is_some()));
        let thread = thread::place_in(self);
        // Memory of zero bytes has no address.
        let recorder = recorder.filter(|_| bytes > 0);
        if let Some(DeviceRecorder { recorder, device }) = &recorder {
            let thread = thread::identity_for(recorder);
            let (addresses, thread) = (key.addresses(), thread.as_deref());
            let allocated = Recorded { kind, address, bytes, stream, at, addresses, thread };
            recorder.allocated(*device, &allocated);
        }
        if let Some(names) = self.names.get().filter(|_| bytes > 0) {
            names.add_block(address, bytes, &recorder::line(at));
        }
        let recorder = recorder.map_or(0, |one| one.recorder.number);
        let time = Instant::now();
        let mut state = self.lock();
        let state = &mut *state;
        // There are four billion identifiers. Further outstanding allocations are not tracked.
        let index = match state.vacant.pop() {
            Some(index) => index,
            None => u32::try_from(state.records.len()).ok().filter(|index| *index < u32::MAX)?,
        };
        let site = state.sites.allocated(&key, at, kind, bytes);
        let thread = state.threads.allocated(thread);
        let record = Some(Record { address, bytes, time, site, thread, stream, recorder });
        match state.records.get_mut(index as usize) {
            Some(place) => *place = record,
            None => state.records.push(record),
        }
        NonZeroU32::new(index + 1).map(TrackId)
    }

    fn detail(&self, is_recorded: bool) -> Tracking {
        match self.tracking {
            Tracking::Off if is_recorded => Tracking::Backtraces,
            tracking => tracking,
        }
    }

    /// Returns the outstanding allocations of all threads or of one thread, grouped by site.
    fn leaks_by_thread(&self, thread: Option<u32>) -> Leaks {
        struct SiteGroup {
            allocations: u64,
            bytes: u64,
            oldest: Duration,
            youngest: Duration,
            threads: FxHashMap<u32, (u64, u64)>,
        }
        let now = Instant::now();
        let state = self.lock();
        let mut groups: FxHashMap<u32, SiteGroup> = FxHashMap::default();
        let records = state.records.iter().filter(|_| self.tracking != Tracking::Off);
        for record in records.flatten() {
            if thread.is_some_and(|thread| thread != record.thread) {
                continue;
            }
            let age = now.saturating_duration_since(record.time);
            let group = groups.entry(record.site).or_insert_with(|| SiteGroup {
                allocations: 0,
                bytes: 0,
                oldest: age,
                youngest: age,
                threads: FxHashMap::default(),
            });
            group.allocations += 1;
            group.bytes += record.bytes;
            group.oldest = group.oldest.max(age);
            group.youngest = group.youngest.min(age);
            let share = group.threads.entry(record.thread).or_default();
            share.0 += 1;
            share.1 += record.bytes;
        }
        let show = |(site, group): (u32, SiteGroup)| {
            let site = state.sites.get(site);
            let share =
                |(thread, (allocations, bytes))| state.threads.share(thread, allocations, bytes);
            Leak {
                at: site.at,
                kind: site.kind,
                allocations: group.allocations,
                bytes: group.bytes,
                oldest: group.oldest,
                youngest: group.youngest,
                threads: group.threads.into_iter().map(share).collect(),
                stack: site.stack.clone(),
            }
        };
        let sites = groups.into_iter().map(show).collect();
        drop(state);
        // Resolves stacks without the lock, because that takes milliseconds to seconds.
        Leaks::new(self.tracking, sites)
    }

    fn lock(&self) -> MutexGuard<'_, TrackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        // Takes no lock: in a forked child, a thread of the parent may have held it.
        let current = self.recorder.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(current) = current {
            current.recorder.end_section();
        }
    }
}

impl TrackerState {
    /// Removes all allocations. Their identifiers are not used again, because blocks still have
    /// them.
    fn forget_all(&mut self) {
        for record in self.records.iter_mut().filter_map(Option::take) {
            self.sites.freed(record.site, record.bytes);
            self.threads.freed(record.thread);
        }
    }
}
