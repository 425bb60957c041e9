//! Pools of CUDA graphs. A graph keeps using the memory that its capture allocated.
//!
//! PyTorch begins a pool for each capture, ends the pool with the capture, and releases the pool
//! when the graph is destroyed. Until the release, only the same pool reuses its memory, because a
//! replay writes to the memory again.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use gpuheap::Error;
use rustc_hash::FxHashMap;

use crate::libraries::PYTORCH;
use crate::locked::locked;
use crate::memory::Memory;
use crate::owner::Owner;

/// PyTorch's identifier of a pool.
pub(super) type PoolId = [u64; 2];

/// Sizes in a pool are multiples of this many bytes, as in PyTorch's own pools.
const UNIT: u64 = 512;

/// Largest ratio of a free block's size to the request that it serves.
const LARGEST_EXCESS: u64 = 2;

/// Pools of one device, and their memory.
pub(super) struct Pools {
    owner: Arc<Owner>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    pools: FxHashMap<PoolId, Pool>,
    /// Memory that PyTorch holds, keyed by address.
    live: FxHashMap<u64, Pooled>,
    /// Memory of released pools. The memory returns to the heap after a wait for the device.
    returning: Vec<Memory>,
    /// Number of captures in progress.
    begun: usize,
    /// Stream on which the memory of all pools is allocated. The stream has no work.
    stream: Option<gpuheap::Stream>,
}

#[derive(Default)]
struct Pool {
    /// Number of existing graphs that were captured into the pool.
    uses: usize,
    free: Vec<Pooled>,
}

struct Pooled {
    memory: Memory,
    pool: PoolId,
    /// PyTorch's stream that the memory was allocated on.
    stream: usize,
    /// `true` if another stream used the memory. The free is not ordered after that stream's work,
    /// so nothing reuses the memory.
    is_shared: bool,
}

impl Pools {
    pub(super) fn new(owner: Arc<Owner>) -> Pools {
        Pools { owner, state: Mutex::default() }
    }

    /// Begins a capture into a pool.
    pub(super) fn begin(&self, id: PoolId) -> Result<(), Error> {
        {
            let mut state = self.lock()?;
            state.begun += 1;
            state.pools.entry(id).or_default().uses += 1;
        }
        // Makes the stream now, before PyTorch's stream starts to capture.
        self.stream().map(drop)
    }

    /// Ends a capture.
    pub(super) fn end(&self) -> Result<(), Error> {
        let mut state = self.lock()?;
        state.begun = state.begun.saturating_sub(1);
        Ok(())
    }

    /// Ends one use of a pool. After the last use, the pool's free memory returns to the heap.
    pub(super) fn release(&self, id: PoolId) -> Result<(), Error> {
        let mut state = self.lock()?;
        if let Entry::Occupied(mut pool) = state.pools.entry(id) {
            pool.get_mut().uses -= 1;
            if pool.get().uses == 0 {
                let free = pool.remove().free;
                state.returning.extend(free.into_iter().map(|pooled| pooled.memory));
            }
        }
        drop(state);
        self.return_released()
    }

    /// Allocates from a pool's free memory, or else from the heap. For memory from the heap, waits
    /// until all earlier work on the memory has completed.
    pub(super) fn allocate(&self, id: PoolId, bytes: u64, stream: usize) -> Result<u64, Error> {
        let bytes = bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes);
        {
            let mut state = self.lock()?;
            let free = state.pools.get_mut(&id).map(|pool| &mut pool.free);
            if let Some(pooled) = free.and_then(|free| best_fit(free, bytes, stream)) {
                let address = pooled.memory.address();
                state.live.insert(address, pooled);
                return Ok(address);
            }
        }
        // The lock is not held here, because the heap may run Python's collector, and finalisers
        // may call `free`.
        let own = self.stream()?;
        let block = self.owner.heap.allocate(bytes, &own)?;
        // A replay may run on any stream, so earlier work on the memory must have completed.
        own.record()?.synchronize()?;
        let address = block.address();
        let record = self.owner.tracked_below(address, bytes);
        let memory = Memory::new(block, record, None, self.owner.clone(), Some(own)).of(PYTORCH);
        let pooled = Pooled { memory, pool: id, stream, is_shared: false };
        self.lock()?.live.insert(address, pooled);
        Ok(address)
    }

    /// Frees memory into its pool. Returns `false` if the address belongs to no pool.
    pub(super) fn free(&self, address: u64) -> Result<bool, Error> {
        let mut state = self.lock()?;
        let Some(pooled) = state.live.remove(&address) else { return Ok(false) };
        if let Some(pool) = state.pools.get_mut(&pooled.pool) {
            pool.free.push(pooled);
            return Ok(true);
        }
        state.returning.push(pooled.memory);
        drop(state);
        self.return_released()?;
        Ok(true)
    }

    /// Notes that another stream uses the memory. Returns `false` if the address belongs to no
    /// pool.
    pub(super) fn share(&self, address: u64) -> Result<bool, Error> {
        let mut state = self.lock()?;
        let pooled = state.live.get_mut(&address);
        Ok(pooled.map(|pooled| pooled.is_shared = true).is_some())
    }

    /// Waits for all work of the device, and returns the memory of released pools to the heap. A
    /// capture in progress forbids the wait; the memory then stays until the next call.
    pub(super) fn return_released(&self) -> Result<(), Error> {
        let returning = {
            let mut state = self.lock()?;
            if state.begun > 0 {
                return Ok(());
            }
            std::mem::take(&mut state.returning)
        };
        if returning.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.owner.device.synchronize() {
            self.lock()?.returning.extend(returning);
            return Err(error);
        }
        Ok(())
    }

    fn stream(&self) -> Result<gpuheap::Stream, Error> {
        if let Some(known) = &self.lock()?.stream {
            return Ok(known.clone());
        }
        let made = self.owner.device.stream()?;
        Ok(self.lock()?.stream.get_or_insert(made).clone())
    }

    fn lock(&self) -> Result<MutexGuard<'_, PoolState>, Error> {
        locked(&self.owner.heap, &self.state)
    }
}

/// Removes and returns the smallest free block that fits a request closely and belongs to `stream`.
fn best_fit(free: &mut Vec<Pooled>, bytes: u64, stream: usize) -> Option<Pooled> {
    let fits = |pooled: &Pooled| {
        let size = pooled.memory.bytes();
        let is_close = size >= bytes && size / LARGEST_EXCESS <= bytes;
        is_close && pooled.stream == stream && !pooled.is_shared
    };
    let fitting = free.iter().enumerate().filter(|(_, pooled)| fits(pooled));
    let (best, _) = fitting.min_by_key(|(_, pooled)| pooled.memory.bytes())?;
    Some(free.swap_remove(best))
}
