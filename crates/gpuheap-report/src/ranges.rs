//! Sums up memory by range. A range is a section of the program that has a name from NVTX.

use gpuheap_trace::{Op, Trace};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::ledger::{Ledger, NEVER};

/// Ranges of one name, with their memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RangeMemory {
    /// Name.
    pub name: String,
    /// Number of the ranges with this name.
    pub ranges: u64,
    /// Peak of the device's live bytes while a range of this name was open.
    pub peak_bytes: u64,
    /// Number of allocations in these ranges.
    pub allocations: u64,
    /// Bytes of these allocations.
    pub allocated_bytes: u64,
    /// Bytes that were allocated in ranges of this name and are live at the end of the recording.
    pub left_bytes: u64,
}

/// Returns an entry for each name that ranges have, highest peak first.
pub(crate) fn by_range(trace: &Trace, ledger: &Ledger) -> Vec<RangeMemory> {
    let live = Maxima::new(trace);
    let mut names: FxHashMap<&str, usize> = FxHashMap::default();
    let mut found: Vec<RangeMemory> = Vec::new();
    // For each name and thread, the index after the last counted event, so that an event in nested
    // ranges counts once. Thread `None` stands for all threads.
    let mut counted: FxHashMap<(usize, Option<u32>), usize> = FxHashMap::default();
    for range in trace.ranges() {
        let at = *names.entry(&range.name).or_insert(found.len());
        if at == found.len() {
            let name = range.name.to_string();
            let (peak_bytes, allocations, allocated_bytes, left_bytes) = (0, 0, 0, 0);
            found.push(RangeMemory {
                name,
                ranges: 0,
                peak_bytes,
                allocations,
                allocated_bytes,
                left_bytes,
            });
        }
        let row = &mut found[at];
        row.ranges += 1;
        let (start, end) = (range.events.start, range.events.end);
        row.peak_bytes = row.peak_bytes.max(live.largest(start, end));
        let until = |thread| counted.get(&(at, thread)).copied().unwrap_or(0);
        let first = start.max(until(None)).max(until(range.thread));
        let events = trace.events().iter().enumerate().take(end).skip(first);
        for (index, event) in events {
            let Op::Allocate { allocation, bytes } = event.op else { continue };
            let is_within = match range.thread {
                Some(thread) => thread == event.thread,
                None => index >= until(Some(event.thread)),
            };
            if !is_within {
                continue;
            }
            row.allocations += 1;
            row.allocated_bytes = row.allocated_bytes.saturating_add(bytes);
            if ledger.blocks[allocation as usize].until == NEVER {
                row.left_bytes = row.left_bytes.saturating_add(bytes);
            }
        }
        // A folded pair is an allocation and its free that the recorder only counted. The pair
        // belongs to a range of events if it follows an event of the range.
        let until_event = |event: usize| trace.folded().partition_point(|one| one.before <= event);
        for folded in &trace.folded()[until_event(first)..until_event(end).max(until_event(first))]
        {
            let is_within = match range.thread {
                Some(thread) => thread == folded.thread,
                None => folded.before > until(Some(folded.thread)),
            };
            if is_within {
                row.allocations = row.allocations.saturating_add(folded.count);
                row.allocated_bytes = row.allocated_bytes.saturating_add(folded.bytes);
            }
        }
        let counted = counted.entry((at, range.thread)).or_insert(0);
        *counted = end.max(*counted);
    }
    found.sort_by(|one, other| {
        other.peak_bytes.cmp(&one.peak_bytes).then_with(|| one.name.cmp(&other.name))
    });
    found
}

/// Tree over the live bytes after each event. Finds the maximum between any two events.
struct Maxima {
    /// The leaves begin at index `half`. Each inner node is the larger of its two children.
    nodes: Vec<u64>,
    half: usize,
}

impl Maxima {
    fn new(trace: &Trace) -> Self {
        let half = trace.events().len() + 1;
        let mut nodes = vec![0; 2 * half];
        let mut sizes = vec![0; trace.allocations() as usize];
        let mut live = 0_u64;
        for (event, leaf) in trace.events().iter().zip(&mut nodes[half + 1..]) {
            match event.op {
                Op::Allocate { allocation, bytes } => {
                    sizes[allocation as usize] = bytes;
                    live = live.saturating_add(bytes);
                }
                Op::Free { allocation } => {
                    live = live.saturating_sub(sizes[allocation as usize]);
                }
                _ => {}
            }
            *leaf = live;
        }
        for node in (1..half).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        Self { nodes, half }
    }

    /// Returns the maximum of the live bytes from event `start` to event `end`, counted from 1.
    fn largest(&self, start: usize, end: usize) -> u64 {
        let last = self.half - 1;
        let (mut left, mut right) = (start.min(last) + self.half, end.min(last) + self.half + 1);
        let mut largest = 0;
        while left < right {
            if left % 2 == 1 {
                largest = largest.max(self.nodes[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                largest = largest.max(self.nodes[right]);
            }
            (left, right) = (left / 2, right / 2);
        }
        largest
    }
}
