//! Change of the outstanding allocations between two moments.

use std::cmp::Reverse;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::report::{Age, Many, line, merge_alike, seconds};
use super::site::Site;
use super::stack::CallStack;
use super::{MemoryKind, Tracking};
use crate::Bytes;

/// Outstanding allocations of each site at one moment.
#[derive(Clone)]
pub struct Snapshot {
    tracking: Tracking,
    taken: Instant,
    sites: Vec<(Arc<Site>, u64, u64)>,
}

impl Snapshot {
    pub(super) fn new(tracking: Tracking, sites: Vec<(Arc<Site>, u64, u64)>) -> Snapshot {
        Snapshot { tracking, taken: Instant::now(), sites }
    }

    /// Returns the number of outstanding allocations.
    pub fn allocations(&self) -> u64 {
        self.sites.iter().map(|(_, allocations, _)| allocations).sum()
    }

    /// Returns the requested bytes of the outstanding allocations.
    pub fn bytes(&self) -> u64 {
        self.sites.iter().map(|(_, _, bytes)| bytes).sum()
    }

    /// Returns up to `most` sites that have the most bytes. The changes are relative to an empty
    /// heap, so they are the totals. Also returns the number of sites left out. Resolves no stack.
    pub(crate) fn largest(mut self, most: usize) -> (Vec<Change>, usize) {
        self.sites.sort_by_key(|(_, _, bytes)| Reverse(*bytes));
        let left_out = self.sites.len().saturating_sub(most);
        let largest = self.sites.into_iter().take(most);
        let show = |(site, allocations, bytes): (Arc<Site>, u64, u64)| Change {
            at: site.at,
            kind: site.kind,
            allocations: allocations as i64,
            bytes: bytes as i64,
            stack: site.stack.clone(),
        };
        (largest.map(show).collect(), left_out)
    }

    /// Returns the growth and the decrease of each site since `earlier`.
    ///
    /// Both snapshots have to be of the same heap, because sites of two heaps are always different.
    pub fn diff(&self, earlier: &Snapshot) -> Diff {
        let mut sites: FxHashMap<*const Site, (&Arc<Site>, i64, i64)> = FxHashMap::default();
        for (sign, snapshot) in [(1, self), (-1, earlier)] {
            for (site, allocations, bytes) in &snapshot.sites {
                let change = sites.entry(Arc::as_ptr(site)).or_insert((site, 0, 0));
                change.1 += sign * *allocations as i64;
                change.2 += sign * *bytes as i64;
            }
        }
        let changed = sites.into_values().filter(|(_, allocations, bytes)| {
            // An equal number of allocations with another sum of bytes is a change too.
            *allocations != 0 || *bytes != 0
        });
        let show = |(site, allocations, bytes): (&Arc<Site>, i64, i64)| Change {
            at: site.at,
            kind: site.kind,
            allocations,
            bytes,
            stack: site.stack.clone(),
        };
        let merge = |change: &mut Change, other: Change| {
            change.allocations += other.allocations;
            change.bytes += other.bytes;
        };
        let mut changes = merge_alike(
            changed.map(show).collect(),
            |change: &Change| (change.at, change.kind, &change.stack),
            merge,
        );
        changes.retain(|change| (change.allocations, change.bytes) != (0, 0));
        changes.sort_by_key(|change| {
            (Reverse(change.bytes), Reverse(change.allocations), *change.at, change.kind)
        });
        Diff {
            tracking: self.tracking,
            elapsed: self.taken.saturating_duration_since(earlier.taken),
            allocations: changes.iter().map(|change| change.allocations).sum(),
            bytes: changes.iter().map(|change| change.bytes).sum(),
            changes,
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (allocations, bytes) = (self.allocations(), self.bytes());
        write!(f, "Snapshot of {allocations} allocations of {bytes} bytes")
    }
}

/// Change of the outstanding allocations between two moments.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// Level of detail of the records. With [`Tracking::Off`], no allocation is known.
    pub tracking: Tracking,
    /// Time from the first moment to the second; seconds in JSON.
    #[serde(rename = "elapsed_seconds", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// Growth of the number of outstanding allocations.
    pub allocations: i64,
    /// Growth of the requested bytes of outstanding allocations.
    pub bytes: i64,
    /// The sites that changed, the largest growth first and the largest decrease last.
    pub changes: Vec<Change>,
}

/// Change at one site.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The line that allocated.
    #[serde(serialize_with = "line")]
    pub at: &'static Location<'static>,
    /// Kind of the memory.
    pub kind: MemoryKind,
    /// Growth of the number of outstanding allocations.
    pub allocations: i64,
    /// Growth of the requested bytes of outstanding allocations.
    pub bytes: i64,
    /// Stack that led to the line.
    pub stack: CallStack,
}

impl Diff {
    /// Returns `true` if no site changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the change as JSON, keyed by the names of the fields. The names are stable. Resolves
    /// the stacks.
    pub fn to_json(&self) -> String {
        // Cannot fail: the fields are names, numbers and texts.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tracking == Tracking::Off {
            return f.write_str("What changed is not known: tracking is off");
        }
        let (sites, elapsed) = (Many(self.changes.len() as u64, "site"), Age(self.elapsed));
        if self.is_empty() {
            return write!(f, "Nothing changed in {elapsed}");
        }
        let more = More { bytes: self.bytes, allocations: self.allocations };
        write!(f, "{more} in {elapsed} at {sites}")?;
        self.changes.iter().try_for_each(|change| write!(f, "\n\n{change}"))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { bytes, allocations, kind, stack, .. } = self;
        let more = More { bytes: *bytes, allocations: *allocations };
        write!(f, "{more} of {kind} memory\n{stack}")
    }
}

/// Change as text: `-8 KiB in 2 allocations`. One sign stands for both numbers if both grew or both
/// shrank. Otherwise, the number of allocations has its own sign, unless it is 0.
struct More {
    bytes: i64,
    allocations: i64,
}

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of_bytes, own) = (sign(self.bytes), sign(self.allocations));
        let own = if own == of_bytes { "" } else { own };
        let (bytes, count) = (self.bytes.unsigned_abs(), self.allocations.unsigned_abs());
        write!(f, "{of_bytes}{} in {own}{}", Bytes(bytes), Many(count, "allocation"))
    }
}

fn sign(number: i64) -> &'static str {
    match number {
        0 => "",
        n if n < 0 => "-",
        _ => "+",
    }
}
