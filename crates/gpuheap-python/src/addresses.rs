//! Memory by its address, for hooks: other libraries keep a number and no object.
//!
//! A hook calls in one of two ways. Called from Python, a request releases the interpreter's lock
//! and may run the collector. Called below a foreign allocator, the thread may hold that
//! allocator's lock, and a thread with the interpreter's lock may wait for it. The interpreter's
//! lock is then left as it is, and no Python runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap::Error;
use rustc_hash::FxHashMap;

use crate::memory::Memory;

/// Allocations that other libraries hold, by address.
pub(crate) struct Addresses {
    shards: [Mutex<FxHashMap<u64, Memory>>; SHARDS],
}

/// Parts of the table, so that threads seldom meet.
const SHARDS: usize = 16;

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Addresses {
    /// Keeps the memory at an address until [`free`](Addresses::free).
    pub(crate) fn keep(&self, address: u64, memory: Memory) {
        self.shard(address).insert(address, memory);
    }

    /// Frees the memory at an address. `None` if no library was given that address, or it was
    /// freed.
    pub(crate) fn free(
        &self,
        address: u64,
        on: Option<&gpuheap::Stream>,
    ) -> Option<Result<(), Error>> {
        let mut memory = self.shard(address).remove(&address)?;
        if let Some(stream) = on {
            memory.use_on(stream);
        }
        Some(memory.give_back())
    }

    /// Returns `true` if a library holds that address.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.shard(address).contains_key(&address)
    }

    /// Puts the free of the memory at an address behind the work of `stream`. `false` if no library
    /// was given that address.
    pub(crate) fn use_on(&self, address: u64, stream: &gpuheap::Stream) -> bool {
        let shard = self.shard(address);
        let Some(memory) = shard.get(&address) else { return false };
        memory.use_on(stream);
        true
    }

    fn shard(&self, address: u64) -> MutexGuard<'_, FxHashMap<u64, Memory>> {
        let mixed =
            (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.ilog2());
        self.shards[mixed as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
