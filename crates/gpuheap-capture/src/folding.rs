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
//! Live bytes are counted from the start of the folding. The sizes of earlier blocks are not known,
//! so the free of such a block keeps all open pairs. Counted minus true bytes is then constant
//! within a pair, and never decreases later. Therefore a pair that stays below an earlier peak by
//! the count also stays below that peak in truth.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::field::{Count, Deltas};
use crate::mapped_file::MappedFile;
use crate::{Address, MemoryKind, Record, Time};

/// Maximum number of other allocations by the thread between an allocation and its free. If there
/// are more, both records stay in the file.
const BETWEEN: u32 = 1;

/// Maximum number of bytes of the file between an allocation's record and its free, about 25 pairs.
/// To replace a pair by a count, the allocation's record is cut out, and all later records are
/// encoded again. This bound limits that work: the records of an older allocation stay in the file.
const TAIL: u64 = 512;

/// Maximum number of `Folded` records that are updated in place. At this number, all counts start
/// again in new records.
const COUNTS: usize = 1024;

/// Maximum number of folded allocations that are remembered. A free is recorded before the driver
/// frees. If the driver then fails, the allocation is recorded again. A thread has at most one such
/// free.
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

/// Key of a count. It has the thread, kind, device, stack and size. If there is a stack, sizes with
/// the same highest bit share a count.
type Key = (u32, MemoryKind, u32, u32, u64);

/// Memory whose live bytes and peak are counted together. It has the ordinal of the device, or
/// `u32::MAX` for the host, and `true` for blocks of pools.
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

/// Allocation that is not freed yet. A count may still replace its record and its free.
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
    /// Peak of the live bytes of the allocation's [`Level`] since this allocation.
    most: u64,
    /// Peak since this allocation that a reader of the file certainly computes, without this
    /// allocation's bytes.
    shown: u64,
}

#[derive(Debug, Default)]
struct Bytes {
    live: u64,
    /// Live bytes of the allocations whose records stay in the file.
    kept: u64,
    /// Peak of live bytes that the records in the file show since the last start or end of a range.
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
    /// `true` if the capture has blocks of pools. An allocation from the driver may then contain
    /// such blocks, so the records of all allocations from the driver stay in the file.
    has_pools: bool,
    levels: FxHashMap<Level, Bytes>,
    /// Open allocations in the order of their records.
    open: Vec<Open>,
    /// File offset of each `Folded` record's count.
    counts: FxHashMap<Key, u64>,
    /// Number of next allocations that must stay in the file, for each thread and level.
    kept_next: FxHashMap<(u32, Level), u32>,
    /// Allocations that were folded last.
    recent: VecDeque<Allocation>,
    /// Last records of the file, to encode again without one of them. `encoded` has the result.
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
        // The address is allocated again, so its earlier free did not fail.
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
            // allocation changes the other memory. So a later pair of blocks that stays below an
            // earlier peak of blocks may still raise the device's peak.
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

    /// Returns `true` if the allocation always stays in the file, because it is memory from the
    /// driver that may contain recorded blocks of a pool.
    fn is_unfolded(&self, allocation: &Allocation) -> bool {
        self.has_pools && allocation.kind.counts_on_device()
    }

    /// Handles the free of an open allocation. If the peaks that the file shows stay exact,
    /// replaces the records of the allocation and the free by a count.
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
            // Earlier open allocations of the thread counted this allocation in `later`. A reader
            // counts it too, so its record must stay in the file.
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

    /// Adds `pairs` of allocation and free to the count of the allocation's [`Key`]. Returns
    /// `false` if the mapped part of the file has no such count.
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

    /// Leaves all open allocations in the file. Begins with the latest, because keeping an
    /// allocation raises `shown` of the earlier ones that are still open.
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
        // The earlier open allocations are live at this peak too.
        for open in self.open[..at].iter_mut().filter(|open| open.allocation.level() == of) {
            open.shown = open.shown.max(shown);
        }
        if !is_freed {
            level.kept = level.kept.saturating_add(allocation.bytes);
            self.kept_next.insert((allocation.thread, of), BETWEEN + 1 - later);
        }
    }
}
