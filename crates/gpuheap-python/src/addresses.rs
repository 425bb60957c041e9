//! Tables of allocations, keyed by address. Hooks use these tables, because a library that
//! allocates through a hook keeps only the address, and names the memory by it.
//!
//! If Python called a hook, the hook's request releases the interpreter's lock and may run the
//! collector. If a foreign allocator called the hook, the thread may hold that allocator's lock,
//! and another thread may hold the interpreter's lock while it waits for the allocator's lock. So
//! the request neither takes nor releases the interpreter's lock, and runs no Python.

use std::sync::{Mutex, MutexGuard};

use gpuheap::Error;
use rustc_hash::FxHashMap;

use crate::locked::locked;
use crate::memory::Memory;

/// Allocations that other libraries hold, keyed by address.
pub(crate) struct Addresses {
    heap: gpuheap::Heap,
    shards: [Mutex<FxHashMap<u64, Memory>>; SHARDS],
}

/// Number of parts of the table. Each part has a lock, so that threads seldom wait.
const SHARDS: usize = 16;

impl Addresses {
    /// Makes an empty table for the memory of `heap`.
    pub(crate) fn new(heap: gpuheap::Heap) -> Addresses {
        Addresses { heap, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Adds an allocation to the table, at its address. [`free`](Addresses::free) removes it again.
    pub(crate) fn keep(&self, address: u64, memory: Memory) -> Result<(), Error> {
        self.shard(address)?.insert(address, memory);
        Ok(())
    }

    /// Frees the allocation at an address. Returns `None` if the table has no such address. Returns
    /// an error in a forked child, because a child frees nothing.
    pub(crate) fn free(
        &self,
        address: u64,
        on: Option<&gpuheap::Stream>,
    ) -> Option<Result<(), Error>> {
        let mut memory = match self.shard(address) {
            Ok(mut shard) => shard.remove(&address)?,
            Err(gone) => return Some(Err(gone)),
        };
        if let Some(stream) = on {
            memory.use_on(stream);
        }
        Some(memory.give_back())
    }

    pub(crate) fn has(&self, address: u64) -> bool {
        self.shard(address).is_ok_and(|shard| shard.contains_key(&address))
    }

    /// Orders the free of the memory at an address after the work of `stream`. Returns `false` if
    /// no library holds that address.
    pub(crate) fn use_on(&self, address: u64, stream: &gpuheap::Stream) -> Result<bool, Error> {
        let shard = self.shard(address)?;
        let memory = shard.get(&address);
        if let Some(memory) = memory {
            memory.use_on(stream);
        }
        Ok(memory.is_some())
    }

    fn shard(&self, address: u64) -> Result<MutexGuard<'_, FxHashMap<u64, Memory>>, Error> {
        let mixed =
            (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SHARDS.ilog2());
        locked(&self.heap, &self.shards[mixed as usize])
    }
}
