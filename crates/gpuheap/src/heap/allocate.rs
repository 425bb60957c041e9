//! Allocates memory from the thread's cache, then from the pool under the store's lock, then after
//! reclaim steps. Blocks, arrays and the C interface call [`HeapInner::allocate`].

use std::sync::Arc;

use gpuheap_driver::BlockEvent;
use gpuheap_pool::{
    BlockRef, GRANULE, Limits, Request, Shortage, SourceError, SourceResult, StreamRef,
};

use crate::Caller;
use crate::device::is_of_capture;
use crate::error::Error;
use crate::heap::HeapInner;
use crate::heap::store::{Store, StoreState};
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::measure;
use crate::stream::Stream;
use crate::thread_cache::{ThreadCache, find};
use crate::total_limit::TotalLimit;

/// Fraction (1/N) of the bytes left below the hard limit that an auxiliary allocation may take. The
/// rest stays available to requests of the program.
const SPARED: u64 = 4;

impl HeapInner {
    /// Allocates memory of a [checked](HeapInner::check_kind) kind from this thread's cache, or
    /// else from the pool. `at` is the requesting line of the program. Also returns this thread's
    /// cache for the stream, if the thread has a cache.
    #[inline(always)]
    pub(crate) fn allocate(
        self: &Arc<HeapInner>,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        at: Caller,
    ) -> Result<(Lease, Option<&'static ThreadCache>), Error> {
        if !zeroed && let Some((lease, cache)) = self.allocate_cached(kind, bytes, stream) {
            return Ok((lease, Some(cache)));
        }
        self.allocate_uncached(kind, bytes, stream, zeroed, at)
    }

    /// Allocates from this thread's cache alone. `None` if the cache has no block, or if the heap
    /// zeroes, checks or tracks its blocks.
    #[inline(always)]
    pub(crate) fn allocate_cached(
        &self,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
    ) -> Option<(Lease, &'static ThreadCache)> {
        let _time = measure::memory_management();
        let cache = find(self.store(kind).number, stream.id())?;
        let lease = if cache.is_plain() { cache.take(bytes)? } else { return None };
        measure::count_allocation(bytes);
        Some((lease, cache))
    }

    #[inline(never)]
    fn allocate_uncached(
        self: &Arc<HeapInner>,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        at: Caller,
    ) -> Result<(Lease, Option<&'static ThreadCache>), Error> {
        // This check comes before any lock: in a forked child, a thread of the parent may have held
        // that lock.
        self.context.check_alive()?;
        let _time = measure::memory_management();
        let store = self.store(kind);
        let renamed;
        let mut stream = stream;
        if stream.is_of_capture() {
            store.check_stream(stream)?;
            renamed = stream.renamed()?;
            stream = &renamed;
        }
        let cache = match find(store.number, stream.id()).filter(|cache| !cache.is_closed()) {
            Some(cache) => Some(cache),
            None => {
                store.check_stream(stream)?;
                stream.refuse_retired()?;
                ThreadCache::find_or_open(self, kind, stream.id(), Some(stream))
            }
        };
        let is_plain = !zeroed && cache.is_some_and(ThreadCache::is_plain);
        let cached = cache.filter(|_| !is_plain).and_then(|cache| cache.take(bytes));
        let allocated = cached.map_or_else(|| store.allocate(bytes, stream, cache), Ok);
        let reported = self.reported(kind, bytes, at, allocated);
        let mut lease = reported.map_err(|error| {
            self.tracker.failed(bytes, kind, stream.id(), at, &error);
            self.with_consumers(error)
        })?;
        if !is_plain {
            lease.note(&self.context, BlockEvent::Allocated);
            if zeroed || self.zero_on_alloc {
                lease = store.zeroed(lease)?;
            }
            lease.track = self.tracker.allocated(lease.address, bytes, kind, stream.id(), at);
        }
        measure::count_allocation(bytes);
        Ok((lease, cache))
    }
}

impl Store {
    /// Allocates memory from the pool for use on `stream`, ordered after the work already enqueued
    /// there. If memory is short, runs the reclaim steps. `cache` is this thread's cache for the
    /// stream, which could not serve the request.
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        stream: &Stream,
        cache: Option<&'static ThreadCache>,
    ) -> Result<Lease, Error> {
        let mut state = self.lock();
        match cache {
            Some(cache) => {
                state.merge_and_evict(cache);
                state.evict_large(bytes);
            }
            None => state.merge_counts(),
        }
        let on = match cache.filter(|cache| !cache.is_closed()) {
            Some(cache) => cache.stream(),
            None => state.stream(stream),
        };
        if bytes == 0 {
            state.stats.count_allocation(0, 0);
            note_in_capture(stream);
            return Ok(Lease::new(0, on, stream.id(), None));
        }
        let granted = state.allocate(bytes, on);
        self.note_soft_limit(&mut state);
        drop(state);
        let block = match granted {
            Ok(block) => block,
            Err(Shortage::Failed(error)) => return Err(error.into()),
            Err(shortage) => {
                let recovered = self.recover(bytes, on, shortage)?;
                self.note_soft_limit(&mut self.lock());
                recovered
            }
        };
        note_in_capture(stream);
        Ok(Lease::new(bytes, on, stream.id(), Some(block)))
    }

    /// Allocates auxiliary memory without the reclaim steps. Returns `None` if memory is short, or
    /// if `bytes` exceed 1/[`SPARED`] of the bytes left below a limit. The host has to wait for
    /// `stream` before its first use of the memory.
    pub(crate) fn allocate_if_there(&self, bytes: u64, stream: &Stream) -> Option<Lease> {
        let mut state = self.lock();
        state.merge_counts();
        let on = state.stream(stream);
        let left = state.limits_with(0).hard.map(|limit| limit.saturating_sub(state.granted));
        if left.is_some_and(|left| bytes > left / SPARED) {
            return None;
        }
        let block = state.allocate(bytes, on).ok()?;
        self.note_soft_limit(&mut state);
        note_in_capture(stream);
        let lease = Lease::new(bytes, on, stream.id(), Some(block));
        lease.note(&self.context, BlockEvent::Allocated);
        Some(lease)
    }

    /// Fills new memory with zeros on its stream. Frees the memory if filling fails, for example
    /// because the stream was retired since the allocation.
    pub(crate) fn zeroed(&self, lease: Lease) -> Result<Lease, Error> {
        if lease.key.is_none() {
            return Ok(lease);
        }
        let Lease { address, block_bytes, stream, .. } = lease;
        lease.note_whole(&self.context);
        let zeroed = {
            let mut state = self.lock();
            let alive = state.refuse_ended(stream);
            alive.and_then(|()| state.source.zero(address, block_bytes, Some(stream)))
        };
        lease.note(&self.context, BlockEvent::Resized);
        if let Err(error) = zeroed {
            if is_of_capture(lease.stream_id)
                && let Some(capture) = self.context.captures.find(lease.stream_id)
            {
                capture.note_freed();
            }
            let _ = self.free(lease, None, false, None);
            return Err(error.into());
        }
        Ok(lease)
    }
}

/// Counts a block that was just allocated on `stream`, if the heap first saw `stream` in a capture.
#[inline]
fn note_in_capture(stream: &Stream) {
    if let Some(capture) = stream.capture() {
        capture.note_allocated();
    }
}

impl StoreState {
    /// Requests a block from the policy and updates the statistics.
    #[inline(always)]
    pub(crate) fn allocate(&mut self, bytes: u64, stream: StreamRef) -> Result<BlockRef, Shortage> {
        self.refuse(bytes)?;
        self.refuse_ended(stream).map_err(Shortage::Failed)?;
        self.order.note_progress(&mut *self.source);
        let spares = self.has_spare(bytes);
        self.order.refuse_waits(spares);
        let mut grant = self.grant(bytes, stream);
        if spares {
            self.order.refuse_waits(false);
            if let Err(Shortage::Limit(_) | Shortage::Device(_)) = grant {
                // New memory was refused, so the stream may have to wait after all. A later request
                // tries new memory first only if the pool has given back as many bytes meanwhile.
                self.spare = self.spare.min(self.stats.taken);
                grant = self.grant(bytes, stream);
            }
        }
        let grant = grant.map_err(|shortage| match shortage {
            // The driver had no memory for an event or the like. That is a shortage too.
            Shortage::Failed(SourceError::OutOfMemory) => Shortage::Device(GRANULE),
            shortage => shortage,
        })?;
        self.granted += grant.bytes;
        self.stats.count_allocation(bytes, grant.bytes);
        // Above the soft limit, a free returns only memory that no stream still uses. Memory that
        // was in use then may be unused now.
        if self.limits.soft.is_some() && self.stats.taken > self.granted {
            let _ = self.keep_soft_limit();
        }
        Ok(grant)
    }

    /// Returns a block from cached memory, or else from memory that the policy takes from the
    /// driver.
    #[inline]
    fn grant(&mut self, bytes: u64, stream: StreamRef) -> Result<BlockRef, Shortage> {
        if self.caches.iter().any(|cache| cache.holds()) {
            let kept =
                self.with_policy(|policy, env| policy.reuse(Request { bytes, stream }, env))?;
            if let Some(grant) = kept {
                return Ok(grant);
            }
            self.flush_before_growth();
        }
        self.with_policy(|policy, env| policy.allocate(Request { bytes, stream }, env))
    }

    /// Returns `true` if new memory is better for a request than making a stream wait, because
    /// little memory is reserved and the limits allow more. Makes no driver call.
    #[inline]
    pub(crate) fn has_spare(&mut self, bytes: u64) -> bool {
        let few = self.stats.taken.saturating_add(bytes) <= self.spare;
        few && (self.limits_with(0) == Limits::default() || self.is_allowed(bytes))
    }

    /// Returns `true` if the limits allow `bytes` more.
    #[cold]
    pub(super) fn is_allowed(&mut self, bytes: u64) -> bool {
        let Limits { soft, hard } = self.limits_with(0);
        let most = soft.unwrap_or(u64::MAX).min(hard.unwrap_or(u64::MAX));
        let growth = self.source.growth(bytes);
        self.source.reserved().is_ok_and(|reserved| reserved.saturating_add(growth) <= most)
    }

    /// Refuses a request that no device or limit could hold, before any driver call.
    pub(crate) fn refuse(&self, bytes: u64) -> Result<(), Shortage> {
        let total = self.total.as_ref().map(TotalLimit::bytes);
        if self.limits.hard.into_iter().chain(total).any(|limit| bytes > limit) {
            return Err(Shortage::Limit(bytes));
        }
        if bytes > self.source.capacity() {
            return Err(Shortage::Device(bytes));
        }
        Ok(())
    }

    /// Refuses a stream that was retired after its look-up, while the lock was released. The
    /// stream's handle may be invalid, and its slot may have another stream.
    pub(super) fn refuse_ended(&self, stream: StreamRef) -> SourceResult {
        let current = self.order.current(stream);
        match current.is_some_and(|current| current.number() == stream.number()) {
            true => Ok(()),
            false => Err(SourceError::StreamUnusable),
        }
    }
}
