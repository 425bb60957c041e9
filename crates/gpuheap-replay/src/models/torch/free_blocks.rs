//! Free blocks of a stream, in the order in which they are tried.
//!
//! Each request and each free searches, inserts or removes. In sorted chunks, a search has no
//! branch that depends on the data. In a `BTreeMap`, each node on the path has such branches, and
//! the processor mispredicts half of them.

/// Free blocks by size, then by address.
#[derive(Debug, Clone, Default)]
pub(super) struct FreeBlocks {
    lasts: Vec<Free>,
    /// Chunks in order, none of them empty.
    chunks: Vec<Vec<Free>>,
}

/// Largest number of blocks in a chunk. An insertion moves half of a chunk: 768 bytes.
const CHUNK: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Free {
    bytes: u64,
    address: u64,
    block: u32,
}

/// Position of a block, valid until a block is inserted or removed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    chunk: usize,
    index: usize,
}

impl FreeBlocks {
    pub(super) fn insert(&mut self, bytes: u64, address: u64, block: u32) {
        let free = Free { bytes, address, block };
        let Position { mut chunk, mut index } = self.first_not_below(bytes, address);
        if chunk == self.chunks.len() {
            let Some(last) = chunk.checked_sub(1) else {
                let mut first = Vec::with_capacity(CHUNK);
                first.push(free);
                self.chunks.push(first);
                self.lasts.push(free);
                return;
            };
            self.lasts[last] = free;
            (chunk, index) = (last, self.chunks[last].len());
        }
        if self.chunks[chunk].len() == CHUNK {
            self.split(chunk);
            if let Some(in_upper) = index.checked_sub(CHUNK / 2) {
                (chunk, index) = (chunk + 1, in_upper);
            }
        }
        self.chunks[chunk].insert(index, free);
    }

    pub(super) fn remove(&mut self, bytes: u64, address: u64) {
        let position = self.first_not_below(bytes, address);
        let found = self.chunks.get(position.chunk).map(|chunk| chunk[position.index]);
        if found.is_some_and(|found| found.bytes == bytes && found.address == address) {
            self.remove_at(position);
        }
    }

    pub(super) fn remove_at(&mut self, position: Position) {
        let Position { chunk: at, index } = position;
        let chunk = &mut self.chunks[at];
        chunk.remove(index);
        match chunk.last() {
            Some(&last) => self.lasts[at] = last,
            None => {
                self.chunks.remove(at);
                self.lasts.remove(at);
            }
        }
    }

    /// Returns the position of the smallest block with at least `bytes`. Of several such blocks,
    /// returns the lowest block.
    pub(super) fn find(&self, bytes: u64) -> Position {
        self.first_not_below(bytes, 0)
    }

    /// Returns bytes and index of the block at a position; `None` after the last block.
    pub(super) fn get(&self, position: Position) -> Option<(u64, u32)> {
        let Free { bytes, block, .. } = self.chunks.get(position.chunk)?[position.index];
        Some((bytes, block))
    }

    pub(super) fn next(&self, position: Position) -> Position {
        let Position { chunk, index } = position;
        if index + 1 < self.chunks[chunk].len() {
            Position { chunk, index: index + 1 }
        } else {
            Position { chunk: chunk + 1, index: 0 }
        }
    }

    /// Returns bytes and indices of all blocks, in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> {
        self.chunks.iter().flatten().map(|&Free { bytes, block, .. }| (bytes, block))
    }

    /// Returns the bytes of the largest block.
    pub(super) fn largest(&self) -> Option<u64> {
        self.lasts.last().map(|last| last.bytes)
    }

    /// Returns the position of the first block that is not ordered before this size and address.
    fn first_not_below(&self, bytes: u64, address: u64) -> Position {
        let chunk = count_below(&self.lasts, bytes, address);
        let in_chunk = |chunk: &Vec<Free>| count_below(chunk, bytes, address);
        let index = self.chunks.get(chunk).map_or(0, in_chunk);
        Position { chunk, index }
    }

    /// Splits off the upper half of a chunk.
    fn split(&mut self, chunk: usize) {
        let mut upper = Vec::with_capacity(CHUNK);
        upper.extend(self.chunks[chunk].drain(CHUNK / 2..));
        self.lasts.insert(chunk, self.chunks[chunk][CHUNK / 2 - 1]);
        self.chunks.insert(chunk + 1, upper);
    }
}

/// Returns the number of blocks that are ordered before this size and address.
fn count_below(blocks: &[Free], bytes: u64, address: u64) -> usize {
    // Packs size and address into one number, so that the comparison takes no branch.
    let key = |bytes: u64, address: u64| u128::from(bytes) << 64 | u128::from(address);
    let wanted = key(bytes, address);
    blocks.partition_point(|block| key(block.bytes, block.address) < wanted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn free_blocks_match_an_ordered_map(
            steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..40, 0_u64..42), 0..3000),
        ) {
            let (mut free, mut map) = (FreeBlocks::default(), BTreeMap::new());
            for (number, (inserts, bytes, address, wanted)) in (0..).zip(steps) {
                if inserts && !map.contains_key(&(bytes, address)) {
                    free.insert(bytes, address, number);
                    map.insert((bytes, address), number);
                } else if !inserts {
                    free.remove(bytes, address);
                    map.remove(&(bytes, address));
                }
                let mut position = free.find(wanted);
                for (&(bytes, _), &block) in map.range((wanted, 0)..).take(3) {
                    prop_assert_eq!(free.get(position), Some((bytes, block)));
                    position = free.next(position);
                }
                if map.range((wanted, 0)..).count() <= 3 {
                    prop_assert_eq!(free.get(position), None);
                }
                prop_assert_eq!(free.largest(), map.keys().next_back().map(|&(bytes, _)| bytes));
            }
            let all: Vec<_> = map.iter().map(|(&(bytes, _), &block)| (bytes, block)).collect();
            prop_assert_eq!(free.iter().collect::<Vec<_>>(), all);
        }
    }
}
