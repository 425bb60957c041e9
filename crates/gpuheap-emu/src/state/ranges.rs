//! Last accesses of each range of bytes.

use std::collections::BTreeMap;

use crate::state::clock::{Clock, Epoch};

/// Last accesses of every byte that was accessed, in disjoint records. The key is the physical
/// address, so two mappings of the same memory share one record.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<u64, Span>);

#[derive(Clone)]
struct Span {
    end: u64,
    /// True if the bytes were written.
    defined: bool,
    write: Option<Use>,
    /// The last read of each lane (the host or a stream) since the last write.
    reads: Vec<Use>,
}

/// An access: its time, call and block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub(crate) epoch: Epoch,
    pub(crate) call: &'static str,
    /// Address and bytes of the heap's block at the access, if one is known.
    pub(crate) block: Option<(u64, u64)>,
}

/// Two accesses that nothing orders.
pub(crate) struct Conflict {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) before: Use,
    /// True if the earlier access wrote.
    pub(crate) before_wrote: bool,
}

impl Ranges {
    /// Records a write. Returns the first known access that is not ordered before this write.
    pub(crate) fn write(
        &mut self,
        at: u64,
        bytes: u64,
        now: Use,
        clock: &Clock,
        defined: bool,
    ) -> Option<Conflict> {
        let conflict = self.conflict(at, bytes, clock, true);
        let record = Span { end: at + bytes, defined, write: Some(now), reads: Vec::new() };
        self.forget(at, bytes);
        self.0.insert(at, record);
        conflict
    }

    /// Records a read. Returns the first known write that is not ordered before this read.
    pub(crate) fn read(
        &mut self,
        at: u64,
        bytes: u64,
        now: Use,
        clock: &Clock,
    ) -> Option<Conflict> {
        let conflict = self.conflict(at, bytes, clock, false);
        self.cut_at(at);
        self.cut_at(at + bytes);
        for (_, record) in self.0.range_mut(at..at + bytes) {
            match record.reads.iter_mut().find(|read| read.epoch.lane == now.epoch.lane) {
                Some(read) => *read = now,
                None => record.reads.push(now),
            }
        }
        // Reads of bytes that were never written are recorded too, because a later write must be
        // ordered after them.
        for (first, end) in self.gaps(at, bytes) {
            self.0.insert(first, Span { end, defined: false, write: None, reads: vec![now] });
        }
        conflict
    }

    /// Returns the first known access that is not ordered before `clock` and that conflicts with a
    /// new access of the same bytes.
    pub(crate) fn conflict(
        &self,
        at: u64,
        bytes: u64,
        clock: &Clock,
        writes: bool,
    ) -> Option<Conflict> {
        self.overlapping(at, bytes).find_map(|(first, record)| {
            let unordered = |found: &&Use| !clock.covers(found.epoch);
            let write = record.write.as_ref().filter(unordered).map(|found| (*found, true));
            let read = || record.reads.iter().find(unordered).map(|found| (*found, false));
            let (before, before_wrote) = write.or_else(|| if writes { read() } else { None })?;
            let (first, end) = (first.max(at), record.end.min(at + bytes));
            Some(Conflict { first, end, before, before_wrote })
        })
    }

    /// Marks bytes as written and forgets their accesses, because the host writes them unseen.
    pub(crate) fn define(&mut self, at: u64, bytes: u64) {
        self.forget(at, bytes);
        self.0.insert(at, Span { end: at + bytes, defined: true, write: None, reads: Vec::new() });
    }

    /// Returns the runs of bytes that were never written.
    pub(crate) fn undefined(&self, at: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mut runs = self.gaps(at, bytes);
        let records = self.overlapping(at, bytes).filter(|(_, record)| !record.defined);
        runs.extend(records.map(|(first, record)| (first.max(at), record.end.min(at + bytes))));
        runs.sort_unstable();
        runs
    }

    /// Marks bytes as never written. Keeps the records of their accesses.
    pub(crate) fn undefine(&mut self, at: u64, end: u64) {
        self.cut_at(at);
        self.cut_at(end);
        for (_, record) in self.0.range_mut(at..end) {
            record.defined = false;
        }
    }

    /// Forgets everything about a range.
    pub(crate) fn forget(&mut self, at: u64, bytes: u64) {
        self.cut_at(at);
        self.cut_at(at + bytes);
        while let Some((&first, _)) = self.0.range(at..at + bytes).next() {
            self.0.remove(&first);
        }
    }

    fn overlapping(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, &Span)> {
        let before = self.0.range(..at).next_back().filter(move |(_, record)| record.end > at);
        before
            .into_iter()
            .chain(self.0.range(at..at + bytes))
            .map(|(&first, record)| (first, record))
    }

    fn gaps(&self, at: u64, bytes: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut from = at;
        for (first, record) in self.overlapping(at, bytes) {
            if first > from {
                gaps.push((from, first));
            }
            from = record.end;
        }
        if from < at + bytes {
            gaps.push((from, at + bytes));
        }
        gaps
    }

    /// Splits the record that spans `at`, if there is such a record.
    fn cut_at(&mut self, at: u64) {
        if let Some((_, record)) = self.0.range_mut(..at).next_back()
            && record.end > at
        {
            let mut rest = record.clone();
            record.end = at;
            rest.end = rest.end.max(at);
            self.0.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::clock::Clock;

    fn by(clock: &mut Clock, lane: usize) -> Use {
        Use { epoch: clock.step(lane), call: "test", block: None }
    }

    #[test]
    fn unordered_write_conflicts_on_same_bytes() {
        let (mut one, mut two) = (Clock::default(), Clock::default());
        let mut ranges = Ranges::default();
        let write = by(&mut one, 1);
        assert!(ranges.write(100, 50, write, &one, true).is_none());
        let read = by(&mut two, 2);
        assert!(ranges.read(0, 100, read, &two).is_none());
        let found = ranges.read(90, 20, read, &two).unwrap();
        assert_eq!((found.first, found.end, found.before), (100, 110, write));
        two.join(&one);
        assert!(ranges.read(90, 200, by(&mut two, 2), &two).is_none());
        let write = by(&mut one, 1);
        let found = ranges.write(149, 1, write, &one, true).unwrap();
        assert!(!found.before_wrote, "a read that a write does not wait for");
        assert_eq!(ranges.undefined(95, 60), [(95, 100), (150, 155)]);
    }
}
