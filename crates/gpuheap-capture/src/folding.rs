//! Folds records of allocations. A count replaces allocations that are freed immediately.
//!
//! An allocation and its free are a pair. It is kept in the file, or folded on two conditions:
//! * The thread allocated at most once between the allocation and its free.
//! * During the pair, the live bytes never exceeded the peak of the kept records since the last
//!   start or end of a range.
//!
//! Therefore the peaks of devices and ranges, the blocks live at a peak, and all sums of
//! allocations stay exact. If an allocation is kept, the thread's next two allocations are kept
//! too. A reader then sees that the first one was not freed immediately.
//!
//! The live bytes are a count that begins at 0 when the folding starts. The sizes of blocks that
//! are not open any longer are not known, so the free of such a block keeps all open pairs. The
//! counted minus the true bytes are then constant within a pair, and never decrease later.
//! Therefore, if a pair's counted bytes stay below an earlier counted peak, its true bytes stay
//! below the true peak.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::field::{Count, Deltas};
use crate::mapped_file::MappedFile;
use crate::{Address, MemoryKind, Record, Time};

/// Maximum number of other allocations by the thread between the allocation and the free of a
/// folded pair. If there are more, both records stay in the file.
const BETWEEN: u32 = 1;

/// Maximum distance, in bytes of the file, between the allocation and the free of a folded pair.
/// About 25 pairs fit in. To fold a pair, the allocation's record is cut out of the file, and all
/// later records are encoded again. This bound limits that work. If an allocation is older, its
/// records stay in the file.
const TAIL: u64 = 512;

/// Maximum number of `Folded` records with counts that are updated in place. Before one more is
/// added, all of them are forgotten: their counts stay as they are, and later pairs are counted in
/// new records.
const COUNTS: usize = 1024;

/// Maximum number of folded allocations that are remembered. A free is recorded before the driver
/// frees. If the driver then refuses, the folded allocation has to be recorded again. Each thread
/// has at most one free in progress.
const RECENT: usize = 64;

/// Fields of an allocation's record.
#[derive(Debug, Clone, Copy)]
struct Allocation {
    thread: u32,
    kind: MemoryKind,
    device: u32,
    stream: u64,
    address: u64,
    bytes: u64,
    stack: u32,
}

/// Key of a count: the thread, kind, device, stack and size of its allocations. If there is a
/// stack, allocations share a count if the highest bit of their sizes is the same.
type Key = (u32, MemoryKind, u32, u32, u64);

/// Memory whose live bytes and peak are counted together. The number is the ordinal of the device,
/// or `u32::MAX` for the host. The flag is `true` for blocks of pools.
type Level = (u32, bool);

impl Allocation {
    fn from_record(record: &Record<'_>) -> Option<Allocation> {
        let Record::Allocate { thread, kind, device, stream, address, bytes, stack, .. } = *record
        else {
            return None;
        };
        Some(Allocation { thread, kind, device, stream, address: address.0, bytes, stack })
    }

    fn record(self, time: Time) -> Record<'static> {
        let Allocation { thread, kind, device, stream, address, bytes, stack } = self;
        let address = Address(address);
        Record::Allocate { time, thread, kind, device, stream, address, bytes, stack }
    }

    fn key(&self) -> Key {
        // Without stacks, reports group allocations by size.
        let size = match self.stack {
            0 => self.bytes,
            _ => u64::from(u64::BITS - self.bytes.leading_zeros()),
        };
        (self.thread, self.kind, self.device, self.stack, size)
    }

    fn level(&self) -> Level {
        let device = if self.kind.is_host() { u32::MAX } else { self.device };
        (device, self.kind.is_pooled())
    }

    fn is_at(&self, space: u32, address: Address) -> bool {
        (self.kind.space(), self.address) == (space, address.0)
    }
}

/// Allocation that is not freed yet. If its free follows soon, a count may replace both records.
#[derive(Debug)]
struct Open {
    allocation: Allocation,
    /// Offset of the record in the file. `before` has the time and address of the record before it.
    offset: u64,
    before: Deltas,
    /// `true` if the records of the allocation and its free stay in the file.
    is_kept: bool,
    /// Number of later allocations by the same thread on the same [`Level`].
    later: u32,
    /// Highest number of live bytes on the allocation's [`Level`] since the allocation was made.
    most: u64,
    /// Lower bound of the peak that a reader of the file computes since the allocation was made.
    /// Counts kept records only, and excludes this allocation's bytes.
    shown: u64,
}

#[derive(Debug, Default)]
struct Bytes {
    live: u64,
    /// Part of `live` from allocations whose records were left in the file.
    kept: u64,
    /// Highest number of live bytes since a range last started or ended, counted only from records
    /// that stay in the file. `None` if there is no such record.
    peak: Option<u64>,
}

pub(crate) enum Folding {
    /// The record is to be written.
    Write,
    /// This record is to be written instead.
    Replace(Record<'static>),
    /// A count in the file was updated in place.
    Done,
}

/// Folds the pairs of one capture.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// `true` if the capture records blocks of pools. Memory that the program allocates from the
    /// driver may then contain such blocks, so allocations from the driver are never folded.
    has_pools: bool,
    levels: FxHashMap<Level, Bytes>,
    /// Open allocations in the order of their records.
    open: Vec<Open>,
    /// File offset of each `Folded` record's count.
    counts: FxHashMap<Key, u64>,
    /// For each thread and level, the number of next allocations that are not folded, because an
    /// earlier allocation was kept.
    kept_next: FxHashMap<(u32, Level), u32>,
    /// Allocations that were folded last.
    recent: VecDeque<Allocation>,
    /// Copy of the file's last records, made to cut one of them out. `encoded` has the others,
    /// encoded again.
    tail: Vec<u8>,
    encoded: Vec<u8>,
}

impl Folder {
    pub(crate) fn new(has_pools: bool) -> Folder {
        Folder { has_pools, ..Folder::default() }
    }

    /// Decides how a record is written.
    pub(crate) fn fold(
        &mut self,
        record: &Record<'_>,
        file: &mut MappedFile,
        deltas: &mut Deltas,
    ) -> Folding {
        match *record {
            Record::Free { time, space, address, .. } => {
                let found =
                    self.open.iter().rposition(|open| open.allocation.is_at(space, address));
                match found {
                    Some(at) => return self.freed(at, time, file, deltas),
                    None => self.keep_all(),
                }
            }
            Record::FreeFailed { time, space, address } => {
                self.keep_all();
                let found = self.recent.iter().rposition(|one| one.is_at(space, address));
                if let Some(allocation) = found.and_then(|at| self.recent.remove(at)) {
                    self.add(&allocation, file, -1);
                    return Folding::Replace(allocation.record(time));
                }
            }
            Record::Allocate { .. } => self.allocate(record),
            Record::RangeStart { .. } | Record::RangeEnd { .. } => {
                self.keep_all();
                self.levels.values_mut().for_each(|level| level.peak = None);
                self.counts.clear();
            }
            Record::Text { .. }
            | Record::Module { .. }
            | Record::Frame { .. }
            | Record::Stack { .. }
            | Record::ThreadStart { .. }
            | Record::Copies { .. }
            | Record::Folded { .. } => {}
            _ => self.keep_all(),
        }
        Folding::Write
    }

    /// Updates the state after a record was written at `offset`. `before` has the deltas before
    /// that record.
    pub(crate) fn written(&mut self, record: &Record<'_>, offset: u64, before: Deltas) {
        // The first allocations are the oldest.
        while self.open.first().is_some_and(|open| offset.saturating_sub(open.offset) > TAIL) {
            self.keep(0, false);
        }
        if let Record::Folded { thread, kind, device, stack, largest, .. } = *record {
            if self.counts.len() == COUNTS {
                self.counts.clear();
            }
            let bytes = largest.0;
            let one = Allocation { thread, kind, device, stream: 0, address: 0, bytes, stack };
            self.counts.insert(one.key(), offset);
        }
        let Some(allocation) = Allocation::from_record(record) else { return };
        // The address is allocated again, so its earlier free succeeded. The folded allocation at
        // this address need not be recorded again, so forget it.
        let (space, address) = (allocation.kind.space(), Address(allocation.address));
        self.recent.retain(|one| !one.is_at(space, address));
        if self.is_unfolded(&allocation) {
            return;
        }
        let of = allocation.level();
        let level = self.levels.entry(of).or_default();
        level.live = level.live.saturating_add(allocation.bytes);
        for open in self.open.iter_mut().filter(|open| open.allocation.level() == of) {
            open.most = open.most.max(level.live);
        }
        let (most, shown) = (level.live, level.kept);
        let next = self.kept_next.get_mut(&(allocation.thread, of)).filter(|next| **next > 0);
        let is_kept = next.map(|next| *next -= 1).is_some();
        self.open.push(Open { allocation, offset, before, is_kept, later: 0, most, shown });
    }

    /// Updates the open (not freed) allocations before another allocation is written.
    fn allocate(&mut self, record: &Record<'_>) {
        let Some(allocation) = Allocation::from_record(record) else { return };
        let Allocation { thread, device, .. } = allocation;
        let of = allocation.level();
        if self.is_unfolded(&allocation) {
            // A device's peak is the sum of its pools' blocks and the driver's other memory. This
            // allocation changes the other memory. A later pair of pool blocks may then set a new
            // peak of the device, although the blocks stay below their own earlier peak. So forget
            // the earlier peaks.
            self.keep_all();
            self.levels.values_mut().for_each(|level| level.peak = None);
            self.kept_next.insert((thread, (device, true)), BETWEEN + 1);
        }
        for at in (0..self.open.len()).rev() {
            let open = &mut self.open[at];
            if (open.allocation.thread, open.allocation.level()) == (thread, of) {
                if open.later == BETWEEN {
                    self.keep(at, false);
                } else {
                    open.later += 1;
                }
            }
        }
    }

    /// Returns `true` if the allocation is never folded, because it is memory from the driver that
    /// may contain recorded blocks of a pool.
    fn is_unfolded(&self, allocation: &Allocation) -> bool {
        self.has_pools && allocation.kind.counts_on_device()
    }

    /// Handles the free of an open allocation. Replaces the records of the allocation and the free
    /// by a count, unless that could change a peak that a reader computes from the file.
    fn freed(
        &mut self,
        at: usize,
        time: Time,
        file: &mut MappedFile,
        deltas: &mut Deltas,
    ) -> Folding {
        let Open { allocation, is_kept, most, .. } = self.open[at];
        let of = (allocation.thread, allocation.level());
        let is_of = |open: &Open| (open.allocation.thread, open.allocation.level()) == of;
        let level = self.levels.entry(allocation.level()).or_default();
        let is_folded = !is_kept
            && level.peak.is_some_and(|peak| most <= peak)
            // An earlier open allocation of the thread counted this one in `later`. A reader of the
            // file must count it too, so its record must stay.
            && !self.open[..at].iter().any(is_of)
            && self.remove(at, file, deltas);
        if !is_folded {
            self.keep(at, true);
        }
        let level = self.levels.entry(allocation.level()).or_default();
        level.live = level.live.saturating_sub(allocation.bytes);
        if !is_folded {
            return Folding::Write;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(allocation);
        if self.add(&allocation, file, 1) {
            return Folding::Done;
        }
        let Allocation { thread, kind, device, bytes, stack, .. } = allocation;
        let (count, bytes, largest) = (Count(1), Count(bytes), Count(bytes));
        let record = Record::Folded { time, thread, kind, device, stack, count, bytes, largest };
        Folding::Replace(record)
    }

    /// Cuts the record of an open allocation out of the file, and encodes the later records again.
    /// Returns `false` if the record is in a part of the file that is no longer mapped.
    fn remove(&mut self, at: usize, file: &mut MappedFile, deltas: &mut Deltas) -> bool {
        let Open { offset, before, .. } = self.open[at];
        let Some(tail) = file.tail(offset) else { return false };
        self.tail.clear();
        self.tail.extend_from_slice(tail);
        self.encoded.clear();
        let mut input = &self.tail[..];
        let (mut read, mut written) = (before, before);
        let mut later = at + 1;
        let mut is_first = true;
        while !input.is_empty() {
            let from = offset + (self.tail.len() - input.len()) as u64;
            let Ok(Some(record)) = Record::decode(&mut read, &mut input) else { return false };
            if std::mem::take(&mut is_first) {
                continue;
            }
            let to = offset + self.encoded.len() as u64;
            if let Some(open) = self.open.get_mut(later).filter(|open| open.offset == from) {
                (open.offset, open.before) = (to, written);
                later += 1;
            }
            if matches!(record, Record::Folded { .. }) {
                let moved = self.counts.values_mut().find(|place| **place == from);
                moved.into_iter().for_each(|place| *place = to);
            }
            record.encode(&mut written, &mut self.encoded);
        }
        file.replace(offset, &self.encoded);
        *deltas = written;
        self.open.remove(at);
        true
    }

    /// Adds `pairs`, a number of pairs of allocation and free, to the count in the file for the
    /// allocation's [`Key`]. Returns `false` if the mapped part of the file has no such count.
    fn add(&mut self, allocation: &Allocation, file: &mut MappedFile, pairs: i64) -> bool {
        let place = self.counts.get(&allocation.key()).copied();
        let Some((place, tail)) = place.and_then(|place| Some((place, file.tail(place)?))) else {
            return false;
        };
        let mut input = tail;
        let decoded = Record::decode(&mut Deltas::default(), &mut input);
        let Ok(Some(Record::Folded { count, bytes, largest, .. })) = decoded else { return false };
        let after = place + (tail.len() - input.len()) as u64;
        let sum = allocation.bytes.wrapping_mul(pairs as u64);
        let counts = [
            count.0.wrapping_add(pairs as u64),
            bytes.0.wrapping_add(sum),
            largest.0.max(allocation.bytes),
        ];
        let counts = counts.map(u64::to_le_bytes);
        file.overwrite(after - size_of_val(&counts) as u64, counts.as_flattened());
        true
    }

    /// Leaves all open allocations in the file. Begins with the latest: keeping an allocation
    /// raises `shown` of the earlier ones, and `keep` needs the final `shown`.
    fn keep_all(&mut self) {
        for at in (0..self.open.len()).rev() {
            self.keep(at, false);
        }
    }

    /// Leaves an open allocation's record in the file. If `is_freed`, its free is recorded next.
    fn keep(&mut self, at: usize, is_freed: bool) {
        let Open { allocation, shown, later, .. } = self.open.remove(at);
        let of = allocation.level();
        let shown = shown.saturating_add(allocation.bytes);
        let level = self.levels.entry(of).or_default();
        level.peak = level.peak.max(Some(shown));
        // These earlier allocations of the level are still open, so they are live at this peak too.
        for open in self.open[..at].iter_mut().filter(|open| open.allocation.level() == of) {
            open.shown = open.shown.max(shown);
        }
        if !is_freed {
            level.kept = level.kept.saturating_add(allocation.bytes);
            self.kept_next.insert((allocation.thread, of), BETWEEN + 1 - later);
        }
    }
}
