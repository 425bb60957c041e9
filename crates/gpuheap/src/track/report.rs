//! Reports outstanding allocations to people and programs.

use std::collections::hash_map::Entry;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use gpuheap_pool::{named, parsed_by_name};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

use super::MemoryKind;
use super::stack::CallStack;
use crate::Bytes;
use crate::Caller;

named! {
    /// Amount of detail recorded for each outstanding allocation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Tracking {
        /// No record.
        #[default]
        Off = "off",
        /// The line that allocated, the thread and the time. Reports have one sum for each line.
        Counts = "counts",
        /// The line that allocated, the thread, the time and the whole stack.
        Backtraces = "backtraces",
    }
}

parsed_by_name! {
    Tracking,
    /// Error for an unknown level of tracking. The text lists the names of the levels.
    UnknownTracking,
    "is not a kind of tracking; write"
}

/// Outstanding allocations, grouped by site. A site is the allocating line, or the whole stack if
/// backtraces are recorded.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Leaks {
    /// Level of detail of the records. With [`Tracking::Off`], no allocation is known.
    pub tracking: Tracking,
    /// Number of outstanding allocations.
    pub allocations: u64,
    /// Bytes of the outstanding allocations, as requested.
    pub bytes: u64,
    /// Sites of the allocations. The site with the most bytes is first.
    pub sites: Vec<Leak>,
}

/// Outstanding allocations of one site.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Leak {
    /// The line that allocated.
    #[serde(serialize_with = "line")]
    pub at: &'static Location<'static>,
    /// Kind of the memory.
    pub kind: MemoryKind,
    /// Number of outstanding allocations.
    pub allocations: u64,
    /// Bytes of the outstanding allocations, as requested.
    pub bytes: u64,
    /// Time since the oldest outstanding allocation of the site; seconds in JSON.
    #[serde(rename = "oldest_seconds", serialize_with = "seconds")]
    pub oldest: Duration,
    /// Time since the youngest outstanding allocation of the site; seconds in JSON.
    #[serde(rename = "youngest_seconds", serialize_with = "seconds")]
    pub youngest: Duration,
    /// Threads that made the allocations. The thread with the most bytes is first.
    pub threads: Vec<ThreadShare>,
    /// Stack that led to the line.
    pub stack: CallStack,
}

/// Outstanding allocations of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadShare {
    /// The thread's name in the operating system, at most 15 bytes. A thread without a name
    /// inherits the name of the thread that started it, or is `unnamed`.
    pub name: String,
    /// The thread's id in the operating system; `None` if it is unknown. After the thread ended,
    /// another thread may get the same id.
    pub id: Option<u64>,
    /// `true` if the thread ended.
    pub ended: bool,
    /// Number of outstanding allocations of the thread.
    pub allocations: u64,
    /// Bytes of the outstanding allocations, as requested.
    pub bytes: u64,
}

/// One outstanding allocation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Outstanding {
    /// Address on the device; 0 for an allocation of zero bytes.
    pub address: u64,
    /// Size as requested, in bytes.
    pub bytes: u64,
    /// Kind of the memory.
    pub kind: MemoryKind,
    /// Time since the allocation; seconds in JSON.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub age: Duration,
    /// The thread that allocated.
    pub thread: ThreadShare,
    /// The line that allocated.
    #[serde(serialize_with = "line")]
    pub at: &'static Location<'static>,
    /// Stack that led to the line.
    pub stack: CallStack,
}

/// Asserts, for tests, that no allocation is outstanding.
///
/// # Panics
///
/// Panics with the report if an allocation is outstanding. Also panics if tracking is off, because
/// nothing then shows that no allocation is outstanding.
#[track_caller]
pub fn assert_no_leaks(leaks: &Leaks) {
    assert!(
        leaks.tracking != Tracking::Off,
        "leaks are not known: tracking is off; build the heap with tracking of counts or backtraces"
    );
    assert!(leaks.is_empty(), "{leaks}");
}

impl Leaks {
    pub(super) fn new(tracking: Tracking, sites: Vec<Leak>) -> Leaks {
        let mut sites = merge_alike(sites, |leak| (leak.at, leak.kind, &leak.stack), Leak::merge);
        for site in &mut sites {
            site.threads.sort_by(|a, b| {
                (b.bytes, b.allocations).cmp(&(a.bytes, a.allocations)).then(a.name.cmp(&b.name))
            });
        }
        sites.sort_by(|a, b| {
            (b.bytes, b.allocations).cmp(&(a.bytes, a.allocations)).then(a.at.cmp(b.at))
        });
        Leaks {
            tracking,
            allocations: sites.iter().map(|site| site.allocations).sum(),
            bytes: sites.iter().map(|site| site.bytes).sum(),
            sites,
        }
    }

    /// Returns `true` if no outstanding allocation is known.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Returns the report as JSON, keyed by the names of the fields. The names are stable. Resolves
    /// the stacks.
    pub fn to_json(&self) -> String {
        // Cannot fail: the fields are names, numbers and texts.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Leak {
    fn merge(&mut self, other: Leak) {
        self.allocations += other.allocations;
        self.bytes += other.bytes;
        self.oldest = self.oldest.max(other.oldest);
        self.youngest = self.youngest.min(other.youngest);
        for share in other.threads {
            let known = self.threads.iter_mut().find(|known| {
                (&known.name, known.id, known.ended) == (&share.name, share.id, share.ended)
            });
            match known {
                Some(known) => {
                    known.allocations += share.allocations;
                    known.bytes += share.bytes;
                }
                None => self.threads.push(share),
            }
        }
    }
}

/// Merges entries whose stacks have equal texts. For example, an unrolled loop has a stack for each
/// iteration. Stacks are resolved to texts only if several entries have the same line.
pub(super) fn merge_alike<T>(
    all: Vec<T>,
    site: impl Fn(&T) -> (Caller, MemoryKind, &CallStack),
    mut merge: impl FnMut(&mut T, T),
) -> Vec<T> {
    let mut lines: FxHashMap<_, u32> = FxHashMap::default();
    for one in &all {
        let (at, kind, _) = site(one);
        *lines.entry((*at, kind)).or_default() += 1;
    }
    let mut merged: Vec<T> = Vec::with_capacity(all.len());
    let mut places: FxHashMap<_, usize> = FxHashMap::default();
    for one in all {
        let (at, kind, stack) = site(&one);
        if lines.get(&(*at, kind)).is_some_and(|count| *count > 1) {
            match places.entry((*at, kind, stack.to_string())) {
                Entry::Occupied(place) => {
                    merge(&mut merged[*place.get()], one);
                    continue;
                }
                Entry::Vacant(place) => place.insert(merged.len()),
            };
        }
        merged.push(one);
    }
    merged
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tracking == Tracking::Off {
            return f.write_str("Outstanding allocations are not known: tracking is off");
        }
        let (count, sites) = (Many(self.allocations, "allocation"), self.sites.len() as u64);
        write!(f, "{count} outstanding: {}", Bytes(self.bytes))?;
        if sites > 0 {
            write!(f, " from {}", Many(sites, "site"))?;
        }
        self.sites.iter().try_for_each(|site| write!(f, "\n\n{site}"))
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, kind) = (Many(self.allocations, "allocation"), self.kind);
        write!(f, "{} in {count} of {kind} memory, ", Bytes(self.bytes))?;
        match self.allocations {
            1 => writeln!(f, "{} old", Age(self.oldest))?,
            _ => writeln!(f, "{} to {} old", Age(self.youngest), Age(self.oldest))?,
        }
        let mut threads = self.threads.iter();
        f.write_str("by ")?;
        for (number, thread) in threads.by_ref().take(THREADS).enumerate() {
            let comma = if number == 0 { "" } else { ",\n   " };
            write!(f, "{comma}thread {thread}: {}", Bytes(thread.bytes))?;
        }
        if threads.len() > 0 {
            write!(f, ",\n   {} more", threads.len())?;
        }
        write!(f, "\n{}", self.stack)
    }
}

/// Maximum number of a site's threads that are displayed. [`Leak::threads`] has all of them.
const THREADS: usize = 8;

impl fmt::Display for ThreadShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.name)?;
        match (self.id, self.ended) {
            (Some(id), true) => write!(f, " ({id}, ended)"),
            (Some(id), false) => write!(f, " ({id})"),
            (None, true) => f.write_str(" (ended)"),
            (None, false) => Ok(()),
        }
    }
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outstanding { address, stack, .. } = self;
        write!(f, "Outstanding memory allocation of {} at {address:#x}\n{stack}", Bytes(self.bytes))
    }
}

/// `1 site`, `2 sites`.
pub(crate) struct Many(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// A duration, displayed in a readable unit.
pub(super) struct Age(pub(super) Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            s if s < 1e-3 => write!(f, "{:.0} µs", s * 1e6),
            s if s < 1.0 => write!(f, "{:.0} ms", s * 1e3),
            s if s < 120.0 => write!(f, "{s:.1} s"),
            s if s < 7200.0 => write!(f, "{:.0} min", s / 60.0),
            s => write!(f, "{:.1} h", s / 3600.0),
        }
    }
}

pub(super) fn line<S: Serializer>(at: &&Location<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

pub(crate) fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}
