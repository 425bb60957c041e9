//! Granules that small allocations share. This module manages addresses only, not their content.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

/// Unit by which the device memory in use grows and shrinks, in bytes. Measured on an H200. Virtual
/// memory management has the same granularity.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Granules shared by small allocations. An allocation takes the smallest free place that suffices.
/// Free neighbours are joined, and an empty granule is returned.
#[derive(Default)]
pub(crate) struct Slots {
    free_by_size: BTreeSet<(u64, u64)>,
    free_by_place: BTreeMap<u64, u64>,
    /// Bytes in use in each granule, keyed by the granule's address divided by [`GRANULE`].
    granules: FxHashMap<u64, u64>,
}

impl Slots {
    /// Returns whether no free place has room for `bytes`, so that a new granule is needed.
    pub(crate) fn needs_granule(&self, bytes: u64) -> bool {
        self.free_by_size.range((bytes, 0)..).next().is_none()
    }

    /// Adds a granule that the device provided. `granule` is its address.
    pub(crate) fn add_granule(&mut self, granule: u64) {
        self.granules.insert(granule / GRANULE, 0);
        self.insert_free(granule, GRANULE);
    }

    /// Takes `bytes`, at most one granule, and returns their address. Returns `None` if the
    /// allocation [needs one more granule](Slots::needs_granule).
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(size, place) = self.free_by_size.range((bytes, 0)..).next()?;
        self.remove_free(place, size);
        if size > bytes {
            self.insert_free(place + bytes, size - bytes);
        }
        *self.granules.entry(place / GRANULE).or_default() += bytes;
        Some(place)
    }

    /// Frees the `bytes` of an allocation at `place`. If the granule around them is then empty,
    /// removes the granule and returns its address.
    pub(crate) fn give(&mut self, place: u64, bytes: u64) -> Option<u64> {
        let granule = place / GRANULE;
        let (first, end) = (granule * GRANULE, (granule + 1) * GRANULE);
        let (mut from, mut to) = (place, place + bytes);
        if let Some((&before, &size)) = self.free_by_place.range(first..from).next_back()
            && before + size == from
        {
            self.remove_free(before, size);
            from = before;
        }
        if let Some((&after, &size)) = self.free_by_place.range(to..end).next()
            && after == to
        {
            self.remove_free(after, size);
            to += size;
        }
        let used = self.granules.entry(granule).or_default();
        *used -= bytes;
        if *used == 0 {
            self.granules.remove(&granule);
            return Some(first);
        }
        self.insert_free(from, to - from);
        None
    }

    fn insert_free(&mut self, place: u64, size: u64) {
        self.free_by_size.insert((size, place));
        self.free_by_place.insert(place, size);
    }

    fn remove_free(&mut self, place: u64, size: u64) {
        self.free_by_size.remove(&(size, place));
        self.free_by_place.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_allocations_share_granule() {
        let mut slots = Slots::default();
        assert!(slots.needs_granule(512));
        assert_eq!(slots.take(512), None);
        slots.add_granule(7 * GRANULE);
        let places: Vec<_> = (0..4096).map(|_| slots.take(512).unwrap()).collect();
        assert!(places.iter().all(|place| place / GRANULE == 7));
        assert!(slots.needs_granule(512), "a full granule has no place left");
        for place in &places[1..] {
            assert_eq!(slots.give(*place, 512), None);
        }
        assert!(!slots.needs_granule(GRANULE - 512), "neighbours are joined");
        let gone = slots.give(places[0], 512);
        assert_eq!(gone, Some(7 * GRANULE), "the last one takes the granule with it");
        assert!(slots.needs_granule(512));
    }
}
