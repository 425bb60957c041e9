//! Finds the blocks of frameworks' pools, and the driver allocations that contain those blocks.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::event::{Action, Timed};

/// Role of an event in a trace that has blocks of frameworks' pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// An event of a block.
    Block,
    /// A driver allocation that contains blocks of a pool. The value is the allocation's start.
    Segment(u64),
    /// An event of a block that lies within a block of another pool.
    Nested,
}

/// Returns a [`Part`] for each event, or an empty list if no event belongs to a pool.
pub(super) fn split(events: &[Timed]) -> Vec<Part> {
    let is_pooled =
        |event: &Timed| matches!(event.action, Action::Allocate { kind, .. } if kind.is_pooled());
    if !events.iter().any(is_pooled) {
        return Vec::new();
    }
    let mut memory = Memory { parts: vec![Part::Block; events.len()], ..Memory::default() };
    for (index, event) in events.iter().enumerate() {
        memory.add(index, event.action);
    }
    memory.parts
}

/// Address ranges, keyed by start. Each value is the end, and the index of the allocating event.
type Ranges = BTreeMap<u64, (u64, usize)>;

/// Memory that is live.
#[derive(Default)]
struct Memory {
    parts: Vec<Part>,
    /// Memory of the driver, and mapped ranges.
    ranges: Ranges,
    /// Allocations of physical memory by their handles.
    handles: FxHashMap<u64, usize>,
    blocks: Ranges,
    /// Space and address of blocks within blocks.
    nested: FxHashSet<(u32, u64)>,
}

impl Memory {
    fn add(&mut self, index: usize, action: Action) {
        match action {
            Action::Allocate { kind, address, bytes, .. } if kind.is_pooled() => {
                let end = address.saturating_add(bytes);
                if overlapping(&self.blocks, address, end).next().is_some() {
                    self.nested.insert((kind.space(), address));
                    self.parts[index] = Part::Nested;
                    return;
                }
                self.blocks.insert(address, (end, index));
                for (start, allocated) in overlapping(&self.ranges, address, end) {
                    // If the memory is mapped several times, uses the first range with a block.
                    if self.parts[allocated] == Part::Block {
                        self.parts[allocated] = Part::Segment(start);
                    }
                }
            }
            Action::Allocate { kind, address, bytes, .. } if kind.counts_on_device() => {
                match kind.space() {
                    0 => drop(self.ranges.insert(address, (address.saturating_add(bytes), index))),
                    1 => drop(self.handles.insert(address, index)),
                    _ => {}
                }
            }
            Action::Free { space: 0, address, .. } => drop(self.ranges.remove(&address)),
            Action::Free { space: 1, address, .. } => drop(self.handles.remove(&address)),
            Action::Free { space, address, .. } => {
                if self.nested.remove(&(space, address)) {
                    self.parts[index] = Part::Nested;
                } else if space > 3 {
                    self.blocks.remove(&address);
                }
            }
            Action::Map { address, bytes, handle } => {
                if let Some(allocated) = self.handles.get(&handle) {
                    self.ranges.insert(address, (address.saturating_add(bytes), *allocated));
                }
            }
            Action::Unmap { address, bytes } => {
                let within = address..address.saturating_add(bytes);
                let starts: Vec<_> = self.ranges.range(within).map(|(start, _)| *start).collect();
                for start in starts {
                    self.ranges.remove(&start);
                }
            }
            Action::Allocate { .. }
            | Action::Fail { .. }
            | Action::Folded { .. }
            | Action::Nothing => {}
        }
    }
}

/// Returns the start and the allocating event of each range that overlaps `start..end`.
fn overlapping(ranges: &Ranges, start: u64, end: u64) -> impl Iterator<Item = (u64, usize)> {
    let first = ranges.range(..=start).next_back().map_or(start, |(first, _)| *first);
    let found = ranges.range(first..end.max(first));
    found.filter(move |(_, (to, _))| *to > start).map(|(from, (_, index))| (*from, *index))
}
