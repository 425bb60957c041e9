//! Tracking of outstanding allocations: their sites, ages and threads.
//!
//! * This module: records, made at an allocation and removed at its free.
//! * [`site`]: the places in code that allocate, each stored once.
//! * [`stack`]: stacks, captured as addresses and resolved when they are displayed.
//! * [`thread`]: threads, and their outstanding allocations when they end.
//! * [`report`] and [`diff`]: reports for people and programs.

mod diff;
mod report;
mod site;
mod stack;
#[cfg(test)]
mod tests;
mod thread;

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

pub use diff::{Change, Diff, Snapshot};
pub use report::{
    Leak, Leaks, Outstanding, ThreadShare, Tracking, UnknownTracking, assert_no_leaks,
};
pub(crate) use report::{Many, seconds};
pub use stack::{CallStack, Frame};
pub use thread::ThreadEnd;

use crate::Caller;
use crate::MemoryKind;
use crate::error::Consumer;
use crate::program::Callback;
use site::Sites;
use thread::{ThreadEndHandler, Threads};

/// Outstanding allocations of one heap, of all kinds of memory.
pub(crate) struct Tracker {
    tracking: Tracking,
    /// Reference to the tracker itself. Each thread keeps a list of such references: the trackers
    /// in which it allocated.
    this: Weak<Tracker>,
    state: Mutex<TrackerState>,
}

/// Identifier of a tracked allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackId(NonZeroU32);

#[derive(Default)]
struct TrackerState {
    /// Records by identifier; `None` for a freed allocation.
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
}

impl Tracker {
    /// Makes a tracker without outstanding allocations.
    pub(crate) fn new(tracking: Tracking) -> Arc<Tracker> {
        Arc::new_cyclic(|this| Tracker { tracking, this: this.clone(), state: Mutex::default() })
    }

    /// Returns the amount of detail recorded.
    pub(crate) fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// Records an allocation for the line `at`. A chain of `#[track_caller]` functions passed on
    /// this line. Returns `None` with tracking off.
    #[inline]
    pub(crate) fn allocated(
        &self,
        address: u64,
        bytes: u64,
        kind: MemoryKind,
        at: Caller,
    ) -> Option<TrackId> {
        match self.tracking {
            Tracking::Off => None,
            _ => self.record(address, bytes, kind, at),
        }
    }

    /// Removes a freed allocation. A second call is harmless, until the identifier is used again.
    pub(crate) fn freed(&self, id: TrackId) {
        let index = id.0.get() - 1;
        let mut state = self.lock();
        let state = &mut *state;
        let Some(record) = state.records.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        state.vacant.push(index);
        state.sites.freed(record.site, record.bytes);
        state.threads.freed(record.thread);
    }

    /// Returns the outstanding allocations, by site.
    pub(crate) fn leaks(&self) -> Leaks {
        self.leaks_by_thread(None)
    }

    /// Returns every outstanding allocation, the oldest first.
    pub(crate) fn outstanding(&self) -> Vec<Outstanding> {
        let now = Instant::now();
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

    /// Returns how much is outstanding at each site now. Takes one step for each site, however many
    /// allocations the site has.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.tracking, self.lock().sites.outstanding())
    }

    /// Returns the few lines that hold the most of a kind of memory, most bytes first. Resolves no
    /// stack.
    pub(crate) fn consumers(&self, kind: MemoryKind) -> Vec<Consumer> {
        const SHOWN: usize = 3;
        let mut lines: FxHashMap<Caller, Consumer> = FxHashMap::default();
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
        // Dropped without the lock: captures of the old handler may be memory that this tracker
        // tracks.
        drop(old);
    }

    #[cold]
    #[inline(never)]
    fn record(&self, address: u64, bytes: u64, kind: MemoryKind, at: Caller) -> Option<TrackId> {
        // Captures the stack and the thread before it takes the lock, because they take most of the
        // time.
        let key = site::SiteKey::capture(at, kind, self.tracking);
        let thread = thread::place_in(self);
        let time = Instant::now();
        let mut state = self.lock();
        let state = &mut *state;
        // Identifiers end at four billion outstanding allocations; any beyond are not tracked.
        let index = match state.vacant.pop() {
            Some(index) => index,
            None => u32::try_from(state.records.len()).ok().filter(|index| *index < u32::MAX)?,
        };
        let site = state.sites.allocated(&key, at, kind, bytes);
        let thread = state.threads.allocated(thread);
        let record = Some(Record { address, bytes, time, site, thread });
        match state.records.get_mut(index as usize) {
            Some(place) => *place = record,
            None => state.records.push(record),
        }
        NonZeroU32::new(index + 1).map(TrackId)
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
        for record in state.records.iter().flatten() {
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
        // Done without the lock: resolving stacks takes milliseconds to seconds.
        Leaks::new(self.tracking, sites)
    }

    fn lock(&self) -> MutexGuard<'_, TrackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
