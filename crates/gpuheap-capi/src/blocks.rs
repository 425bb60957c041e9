//! What is allocated, by address.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::Block;
use rustc_hash::FxHashMap;

/// Power of two: more than threads meet.
const SHARDS: usize = 64;

/// Allocations by address, in shards with a lock each, so that threads seldom meet.
pub(crate) struct Blocks {
    shards: [Shard; SHARDS],
}

/// A cache line each, so that two locks are not in one.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<FxHashMap<u64, Block>>);

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks { shards: std::array::from_fn(|_| Shard::default()) }
    }

    /// Keeps a block until it is taken.
    pub(crate) fn put(&self, block: Block) {
        let address = block.address();
        // Two that are alive are never at one address.
        self.shard(address).insert(address, block);
    }

    /// The block at an address, to whoever asks first.
    pub(crate) fn take(&self, address: u64) -> Option<Block> {
        self.shard(address).remove(&address)
    }

    /// Its size as requested, bytes.
    pub(crate) fn bytes(&self, address: u64) -> Option<u64> {
        self.shard(address).get(&address).map(Block::bytes)
    }

    fn shard(&self, address: u64) -> MutexGuard<'_, FxHashMap<u64, Block>> {
        // Blocks begin at multiples of 512, larger ones of MiB: all bits above count.
        let hash = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.shards[(hash >> (u64::BITS - SHARDS.ilog2())) as usize].lock()
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
