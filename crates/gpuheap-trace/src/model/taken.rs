//! Ranges of addresses that the recorded allocator held.

use std::collections::BTreeMap;

use super::{Op, Trace};

/// Ranges of addresses that the recorded allocator held at one moment.
#[derive(Debug, Clone, Default)]
pub struct Taken(BTreeMap<u64, (u64, u64)>);

impl Taken {
    /// Returns the ranges held after the first `events` events. Starts with the segments held at
    /// the end, and undoes all later events. Returns `None` if the recording has no segments.
    pub fn after(trace: &Trace, events: usize) -> Option<Self> {
        let is_segment =
            |op: Op| matches!(op, Op::SegmentTaken { .. } | Op::SegmentGivenBack { .. });
        if trace.segments_at_end().is_empty()
            && !trace.events().iter().any(|event| is_segment(event.op))
        {
            return None;
        }
        let mut taken = Self::default();
        for segment in trace.segments_at_end() {
            taken.add(segment.address, segment.bytes, segment.stream);
        }
        for event in trace.events().get(events..).unwrap_or_default().iter().rev() {
            let stream = trace.streams()[event.stream as usize].handle;
            match event.op {
                Op::SegmentTaken { address, bytes } => drop(taken.remove(address, bytes)),
                Op::SegmentGivenBack { address, bytes } => taken.add(address, bytes, stream),
                _ => {}
            }
        }
        Some(taken)
    }

    /// Returns the start, the end and the stream's handle of each range, in order of address.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.0.iter().map(|(&start, &(end, stream))| (start, end, stream))
    }

    /// Adds a range.
    pub fn add(&mut self, start: u64, bytes: u64, stream: u64) {
        self.0.insert(start, (start.saturating_add(bytes), stream));
    }

    /// Removes a range of addresses. The range may be a part of a taken range, or span several.
    /// Returns the start, end and stream of each taken range that lost addresses.
    pub fn remove(&mut self, start: u64, bytes: u64) -> Vec<(u64, u64, u64)> {
        let end = start.saturating_add(bytes);
        let first = self.0.range(..=start).next_back().map_or(start, |(&first, _)| first);
        let mut hit: Vec<_> =
            self.0.range(first..end).map(|(&at, &(to, of))| (at, to, of)).collect();
        hit.retain(|&(_, to, _)| to > start);
        for &(at, to, stream) in &hit {
            self.0.remove(&at);
            if at < start {
                self.0.insert(at, (start, stream));
            }
            if to > end {
                self.0.insert(end, (to, stream));
            }
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_range_cuts_several_segments() {
        let mut taken = Taken::default();
        taken.add(100, 100, 0);
        taken.add(200, 100, 1);
        assert_eq!(taken.remove(150, 100), [(100, 200, 0), (200, 300, 1)]);
        let left: Vec<_> = taken.ranges().collect();
        assert_eq!(left, [(100, 150, 0), (250, 300, 1)]);
    }
}
