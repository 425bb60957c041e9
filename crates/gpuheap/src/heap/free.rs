//! Frees blocks into the thread's cache. If the cache is full, the free takes the store's lock. It
//! then makes room in the cache, or gives the block to the pool. Blocks, arrays and the C interface
//! call [`HeapInner::free`].

use std::sync::Arc;

use gpuheap_pool::{Gone, SourceResult, StreamRef, Waiter};

use crate::device::Context;
use crate::error::Error;
use crate::heap::HeapInner;
use crate::heap::store::{Store, StoreState};
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::measure;
use crate::source::raw;
use crate::stream::Stream;
use crate::thread_cache::ThreadCache;
use crate::track::TrackId;

impl HeapInner {
    /// Frees a lease in the order of `stream`, or of the lease's own stream if `stream` is `None`.
    #[inline(never)]
    pub(crate) fn free(
        self: &Arc<HeapInner>,
        kind: MemoryKind,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
    ) -> Result<(), Error> {
        self.check_alive_for(lease)?;
        // A retired stream cannot record an event. If it is the lease's own stream, the heap has
        // recorded an event after the stream's last work. Otherwise, waits for the retired stream.
        let stream = match stream {
            Some(stream) if stream.is_retired() => {
                if stream.id() != lease.stream_id {
                    stream.synchronize().inspect_err(|_| self.note_failed_free(kind))?;
                }
                None
            }
            stream => stream,
        };
        let renamed = self.rename(kind, lease, stream);
        if let Some(renamed) = &renamed {
            renamed.note_freed();
        }
        let lease = renamed.as_ref().map_or(lease, |renamed| renamed.lease);
        let stream = renamed.as_ref().and_then(|renamed| renamed.stream.as_ref()).or(stream);
        let _time = measure::memory_management();
        self.untrack(lease.track, stream.map(Stream::id));
        let zeroed = zeroed || self.zero_on_free;
        let stream_id = stream.map_or(lease.stream_id, Stream::id);
        let cache = ThreadCache::find_or_open(self, kind, stream_id, stream);
        let freed = self.store(kind).free(lease, stream, zeroed, cache);
        if self.is_closing() {
            self.end_if_over();
        }
        freed
    }

    /// Frees a lease in the order of its own stream and of `stream`. If the two streams cannot be
    /// ordered, the memory stays counted as live, and is not reused.
    #[cold]
    pub(crate) fn free_ordered(
        self: &Arc<HeapInner>,
        kind: MemoryKind,
        lease: Lease,
        stream: &Stream,
    ) -> Result<(), Error> {
        // This check comes before any lock: in a forked child, a thread of the parent may have held
        // that lock.
        self.check_alive_for(lease)?;
        let renamed = self.rename(kind, lease, Some(stream));
        let lease = renamed.as_ref().map_or(lease, |renamed| renamed.lease);
        let stream = renamed.as_ref().and_then(|renamed| renamed.stream.as_ref()).unwrap_or(stream);
        let is_ordered = stream.is_retired() || stream.id() == lease.stream_id;
        if lease.key.is_none() || is_ordered {
            return self.free(kind, lease, Some(stream), false);
        }
        let ordered = self.store(kind).order_free(&lease, stream);
        let stream = ordered.inspect_err(|_| self.note_failed_free(kind))?;
        self.free(kind, lease, stream, false)
    }

    /// Counts a failed free. The memory stays counted as live.
    pub(crate) fn note_failed_free(&self, kind: MemoryKind) {
        let mut state = self.store(kind).lock();
        state.stats.failed_frees += 1;
        state.lost += 1;
    }

    /// Returns an error if a lease's memory cannot be given back. If the reason is a reset, the
    /// reset freed the memory, and the tracker no longer counts it as outstanding.
    pub(super) fn check_alive_for(&self, lease: Lease) -> Result<(), Error> {
        let alive = self.context.check_alive();
        if alive == Err(Gone::Reset) {
            self.untrack(lease.track, None);
        }
        Ok(alive?)
    }

    #[inline]
    pub(super) fn untrack(&self, track: Option<TrackId>, stream: Option<u64>) {
        if let Some(track) = track {
            self.tracker.freed(track, stream);
        }
    }
}

impl Store {
    /// Frees a lease in the order of `stream`, or of the lease's own stream if `stream` is `None`.
    /// If `zeroed`, the memory is filled with zeros before reuse. `cache` is this thread's cache
    /// for that stream.
    pub(crate) fn free(
        &self,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
        cache: Option<&'static ThreadCache>,
    ) -> Result<(), Error> {
        let stream_id = stream.map_or(lease.stream_id, Stream::id);
        let kept = Lease { stream_id, ..lease };
        if !zeroed {
            // The free is noted before another thread can allocate the block.
            lease.note_freed(&self.context, stream.map(Stream::raw), false);
            if cache.is_some_and(|cache| cache.keep(&kept)) {
                return Ok(());
            }
        }
        let Lease { bytes, block_bytes, .. } = lease;
        let mut state = self.lock();
        match cache {
            Some(cache) => {
                state.merge_and_evict(cache);
                if !zeroed && state.make_room(cache, &kept) {
                    return Ok(());
                }
            }
            None => state.merge_counts(),
        }
        let Some(key) = lease.key else {
            state.stats.count_free(bytes, block_bytes);
            return Ok(());
        };
        let stream = match stream {
            Some(stream) => state.stream(stream),
            None => lease.stream,
        };
        if zeroed {
            lease.note_whole(&self.context);
            let current = state.order.current(stream);
            let filled = match current {
                Some(_) => state.source.zero(lease.address, block_bytes, current),
                // The stream has ended, so only a wait for the device covers its work.
                None => {
                    drop(state);
                    let waited = self.synchronize();
                    state = self.lock();
                    waited.and_then(|()| state.source.zero(lease.address, block_bytes, None))
                }
            };
            if let Err(error) = filled {
                state.stats.failed_frees += 1;
                state.unzeroed.push(Lease { stream, ..lease });
                return Err(error.into());
            }
            lease.note_freed(&self.context, Some(raw(stream)), true);
        }
        state.stats.count_free(bytes, block_bytes);
        let mut freed = state.return_to_policy(key, block_bytes, stream);
        freed = freed.and(state.keep_soft_limit());
        self.note_soft_limit(&mut state);
        if freed.is_err() {
            state.stats.failed_frees += 1;
        }
        Ok(freed?)
    }

    /// Makes `stream` wait for the lease's own stream, or the own stream wait for `stream`. Returns
    /// `stream` if the lease may then be freed there, and `None` if it has to be freed on its own
    /// stream. Waits on the host only if neither stream can wait for the other.
    fn order_free<'a>(
        &self,
        lease: &Lease,
        stream: &'a Stream,
    ) -> Result<Option<&'a Stream>, Error> {
        let (failed, theirs, own) = {
            let mut state = self.lock();
            let theirs = state.stream(stream);
            let StoreState { order, source, .. } = &mut *state;
            let Err(failed) = order.follow(theirs, lease.stream, &mut **source) else {
                return Ok(Some(stream));
            };
            let current = order.current(lease.stream);
            // A stream has one id within a capture and another outside. So if the handles of `own`
            // and `theirs` are equal, both are the same stream.
            if current.is_some_and(|own| own.raw() == theirs.raw()) {
                return Ok(Some(stream).filter(|_| !order.is_of_capture(lease.stream)));
            }
            if current.is_some_and(|own| order.follow(own, theirs, &mut **source).is_ok()) {
                return Ok(None);
            }
            let mut wait_for = |stream| {
                let mark = order.fence_after(stream, &mut **source);
                mark.map(|fence| fence.map(|fence| source.waiter(fence)))
            };
            (failed, wait_for(theirs), wait_for(lease.stream))
        };
        // Neither stream could wait for the other: one is capturing a graph, or the driver failed.
        // So the host waits, with a capture mode that allows waits during a capture.
        let is_done = |wait: SourceResult<Option<Waiter>>| {
            wait.is_ok_and(|wait| wait.is_none_or(|wait| wait().is_ok()))
        };
        if is_done(theirs) {
            return Ok(None);
        }
        if is_done(own) { Ok(Some(stream)) } else { Err(failed.into()) }
    }

    /// Waits for a lease's stream, and gives the lease's memory back to the driver without caching
    /// it. Returns the bytes that the driver regained.
    pub(crate) fn release_lease(
        &self,
        lease: Lease,
        stream: &Stream,
        zeroed: bool,
    ) -> Result<u64, Error> {
        let (before, reserved) = {
            let mut state = self.lock();
            let ordered = state.source.is_stream_ordered();
            let reserved = if ordered { state.source.reserved().unwrap_or(0) } else { 0 };
            (state.stats.given_back, reserved)
        };
        self.free(lease, Some(stream), zeroed, None)?;
        self.wait_for_pending()?;
        let mut state = self.lock();
        if lease.key.is_some() {
            state.with_policy(|policy, env| policy.release_at(lease.address, env))?;
        }
        if state.source.is_stream_ordered() {
            drop(state);
            self.synchronize()?;
            state = self.lock();
            // If the driver's pool caches nothing, it gave the memory back in the wait above.
            state.source.trim()?;
            return Ok(reserved.saturating_sub(state.source.reserved()?));
        }
        Ok(state.stats.given_back - before)
    }

    /// Fills and frees the blocks that could not be filled with zeros when they were freed.
    pub(super) fn zero_again(&self) {
        let (unzeroed, needs_idle) = {
            let mut state = self.lock();
            let unzeroed = std::mem::take(&mut state.unzeroed);
            let needs_idle = state.needs_idle(&unzeroed);
            (unzeroed, needs_idle)
        };
        let is_idle = needs_idle && self.synchronize().is_ok();
        self.lock().zero_again(&self.context, unzeroed, is_idle);
    }
}

impl StoreState {
    /// Returns `true` if the stream of one of the blocks has ended. Such a block can be filled with
    /// zeros only after a wait for the device.
    pub(super) fn needs_idle(&self, unzeroed: &[Lease]) -> bool {
        unzeroed.iter().any(|lease| self.order.current_later(lease.stream).is_none())
    }

    /// Fills blocks with zeros, and frees them. `is_idle` is `true` if the device has completed all
    /// work enqueued before the call. Otherwise, skips blocks of ended streams: they may be in use.
    pub(super) fn zero_again(&mut self, context: &Context, unzeroed: Vec<Lease>, is_idle: bool) {
        self.merge_counts();
        for lease in unzeroed {
            let stream = self.order.current_later(lease.stream);
            let can_fill = stream.is_some() || is_idle;
            if !can_fill || self.source.zero(lease.address, lease.block_bytes, stream).is_err() {
                self.unzeroed.push(lease);
                continue;
            }
            lease.note_freed(context, None, true);
            self.stats.count_free(lease.bytes, lease.block_bytes);
            let Some(key) = lease.key else { continue };
            // A transient stream may have ended, so that its handle is invalid. Its block is freed
            // on the stream for detached frees instead.
            let mut stream = lease.stream;
            if self.order.is_transient(stream) && !self.order.is_of_capture(stream) {
                stream = self.order.detached_stream();
            }
            if self.return_to_policy(key, lease.block_bytes, stream).is_err() {
                self.stats.failed_frees += 1;
            }
        }
    }

    /// Returns a block to the policy. The block's last use is on `stream`.
    pub(super) fn return_to_policy(
        &mut self,
        key: u32,
        bytes: u64,
        stream: StreamRef,
    ) -> SourceResult {
        self.granted -= bytes;
        self.with_policy(|policy, env| policy.free(key, stream, env))
    }
}
