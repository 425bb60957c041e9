//! Holders of live memory.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Live memory of one line of the program, of one size of blocks, or of one thread, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Text that identifies the holder: a line and its function, a size of blocks, or a thread.
    pub name: String,
    /// Live bytes, as requested.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
}

impl Holder {
    /// Sums up live blocks by name, most bytes first. A block is a key and a number of bytes.
    /// `name` returns the name of a key.
    pub fn sums<K: Eq + Hash>(
        blocks: impl Iterator<Item = (K, u64)>,
        name: impl Fn(K) -> String,
    ) -> Vec<Holder> {
        let mut by_key: FxHashMap<K, (u64, u64)> = FxHashMap::default();
        for (key, bytes) in blocks {
            let sum = by_key.entry(key).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1 + 1);
        }
        let mut by_name: FxHashMap<String, (u64, u64)> = FxHashMap::default();
        for (key, (bytes, blocks)) in by_key {
            let sum = by_name.entry(name(key)).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
        }
        let holder = |(name, (bytes, blocks))| Holder { name, bytes, blocks };
        let mut holders: Vec<_> = by_name.into_iter().map(holder).collect();
        holders.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
        holders
    }
}
