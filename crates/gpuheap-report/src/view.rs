//! Reduces a trace to a view for charts. A view has a bounded number of moments, and the blocks
//! that are live at any of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpuheap_trace::{Op, Taken, Trace};

use crate::ledger::{Block, Ledger};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of moments in a chart, in addition to the peak and the failed requests.
    pub(crate) moments: usize,
    /// Maximum number of blocks in a chart. If more blocks are live at the chart's moments, the
    /// chart gets fewer moments.
    pub(crate) blocks: usize,
}

/// Maximum number of failed requests in a view. Programs that retry in a loop have many failures.
const FAILURES: usize = 100;
/// Minimum number of moments in a chart. If too many blocks are live, a chart gets fewer moments,
/// down to this number. If that is not enough, the smallest blocks are left out.
const FEWEST: usize = 64;

/// Moment of a view: the state of a trace after a number of events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Number of applied events.
    pub(crate) events: u32,
    /// Number of the last applied event, as counted in the file.
    pub(crate) number: u32,
    pub(crate) time_ns: u64,
    /// Live bytes at the moment.
    pub(crate) live: u64,
    /// Peak of the live bytes since the previous moment.
    pub(crate) high: u64,
}

/// Moments of a trace that a chart shows, and the blocks that are live at one or more of them.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) moments: Vec<Moment>,
    /// Allocations that are live at one or more of `moments`.
    pub(crate) blocks: Vec<u32>,
    /// Number and bytes of blocks that are live at a moment, but exceed [`Bounds::blocks`].
    pub(crate) left_out: (u64, u64),
}

/// Range of addresses that the recorded allocator held from moment `from` on. The allocator no
/// longer held the range at moment `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldRange {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) from: u32,
    pub(crate) until: u32,
}

impl View {
    pub(crate) fn new(trace: &Trace, ledger: &Ledger, bounds: Bounds) -> Self {
        let mut count = bounds.moments.max(1);
        loop {
            let ends = ends(trace, count);
            let spans = |block: &Block| {
                let next = ends.partition_point(|&end| end <= block.from);
                block.bytes > 0 && ends.get(next).is_some_and(|&end| end <= block.until)
            };
            let mut blocks: Vec<u32> = (0_u32..)
                .zip(&ledger.blocks)
                .filter(|(_, block)| spans(block))
                .map(|(allocation, _)| allocation)
                .collect();
            if blocks.len() > bounds.blocks && count > FEWEST {
                count = (count / 2).max(FEWEST);
                continue;
            }
            let bytes = |&allocation: &u32| ledger.blocks[allocation as usize].bytes;
            let mut left_out = (0, 0);
            if blocks.len() > bounds.blocks {
                blocks.sort_unstable_by_key(|block| std::cmp::Reverse(bytes(block)));
                let small = blocks.split_off(bounds.blocks);
                let sum = small.iter().map(bytes).fold(0, u64::saturating_add);
                left_out = (small.len() as u64, sum);
                blocks.sort_unstable();
            }
            return Self { moments: moments(trace, ledger, &ends), blocks, left_out };
        }
    }

    /// Returns the first moment at which a block is live, and the first moment after it at which
    /// the block is freed.
    pub(crate) fn span(&self, block: &Block) -> (u32, u32) {
        let from = self.moments.partition_point(|moment| moment.events <= block.from);
        let until = self.moments.partition_point(|moment| moment.events <= block.until);
        // A view has fewer than 2^32 moments.
        (from as u32, until as u32)
    }

    /// Returns the `most` heaviest sites over all moments, each with its live bytes at each moment.
    /// If there are more sites, the last entry is their sum.
    pub(crate) fn by_site(&self, ledger: &Ledger, most: usize) -> Vec<(String, Vec<u64>)> {
        let blocks = || {
            self.blocks.iter().map(|&allocation| {
                let block = &ledger.blocks[allocation as usize];
                (block.site as usize, block.bytes, self.span(block))
            })
        };
        let mut weights = vec![0_u128; ledger.sites.len()];
        for (site, bytes, (from, until)) in blocks() {
            weights[site] += u128::from(bytes) * u128::from(until - from);
        }
        let mut top: Vec<usize> = (0..weights.len()).filter(|&site| weights[site] > 0).collect();
        top.sort_by_key(|&site| (Reverse(weights[site]), &ledger.sites[site]));
        let has_others = top.len() > most;
        top.truncate(most);
        let mut row_of = vec![top.len(); weights.len()];
        let mut names: Vec<String> = Vec::new();
        for (row, &site) in top.iter().enumerate() {
            row_of[site] = row;
            names.push(ledger.sites[site].clone());
        }
        names.extend(has_others.then(|| "others".to_owned()));
        let width = self.moments.len() + 1;
        let mut changes = vec![vec![0_i128; width]; names.len()];
        for (site, bytes, (from, until)) in blocks() {
            changes[row_of[site]][from as usize] += i128::from(bytes);
            changes[row_of[site]][until as usize] -= i128::from(bytes);
        }
        let rows = changes.into_iter().map(|changes| {
            let mut sum = 0;
            let live = changes[..width - 1].iter().map(|change| {
                sum += change;
                u64::try_from(sum).unwrap_or(u64::MAX)
            });
            live.collect()
        });
        names.into_iter().zip(rows).collect()
    }

    /// Returns each range of addresses that the recorded allocator held at one or more moments.
    /// Empty if the recording has no segments.
    pub(crate) fn ranges(&self, trace: &Trace) -> Vec<HeldRange> {
        let Some(mut taken) = Taken::after(trace, 0) else { return Vec::new() };
        let moment = |events: usize| {
            self.moments.partition_point(|moment| (moment.events as usize) <= events) as u32
        };
        // Maps the start of each held range to the moment from which it is held.
        let mut since: BTreeMap<u64, u32> = taken.ranges().map(|(start, ..)| (start, 0)).collect();
        let mut found = Vec::new();
        for (index, event) in trace.events().iter().enumerate() {
            match event.op {
                Op::SegmentTaken { address, bytes } => {
                    taken.add(address, bytes, 0);
                    since.insert(address, moment(index));
                }
                Op::SegmentGivenBack { address, bytes } => {
                    let end = address.saturating_add(bytes);
                    let until = moment(index);
                    for (start, to, _) in taken.remove(address, bytes) {
                        let from = since.remove(&start).unwrap_or_default();
                        let (cut, cut_end) = (start.max(address), to.min(end));
                        if from < until {
                            let bytes = cut_end - cut;
                            found.push(HeldRange { address: cut, bytes, from, until });
                        }
                        if start < address {
                            since.insert(start, from);
                        }
                        if to > end {
                            since.insert(end, from);
                        }
                    }
                }
                _ => {}
            }
        }
        let until = self.moments.len() as u32;
        found.extend(taken.ranges().map(|(start, end, _)| HeldRange {
            address: start,
            bytes: end - start,
            from: since.get(&start).copied().unwrap_or_default(),
            until,
        }));
        found
    }
}

/// Returns the points of a trace to show, each as a number of applied events. These are the start,
/// the ends of `count` equal steps, the peak, and the first failed requests.
fn ends(trace: &Trace, count: usize) -> Vec<u32> {
    let events = trace.events();
    let first = trace.reconstructed_events();
    let recorded = events.len() - first;
    let mut ends: Vec<usize> = (0..=count).map(|part| first + recorded * part / count).collect();
    ends.extend(trace.summary().peak_event.map(|index| index + 1));
    let is_failure = |op: Op| matches!(op, Op::Fail { .. });
    let failures = events.iter().enumerate().filter(|(_, event)| is_failure(event.op));
    ends.extend(failures.take(FAILURES).map(|(index, _)| index + 1));
    ends.sort_unstable();
    ends.dedup();
    // The number of events fits in 32 bits.
    ends.into_iter().map(|end| end as u32).collect()
}

fn moments(trace: &Trace, ledger: &Ledger, ends: &[u32]) -> Vec<Moment> {
    let events = trace.events();
    let (mut live, mut index) = (0_u64, 0);
    let mut moments = Vec::with_capacity(ends.len());
    for &end in ends {
        let mut high = live;
        for event in &events[index..end as usize] {
            match event.op {
                Op::Allocate { bytes, .. } => live = live.saturating_add(bytes),
                Op::Free { allocation } => {
                    live = live.saturating_sub(ledger.blocks[allocation as usize].bytes);
                }
                _ => {}
            }
            high = high.max(live);
        }
        index = end as usize;
        let last = events[..index].last();
        moments.push(Moment {
            events: end,
            number: last.map_or(0, |event| event.number),
            time_ns: last.map_or(0, |event| event.time_ns),
            live,
            high: high.max(live),
        });
    }
    moments
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuheap_trace::{At, Format, TraceBuilder};
    use proptest::prelude::*;

    /// Returns a trace. A step of 0 frees the oldest live block, and other steps allocate their
    /// bytes.
    fn trace(steps: &[u64]) -> Trace {
        let mut builder = TraceBuilder::new("made up", Format::RmmCsv);
        let mut live = std::collections::VecDeque::new();
        for (index, &bytes) in steps.iter().enumerate() {
            let at = At { time_ns: index as u64, stream: 0, thread: 0, stack: 0 };
            let address = (index as u64 + 1) << 20;
            if bytes > 0 {
                builder.allocate(at, address, bytes).unwrap();
                live.push_back((address, bytes));
            } else if let Some((address, bytes)) = live.pop_front() {
                builder.free(at, address, bytes).unwrap();
            }
        }
        builder.finish()
    }

    proptest! {
        #[test]
        fn view_sums_match_events(
            steps in prop::collection::vec(0..5_u64, 1..200),
            moments in 1..50_usize,
        ) {
            let trace = trace(&steps);
            let ledger = Ledger::new(&trace);
            let view = View::new(&trace, &ledger, Bounds { moments, blocks: 1000 });
            let sites = view.by_site(&ledger, 2);
            for (index, moment) in view.moments.iter().enumerate() {
                let live: u64 = ledger.live(moment.events).map(|block| block.bytes).sum();
                prop_assert_eq!(moment.live, live);
                prop_assert_eq!(sites.iter().map(|(_, row)| row[index]).sum::<u64>(), live);
            }
            let high = view.moments.iter().map(|moment| moment.high).max();
            prop_assert_eq!(high.unwrap(), trace.summary().peak_live_bytes);
        }
    }

    #[test]
    fn crowded_view_counts_left_out_blocks() {
        let trace = trace(&[1, 2, 3, 4, 5]);
        let ledger = Ledger::new(&trace);
        let view = View::new(&trace, &ledger, Bounds { moments: 100, blocks: 2 });
        assert_eq!(view.blocks, [3, 4]);
        assert_eq!(view.left_out, (3, 6));
    }
}
