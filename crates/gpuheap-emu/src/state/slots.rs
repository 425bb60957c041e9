//! How small allocations share granules. Only places are kept here, no bytes.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::state::device::GRANULE;

/// Granules shared by small allocations: best fit, neighbours joined, an empty granule given back.
#[derive(Default)]
pub(crate) struct Slots {
    free_by_size: BTreeSet<(u64, u64)>,
    free_by_place: BTreeMap<u64, u64>,
    /// Bytes in use of each granule.
    granules: FxHashMap<u64, u64>,
    next_granule: u64,
    spare: Vec<u64>,
}

impl Slots {
    /// Whether the next allocation of this size needs one more granule.
    pub(crate) fn needs_granule(&self, bytes: u64) -> bool {
        self.free_by_size.range((bytes, 0)..).next().is_none()
    }

    /// The place of an allocation of at most a granule.
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        let (size, place) = match self.free_by_size.range((bytes, 0)..).next() {
            Some(&found) => {
                self.remove_free(found.1, found.0);
                found
            }
            None => {
                let granule = self.spare.pop().unwrap_or_else(|| {
                    self.next_granule += 1;
                    self.next_granule - 1
                });
                self.granules.insert(granule, 0);
                (GRANULE, granule * GRANULE)
            }
        };
        if size > bytes {
            self.insert_free(place + bytes, size - bytes);
        }
        *self.granules.entry(place / GRANULE).or_default() += bytes;
        place
    }

    /// Gives a place back; whether its granule is empty and gone by that.
    pub(crate) fn give(&mut self, place: u64, bytes: u64) -> bool {
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
            self.spare.push(granule);
            return true;
        }
        self.insert_free(from, to - from);
        false
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
    fn small_allocations_share_a_granule_and_the_empty_one_goes_back() {
        let mut slots = Slots::default();
        assert!(slots.needs_granule(512));
        let places: Vec<_> = (0..4096).map(|_| slots.take(512)).collect();
        assert!(slots.needs_granule(512), "a full granule has no place left");
        for place in &places[1..] {
            assert!(!slots.give(*place, 512));
        }
        assert!(!slots.needs_granule(GRANULE - 512), "neighbours are joined");
        assert!(slots.give(places[0], 512), "the last one takes the granule with it");
        assert!(slots.needs_granule(512));
    }
}
