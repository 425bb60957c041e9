//! Strings of a pickle, each stored once.

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::{FxHashMap, FxHasher};

use crate::Error;
use crate::model::next_number;

/// Strings, each with a number.
#[derive(Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    /// End of each string in `bytes`. Each string begins at the end of the previous string.
    ends: Vec<usize>,
    by_hash: FxHashMap<u64, u32>,
}

impl Texts {
    /// Returns the bytes held.
    pub(super) fn held(&self) -> usize {
        // Bytes that an entry of the table takes, including its share of the empty slots.
        const ENTRY: usize = 24;
        self.bytes.len() + size_of_val(&self.ends[..]) + self.by_hash.len() * ENTRY
    }

    /// Returns the number of a string. A known string keeps its number.
    pub(super) fn add(&mut self, text: &[u8]) -> Result<u32, Error> {
        let hash = BuildHasherDefault::<FxHasher>::default().hash_one(text);
        if let Some(&known) = self.by_hash.get(&hash)
            && self.get(known) == text
        {
            return Ok(known);
        }
        let number = next_number(self.ends.len())?;
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
        // If several strings have the same hash, only the last string is found again. The other
        // strings may be stored twice.
        self.by_hash.insert(hash, number);
        Ok(number)
    }

    pub(super) fn get(&self, number: u32) -> &[u8] {
        let at = number as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[at]]
    }
}
