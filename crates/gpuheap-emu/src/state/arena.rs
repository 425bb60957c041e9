//! Manages places (address ranges) in a pool. Tracks free extents, the frees that these extents
//! wait for, and the chunks that the device provided.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::state::stream::OpRef;

/// Size, in bytes, of the chunks that a pool takes from the device, as measured on an H200.
pub(crate) const CHUNK: u64 = 32 << 20;
/// Unit to which sizes in a pool are rounded up, in bytes, as measured on an H200.
pub(crate) const POOL_ALIGN: u64 = 512;

/// Address ranges ("places") of a pool's allocations, in a growing range of chunks. Unless a free
/// extent is idle, it records a free. Another stream may take the extent only if it waits for that
/// free. Neighbouring free extents of one stream are joined, across chunks too. A chunk that is
/// wholly free can be returned to the device. That leaves a hole.
#[derive(Default)]
pub(crate) struct Arena {
    extents: BTreeMap<u64, Extent>,
    by_size: BTreeSet<(Tag, u64, u64)>,
    /// Number of free extents that are not idle, keyed by the stream of the free that they record.
    pending: FxHashMap<u32, usize>,
    holes: BTreeMap<u64, u64>,
    end: u64,
    backed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    bytes: u64,
    /// Last queued free in the extent; `None` once this free is done.
    freed: Option<OpRef>,
}

/// Owner of an extent: 0 if the extent is idle, else the index of its stream + 1.
type Tag = u32;

const IDLE: Tag = 0;

impl Extent {
    fn tag(&self) -> Tag {
        self.freed.map_or(IDLE, |op| op.stream + 1)
    }
}

impl Arena {
    /// Returns the bytes of memory that the device provided.
    pub(crate) fn backed(&self) -> u64 {
        self.backed
    }

    /// Takes `bytes` of an extent that records a free on this stream. Returns the address.
    pub(crate) fn take_own(&mut self, bytes: u64, stream: u32) -> Option<u64> {
        if self.pending.is_empty() {
            return None;
        }
        self.take_best(bytes, stream + 1)
    }

    /// Takes `bytes` of free memory that waits for no queued free. Returns the address.
    pub(crate) fn take_idle(&mut self, bytes: u64) -> Option<u64> {
        self.take_best(bytes, IDLE)
    }

    /// Takes `bytes` of an extent that records a free on another stream, if `may` accepts that
    /// free. Returns the address and the free.
    pub(crate) fn take_foreign(
        &mut self,
        bytes: u64,
        may: impl Fn(OpRef) -> bool,
    ) -> Option<(u64, OpRef)> {
        let streams: Vec<u32> = self.pending.keys().copied().collect();
        for stream in streams {
            let tag = stream + 1;
            let found =
                self.by_size.range((tag, bytes, 0)..(tag + 1, 0, 0)).find_map(|&(_, _, place)| {
                    let op = self.extents.get(&place)?.freed?;
                    may(op).then_some((place, op))
                });
            if let Some((place, op)) = found {
                self.cut(place, bytes);
                return Some((place, op));
            }
        }
        None
    }

    /// Plans the growth of the arena for an allocation of `bytes`. Returns the allocation's
    /// address, and the bytes to take from the device, rounded up to a multiple of `unit`. If
    /// `stream` may take the free extent at the arena's end, the allocation begins in that extent.
    pub(crate) fn growth(&self, bytes: u64, stream: u32, unit: u64) -> (u64, u64) {
        let needed = bytes.next_multiple_of(unit);
        if let Some((&hole, _)) = self.holes.iter().find(|(_, size)| **size >= needed) {
            return (hole, needed);
        }
        let start = match self.extents.last_key_value() {
            Some((&place, extent))
                if place + extent.bytes == self.end
                    && (extent.tag() == IDLE || extent.tag() == stream + 1) =>
            {
                place
            }
            _ => self.end,
        };
        (start, (start + bytes).saturating_sub(self.end).next_multiple_of(unit))
    }

    /// Takes `bytes` at the address `place` that [`growth`](Arena::growth) returned, once the
    /// device has provided `more` bytes.
    pub(crate) fn grow(&mut self, place: u64, more: u64, bytes: u64) {
        self.backed += more;
        let from = match self.holes.remove(&place) {
            Some(size) => {
                if size > more {
                    self.holes.insert(place + more, size - more);
                }
                place
            }
            None => {
                self.end += more;
                self.end - more
            }
        };
        // The free extent at `place` may still wait for a queued free. The new bytes join this
        // extent, so they wait for the same free.
        let freed = self.extents.get(&place).and_then(|extent| extent.freed);
        self.insert(from, Extent { bytes: more, freed });
        let start = if from == place { place } else { place.min(from) };
        let base = self.extents.range(..=start).next_back().map_or(start, |(&base, _)| base);
        self.cut_within(base, place, bytes);
    }

    /// Frees the bytes of an allocation at `place`. Other streams may take them once `freed` is
    /// done. If `freed` is `None`, they may take them immediately.
    pub(crate) fn give(&mut self, place: u64, bytes: u64, freed: Option<OpRef>) {
        self.insert(place, Extent { bytes, freed });
    }

    /// Makes an extent idle if `done` returns `true` for the extent's queued free.
    pub(crate) fn mark_idle(&mut self, done: impl Fn(OpRef) -> bool) {
        if self.pending.is_empty() {
            return;
        }
        let pending = self.by_size.range((IDLE + 1, 0, 0)..).map(|&(_, _, place)| place);
        let is_done = |place: &u64| {
            self.extents.get(place).and_then(|extent| extent.freed).is_some_and(&done)
        };
        for place in pending.filter(is_done).collect::<Vec<_>>() {
            if let Some(extent) = self.remove(place) {
                self.insert(place, Extent { freed: None, ..extent });
            }
        }
    }

    /// Makes extents idle if `op`, or an earlier free on the stream of `op`, freed them.
    pub(crate) fn free_done(&mut self, op: OpRef) {
        if !self.pending.contains_key(&op.stream) {
            return;
        }
        let tag = op.stream + 1;
        let places = self.by_size.range((tag, 0, 0)..(tag + 1, 0, 0)).map(|found| found.2);
        let is_done = |place: &u64| {
            self.extents.get(place).and_then(|e| e.freed).is_some_and(|freed| freed.id <= op.id)
        };
        for place in places.filter(is_done).collect::<Vec<_>>() {
            if let Some(extent) = self.remove(place) {
                self.insert(place, Extent { freed: None, ..extent });
            }
        }
    }

    /// Removes wholly free chunks as long as at least `keep` bytes stay. Returns the bytes removed.
    pub(crate) fn shrink(&mut self, keep: u64) -> u64 {
        let before = self.backed;
        let idle: Vec<u64> =
            self.by_size.range((IDLE, 0, 0)..(IDLE + 1, 0, 0)).map(|found| found.2).collect();
        for place in idle.into_iter().rev() {
            let spare = self.backed.saturating_sub(keep);
            let Some(&Extent { bytes, .. }) = self.extents.get(&place) else { continue };
            let end = place + bytes;
            // The last chunk of a nearly full device may be smaller than other chunks. It ends
            // where the backed memory ends.
            let last = if end == self.end || self.holes.contains_key(&end) {
                end
            } else {
                end - end % CHUNK
            };
            let hole = self.holes.range(..place).next_back();
            let first = if place == 0 || hole.is_some_and(|(hole, size)| hole + size == place) {
                place
            } else {
                place.next_multiple_of(CHUNK)
            };
            let kept = last.saturating_sub(spare).next_multiple_of(CHUNK);
            let first = if spare >= last.saturating_sub(first) { first } else { first.max(kept) };
            if first >= last {
                continue;
            }
            self.remove(place);
            if place < first {
                self.insert(place, Extent { bytes: first - place, freed: None });
            }
            if last < end {
                self.insert(last, Extent { bytes: end - last, freed: None });
            }
            self.backed -= last - first;
            self.insert_hole(first, last);
        }
        before - self.backed
    }

    fn insert_hole(&mut self, mut first: u64, mut last: u64) {
        if let Some((&before, &size)) = self.holes.range(..first).next_back()
            && before + size == first
        {
            self.holes.remove(&before);
            first = before;
        }
        if let Some(size) = self.holes.remove(&last) {
            last += size;
        }
        if last == self.end {
            self.end = first;
        } else {
            self.holes.insert(first, last - first);
        }
    }

    fn take_best(&mut self, bytes: u64, tag: Tag) -> Option<u64> {
        let &(found, _, place) = self.by_size.range((tag, bytes, 0)..).next()?;
        if found != tag {
            return None;
        }
        self.cut(place, bytes);
        Some(place)
    }

    /// Takes the first bytes of an extent.
    fn cut(&mut self, place: u64, bytes: u64) {
        self.cut_within(place, place, bytes);
    }

    /// Takes bytes out of the extent at `base`.
    fn cut_within(&mut self, base: u64, place: u64, bytes: u64) {
        let Some(extent) = self.remove(base) else { return };
        let end = base + extent.bytes;
        if base < place {
            self.put(base, Extent { bytes: place - base, ..extent });
        }
        if place + bytes < end {
            self.put(place + bytes, Extent { bytes: end - place - bytes, ..extent });
        }
    }

    /// Inserts an extent, and joins it with neighbours that have the same owner.
    fn insert(&mut self, mut place: u64, mut extent: Extent) {
        if extent.bytes == 0 {
            return;
        }
        if let Some((&before, other)) = self.extents.range(..place).next_back()
            && before + other.bytes == place
            && other.tag() == extent.tag()
        {
            let other = *other;
            self.remove(before);
            extent = join(other, extent);
            place = before;
        }
        let after = place + extent.bytes;
        if let Some(other) = self.extents.get(&after)
            && other.tag() == extent.tag()
        {
            let other = *other;
            self.remove(after);
            extent = join(extent, other);
        }
        self.put(place, extent);
    }

    fn put(&mut self, place: u64, extent: Extent) {
        if let Some(op) = extent.freed {
            *self.pending.entry(op.stream).or_default() += 1;
        }
        self.by_size.insert((extent.tag(), extent.bytes, place));
        self.extents.insert(place, extent);
    }

    fn remove(&mut self, place: u64) -> Option<Extent> {
        let extent = self.extents.remove(&place)?;
        self.by_size.remove(&(extent.tag(), extent.bytes, place));
        if let Some(op) = extent.freed
            && let Some(count) = self.pending.get_mut(&op.stream)
        {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(&op.stream);
            }
        }
        Some(extent)
    }
}

/// Joins two neighbours. The result is idle once the later of their two frees is done.
fn join(a: Extent, b: Extent) -> Extent {
    let freed = match (a.freed, b.freed) {
        (Some(a), Some(b)) => Some(if a.id < b.id { b } else { a }),
        _ => None,
    };
    Extent { bytes: a.bytes + b.bytes, freed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take { stream: u32, bytes: u64, unit: u64 },
        Give { which: prop::sample::Index, stream: u32, done: bool },
        Done { stream: u32 },
        Shrink { keep: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3_u32, prop_oneof![1..4096_u64, 1..100_000_000_u64], 0..3_u32)
                .prop_map(|(stream, bytes, halved)| Step::Take { stream, bytes, unit: CHUNK >> halved }),
            4 => (any::<prop::sample::Index>(), 0..3_u32, any::<bool>())
                .prop_map(|(which, stream, done)| Step::Give { which, stream, done }),
            1 => (0..3_u32).prop_map(|stream| Step::Done { stream }),
            1 => (0..4 * CHUNK).prop_map(|keep| Step::Shrink { keep }),
        ]
    }

    impl Arena {
        /// Asserts that the maps agree with each other and with the places handed out.
        fn audit(&self, live: &[(u64, u64)]) {
            let mut ranges: Vec<(u64, u64)> = live.to_vec();
            ranges.extend(self.extents.iter().map(|(&place, extent)| (place, extent.bytes)));
            assert_eq!(ranges.iter().map(|range| range.1).sum::<u64>(), self.backed);
            ranges.extend(self.holes.iter().map(|(&place, &bytes)| (place, bytes)));
            ranges.sort_unstable();
            let mut at = 0;
            for (place, bytes) in ranges {
                assert_eq!(place, at, "ranges neither overlap nor leave anything out");
                at += bytes;
            }
            assert_eq!(at, self.end);
            assert_eq!(self.by_size.len(), self.extents.len());
            let pending = self.extents.values().filter(|extent| extent.freed.is_some()).count();
            assert_eq!(self.pending.values().sum::<usize>(), pending);
        }
    }

    proptest! {
        #[test]
        fn arena_accounts_for_every_byte(steps in prop::collection::vec(step(), 1..120)) {
            let mut arena = Arena::default();
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (id, step) in (1..).zip(steps) {
                match step {
                    Step::Take { stream, bytes, unit } => {
                        let place = arena.take_own(bytes, stream).or_else(|| arena.take_idle(bytes));
                        let place = place.unwrap_or_else(|| {
                            let (place, more) = arena.growth(bytes, stream, unit);
                            arena.grow(place, more, bytes);
                            place
                        });
                        live.push((place, bytes));
                    }
                    Step::Give { which, stream, done } if !live.is_empty() => {
                        let (place, bytes) = live.swap_remove(which.index(live.len()));
                        arena.give(place, bytes, (!done).then_some(OpRef { stream, id }));
                    }
                    Step::Give { .. } => {}
                    Step::Done { stream } => arena.free_done(OpRef { stream, id }),
                    Step::Shrink { keep } => {
                        let before = arena.backed();
                        prop_assert_eq!(before - arena.shrink(keep), arena.backed());
                        prop_assert!(arena.backed() >= keep.min(before));
                    }
                }
                arena.audit(&live);
            }
            for (place, bytes) in live.drain(..) {
                arena.give(place, bytes, None);
            }
            arena.mark_idle(|_| true);
            arena.shrink(0);
            arena.audit(&[]);
            prop_assert_eq!(arena.backed(), 0, "all of it goes back");
        }
    }
}
