//! A vector of values in which the index of a value is its key.

use super::BlockRef;
use crate::source::Segment;

/// Vector that reuses the indexes of removed values for new values.
#[derive(Debug)]
pub(super) struct SlotMap<T> {
    entries: Vec<Option<T>>,
    holes: Vec<u32>,
}

impl<T> Default for SlotMap<T> {
    fn default() -> SlotMap<T> {
        SlotMap { entries: Vec::new(), holes: Vec::new() }
    }
}

impl SlotMap<Segment> {
    /// Inserts a segment as one block.
    pub(super) fn hand_out(&mut self, segment: Segment) -> BlockRef {
        let Segment { address, bytes } = segment;
        BlockRef { key: self.insert(segment), address, bytes }
    }
}

impl<T> SlotMap<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.holes.pop() {
            Some(key) => {
                self.entries[key as usize] = Some(value);
                key
            }
            None => {
                self.entries.push(Some(value));
                self.entries.len() as u32 - 1
            }
        }
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.entries.get_mut(key as usize)?.take();
        if value.is_some() {
            self.holes.push(key);
        }
        value
    }

    pub(super) fn get(&self, key: u32) -> Option<&T> {
        self.entries.get(key as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.entries.get_mut(key as usize)?.as_mut()
    }

    /// Returns the values with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(key, entry)| Some((key, entry.as_ref()?)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }
}
