//! Allocation: from the thread's cache, then from the pool behind the store's lock, then after the
//! reclaim steps.

use std::panic::Location;
use std::sync::Arc;

use gpuheap_pool::{BlockRef, GRANULE, Limits, Shortage, SourceError, StreamRef};

use crate::error::Error;
use crate::heap::Inner;
use crate::heap::lease::Lease;
use crate::heap::store::{State, Store};
use crate::kind::MemoryKind;
use crate::measure;
use crate::stream::Stream;
use crate::thread_cache::ThreadCache;

/// Fraction (1/N) of the bytes within the limit that auxiliary allocations may take, so that
/// requests of the program get the rest.
const SPARED: u64 = 4;

impl Inner {
    /// Allocates from this thread's cache, and does nothing else. Zero-filling, tracking and pools
    /// without thread caches are handled by [`lease`](Inner::lease).
    #[inline]
    pub(crate) fn lease_kept(
        &self,
        bytes: u64,
        stream: &Stream,
    ) -> Option<(Lease, &'static ThreadCache)> {
        let _time = measure::memory_management();
        let cache = ThreadCache::find(&self.device, stream.id())?;
        if !cache.is_plain() {
            return None;
        }
        let lease = cache.take(bytes)?;
        measure::note(bytes);
        Some((lease, cache))
    }

    /// Returns this thread's cache for device memory on a stream, if requests may be served from it
    /// alone.
    #[inline]
    pub(crate) fn cache_for(&self, stream: &Stream) -> Option<&'static ThreadCache> {
        let cache = ThreadCache::find(&self.device, stream.id())?;
        (cache.is_plain() && !cache.is_closed()).then_some(cache)
    }

    /// Allocates memory of a kind, counted, for the line `at` of the program. Also returns the
    /// cache of this thread that served it, if there is one.
    #[inline(never)]
    pub(crate) fn lease(
        self: &Arc<Inner>,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        at: &'static Location<'static>,
    ) -> Result<(Lease, Option<&'static ThreadCache>), Error> {
        // Before any lock is taken: in a forked child, a thread of the parent may have held it.
        self.context.check_alive()?;
        kind.check(self.context.info())?;
        let _time = measure::memory_management();
        let store = self.store(kind);
        store.check_stream(stream)?;
        stream.refuse_retired()?;
        let cache = match stream.is_unannounced() {
            true => None,
            false => ThreadCache::of(self, kind, stream.id(), |state| Some(state.stream(stream))),
        };
        let zeroed = zeroed || self.zero_on_alloc;
        let leased = store.allocate(bytes, stream, zeroed, cache);
        let mut lease = leased.map_err(|error| self.with_consumers(error))?;
        lease.track = self.tracker.allocated(lease.address, bytes, kind, at);
        measure::note(bytes);
        Ok((lease, cache))
    }

    /// Allocates device memory, neither filled nor tracked, if `cache` (this thread's) has no block
    /// for it.
    #[inline(always)]
    pub(crate) fn lease_unkept(
        &self,
        bytes: u64,
        stream: &Stream,
        cache: &'static ThreadCache,
    ) -> Result<Lease, Error> {
        self.context.check_alive()?;
        let _time = measure::memory_management();
        let leased = self.device.allocate_locked(bytes, stream, Some(cache));
        let lease = leased.map_err(|error| self.with_consumers(error))?;
        measure::note(bytes);
        Ok(lease)
    }
}

impl Store {
    /// Allocates memory for use on `stream`, ordered after the work already enqueued there; filled
    /// with zeros if `zeroed`.
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        cache: Option<&'static ThreadCache>,
    ) -> Result<Lease, Error> {
        let lease = match cache.and_then(|cache| cache.take(bytes)) {
            Some(lease) => lease,
            None => self.allocate_locked(bytes, stream, cache)?,
        };
        lease.note(&self.context, |checks, block| checks.allocated(block));
        if zeroed { self.zeroed(lease) } else { Ok(lease) }
    }

    /// Allocates behind the store's lock, if this thread's cache has no block.
    #[inline(always)]
    pub(crate) fn allocate_locked(
        &self,
        bytes: u64,
        stream: &Stream,
        cache: Option<&'static ThreadCache>,
    ) -> Result<Lease, Error> {
        let stream_id = stream.id();
        let mut state = self.lock();
        let stream = match cache.filter(|cache| !cache.is_closed()) {
            Some(cache) => cache.stream(),
            None => state.stream(stream),
        };
        match cache {
            Some(cache) => {
                state.settle(cache);
                state.give_large(bytes);
            }
            None => state.merge_counts(),
        }
        let none =
            Lease { stream, stream_id, key: None, address: 0, bytes, block_bytes: 0, track: None };
        if bytes == 0 {
            state.stats.allocated(0, 0);
            return Ok(none);
        }
        let granted = state.allocate(bytes, stream);
        self.note_soft_limit(&mut state);
        drop(state);
        let grant = match granted {
            Ok(grant) => grant,
            Err(Shortage::Failed(error)) => return Err(error.into()),
            Err(shortage) => {
                let recovered = self.recover(bytes, stream, shortage)?;
                self.note_soft_limit(&mut self.lock());
                recovered
            }
        };
        let BlockRef { key, address, bytes: block_bytes } = grant;
        Ok(Lease { key: Some(key), address, block_bytes, ..none })
    }

    /// Allocates without the reclaim steps. Returns `None` if memory is short, or if more than a
    /// fraction of the limit would be held in this way. The host has to order the first use.
    pub(crate) fn allocate_if_there(&self, bytes: u64, stream: &Stream) -> Option<Lease> {
        let stream_id = stream.id();
        let mut state = self.lock();
        state.merge_counts();
        let stream = state.stream(stream);
        let left = state.limits.hard.map(|limit| limit.saturating_sub(state.granted));
        if left.is_some_and(|left| bytes > left / SPARED) {
            return None;
        }
        let BlockRef { key, address, bytes: block_bytes } = state.allocate(bytes, stream).ok()?;
        self.note_soft_limit(&mut state);
        let key = Some(key);
        let lease = Lease { stream, stream_id, key, address, bytes, block_bytes, track: None };
        lease.note(&self.context, |checks, block| checks.allocated(block));
        Some(lease)
    }

    /// Fills new memory with zeros on its stream. Frees the memory if that fails, because the
    /// stream may have been retired since the allocation.
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
        lease.note(&self.context, |checks, block| checks.resized(block));
        if let Err(error) = zeroed {
            let _ = self.free(lease, None, false, None);
            return Err(error.into());
        }
        Ok(lease)
    }
}

impl State {
    /// Requests a block from the policy and updates the statistics.
    #[inline(always)]
    pub(crate) fn allocate(&mut self, bytes: u64, stream: StreamRef) -> Result<BlockRef, Shortage> {
        self.refuse(bytes)?;
        self.refuse_ended(stream).map_err(Shortage::Failed)?;
        self.order.learn(&mut *self.source);
        let spares = self.has_spare(bytes);
        self.order.refuse_waits(spares);
        let mut grant = self.grant(bytes, stream);
        if spares {
            self.order.refuse_waits(false);
            if let Err(Shortage::Limit(_) | Shortage::Device(_)) = grant {
                // New memory is not preferred again before as much was given back.
                self.spare = self.spare.min(self.stats.taken);
                grant = self.grant_with_waits(bytes, stream);
            }
        }
        let grant = grant.map_err(|shortage| match shortage {
            // For example, an event could not be created: memory is short all the same.
            Shortage::Failed(SourceError::OutOfMemory) => Shortage::Device(GRANULE),
            shortage => shortage,
        })?;
        self.granted += grant.bytes;
        self.stats.allocated(bytes, grant.bytes);
        // Memory above a soft limit that was in use when it was freed may be unused by now.
        if self.limits.soft.is_some() && self.stats.taken > self.granted {
            let _ = self.keep_soft_limit();
        }
        Ok(grant)
    }

    /// Returns a block of cached memory, or else of memory that the policy takes.
    #[inline(always)]
    pub(super) fn grant(&mut self, bytes: u64, stream: StreamRef) -> Result<BlockRef, Shortage> {
        if self.caches.iter().any(|cache| cache.holds()) {
            let kept = self.with_policy(|policy, env| policy.reuse(bytes, stream, env))?;
            if let Some(grant) = kept {
                return Ok(grant);
            }
            self.flush_before_growth();
        }
        self.with_policy(|policy, env| policy.allocate(bytes, stream, env))
    }

    /// Returns a block for which `stream` may be made to wait, if there is no new memory.
    #[cold]
    pub(super) fn grant_with_waits(
        &mut self,
        bytes: u64,
        stream: StreamRef,
    ) -> Result<BlockRef, Shortage> {
        self.grant(bytes, stream)
    }

    /// Returns `true` if new memory for a request is better than a wait: within the limits, and
    /// while little is reserved. Makes no driver call.
    #[inline]
    pub(crate) fn has_spare(&mut self, bytes: u64) -> bool {
        let few = self.stats.taken.saturating_add(bytes) <= self.spare;
        few && (self.limits == Limits::default() || self.is_allowed(bytes))
    }

    /// Returns `true` if the limits allow `bytes` more.
    #[cold]
    pub(super) fn is_allowed(&mut self, bytes: u64) -> bool {
        let Limits { soft, hard } = self.limits;
        let most = soft.unwrap_or(u64::MAX).min(hard.unwrap_or(u64::MAX));
        let growth = self.source.growth(bytes);
        self.source.reserved().is_ok_and(|reserved| reserved.saturating_add(growth) <= most)
    }

    /// Refuses a request that no device or limit could hold, before any driver call.
    pub(crate) fn refuse(&self, bytes: u64) -> Result<(), Shortage> {
        if self.limits.hard.is_some_and(|limit| bytes > limit) {
            return Err(Shortage::Limit(bytes));
        }
        if bytes > self.source.capacity() {
            return Err(Shortage::Device(bytes));
        }
        Ok(())
    }

    /// Refuses a stream that was retired after its look-up, while the lock was released. Its handle
    /// may be invalid by now, and its place may be another stream's.
    pub(super) fn refuse_ended(&self, stream: StreamRef) -> Result<(), SourceError> {
        let current = self.order.current(stream);
        match current.is_some_and(|current| current.number() == stream.number()) {
            true => Ok(()),
            false => Err(SourceError::StreamUnusable),
        }
    }
}
