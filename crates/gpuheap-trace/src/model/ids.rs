//! Assigns small dense numbers to the large ids of a file.

use rustc_hash::FxHashMap;

use crate::Error;

/// Numbers for distinct keys, in order of first appearance.
#[derive(Debug, Default)]
pub(super) struct Ids {
    numbers: FxHashMap<u64, u32>,
    keys: Vec<u64>,
    // Consecutive events mostly have the same stream or thread, so most lookups end here.
    last: Option<(u64, u32)>,
}

impl Ids {
    pub(super) fn number(&mut self, key: u64) -> Result<u32, Error> {
        if let Some((last, number)) = self.last
            && last == key
        {
            return Ok(number);
        }
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => {
                let number = next_number(self.keys.len())?;
                self.numbers.insert(key, number);
                self.keys.push(key);
                number
            }
        };
        self.last = Some((key, number));
        Ok(number)
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        self.numbers.contains_key(&key)
    }

    pub(super) fn into_keys(self) -> Vec<u64> {
        self.keys
    }
}

/// Returns the number of the item after `len` items; an error if the number exceeds 32 bits.
pub(crate) fn next_number(len: usize) -> Result<u32, Error> {
    u32::try_from(len).ok().filter(|&number| number < u32::MAX).ok_or_else(|| {
        Error::new(
            format!("more than {len} events, allocations, streams, threads or stacks in one trace"),
            "split the recording",
        )
    })
}
