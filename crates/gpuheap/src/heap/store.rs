//! Stores. A store has a heap's memory of one kind. It consists of the pool's policy, the source of
//! its memory, stream order, statistics and limits, under one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_pool::{
    AllocStats, CacheRules, Environment, Held, Limits, MemorySource, Order, Policy, PoolKind,
    RunningStats, Segment, SourceError, SourceResult, StreamRef, Tuning, new_policy,
};

use crate::device::Context;
use crate::error::{Error, ErrorKind};
use crate::heap::reclaimers::Reclaimers;
use crate::heap::usage::{OtherHeaps, Usage};
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::source::PlainSource;
use crate::stream::Stream;
use crate::sync::{Lock, Locked};
use crate::thread_cache::{CachedBlock, ThreadCache};
use crate::total_limit::TotalLimit;

/// Bound on the reserved bytes; 1/256 of the device, if that is more (0.55 GiB on an H200). Below
/// the bound, a pool takes new memory instead of making a stream wait for another stream. Two
/// streams that hand memory to each other then hold twice as much, so the bound is low.
const SPARE: u64 = 128 << 20;
const SPARE_SHARE: u64 = 256;

pub(crate) struct Store {
    pub(crate) context: Arc<Context>,
    pub(crate) kind: MemoryKind,
    pub(crate) pool: PoolKind,
    pub(crate) reclaimers: Arc<Reclaimers>,
    /// Identifier of the store in this process.
    pub(crate) number: u64,
    /// Limit, in bytes, of a thread's cache for a stream; `None` if threads have no caches.
    pub(super) cache_limit: Option<u64>,
    /// Limit that the store shares with other heaps.
    pub(super) total: Option<TotalLimit>,
    pub(super) state: Apart<Lock<StoreState>>,
}

/// Aligns a value to cache lines that nothing else shares. A store's lock needs this: the lock's
/// line moves between threads, and must not carry the fields that threads read at every call.
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// State of a store, under its lock.
pub(crate) struct StoreState {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) source: Box<dyn MemorySource>,
    pub(crate) order: Order,
    /// Statistics, into which threads' own counts are merged.
    pub(crate) stats: RunningStats,
    /// Bytes of the blocks that the policy handed out, including those in threads' caches.
    pub(crate) granted: u64,
    pub(crate) limits: Limits,
    pub(super) total: Option<TotalLimit>,
    pub(crate) stranded: Vec<Segment>,
    /// Number of blocks that could not be freed. Such blocks count as live forever.
    pub(crate) lost: u64,
    /// `true` while other threads are paused.
    pub(super) is_alone: bool,
    /// `true` if more is reserved than the soft limit allows.
    pub(crate) is_above_soft_limit: bool,
    /// Bound on reserved bytes: below it, the pool takes new memory and makes no stream wait.
    pub(super) spare: u64,
    /// Reserved bytes at the last flush of all threads' caches before the pool grew.
    pub(super) taken_at_flush: u64,
    /// `true` if several threads have caches.
    pub(crate) is_shared: bool,
    pub(crate) caches: Vec<&'static ThreadCache>,
    /// Freed blocks that could not be filled with zeros so far. They are not reused before the fill
    /// succeeds, and count as live.
    pub(crate) unzeroed: Vec<Lease>,
    /// Buffer for blocks that move from a thread cache to the pool.
    pub(super) moved: Vec<CachedBlock>,
    /// Peaks recorded for meters.
    pub(crate) watched: Vec<Watched>,
}

/// Peak of live bytes since a `Meter` was made. `number` identifies the meter.
pub(crate) struct Watched {
    pub(crate) number: u64,
    pub(crate) peak: u64,
}

impl Store {
    pub(crate) fn new(
        context: Arc<Context>,
        kind: MemoryKind,
        pool: PoolKind,
        limits: Limits,
        cache_limit: Option<u64>,
        reclaimers: Arc<Reclaimers>,
        (policy, source): Parts,
    ) -> Store {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let spare = spare_limit(kind, &*source);
        let state = StoreState {
            policy,
            source,
            order: Order::default(),
            stats: RunningStats::default(),
            granted: 0,
            limits,
            total: None,
            stranded: Vec::new(),
            lost: 0,
            is_alone: false,
            is_above_soft_limit: false,
            spare,
            taken_at_flush: 0,
            is_shared: false,
            caches: Vec::new(),
            unzeroed: Vec::new(),
            moved: Vec::new(),
            watched: Vec::new(),
        };
        Store {
            context,
            kind,
            pool,
            reclaimers,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            cache_limit: cache_limit.filter(|_| CacheRules::for_pool(pool).is_some()),
            total: None,
            state: Apart(Lock::new(state)),
        }
    }

    /// Puts the store under the limit `total`. The source already counts its bytes in `total`.
    pub(crate) fn under(mut self, total: Option<TotalLimit>) -> Store {
        self.state.0.get_mut().total = total.clone();
        self.total = total;
        self
    }

    pub(crate) fn usage(&self) -> Result<Usage, Error> {
        let mut state = self.lock();
        let state = &mut *state;
        state.flush_caches();
        state.order.note_progress(&mut *state.source);
        state.keep_soft_limit()?;
        self.note_soft_limit(state);
        let stranded: u64 = state.stranded.iter().map(|segment| segment.bytes).sum();
        let cached = state.policy.cached(None, &state.order);
        // The calls are counted before this function makes its own driver calls.
        let driver_calls = state.source.calls();
        let reserved = state.source.reserved()?;
        // Memory that the driver's own pool keeps is cached too, but `policy` does not count it.
        let kept_by_driver = if state.source.is_stream_ordered() {
            reserved.saturating_sub(state.stats.taken)
        } else {
            0
        };
        Ok(Usage {
            live: state.stats.live,
            live_blocks: state.stats.live_blocks,
            live_peak: state.stats.live_peak,
            pending: cached.pending,
            cached: cached.bytes + stranded + kept_by_driver,
            largest_cached_block: cached.largest.max(kept_by_driver),
            largest_stitchable: cached.largest_request().max(kept_by_driver),
            reserved,
            reserved_peak: state.source.reserved_peak()?,
            driver_calls,
            stats: *state.stats,
        })
    }

    /// Returns the memory that live blocks hold. For a pool of the driver, returns zero, because
    /// the driver does not report its pieces.
    pub(crate) fn held(&self) -> Held {
        let mut state = self.lock();
        if state.source.is_stream_ordered() {
            return Held::default();
        }
        state.flush_caches();
        state.policy.held()
    }

    /// Waits for frees in flight, and returns cached memory to the driver until `bytes` were
    /// returned.
    pub(crate) fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        let reserved_by_driver = {
            let source = &mut self.lock().source;
            if source.is_stream_ordered() { Some(source.reserved()?) } else { None }
        };
        self.wait_for_pending()?;
        let released = {
            let mut state = self.lock();
            let released = state.release(bytes);
            self.note_soft_limit(&mut state);
            released?
        };
        let Some(before) = reserved_by_driver else { return Ok(released) };
        // Only the driver knows which stream-ordered frees have completed. The wait by itself makes
        // the driver's pool return memory above the pool's threshold.
        self.synchronize()?;
        let mut state = self.lock();
        state.source.trim()?;
        Ok(before.saturating_sub(state.source.reserved()?))
    }

    /// Retires a stream before its end, and removes its slot from the look-up.
    pub(crate) fn retire(&self, stream: &Stream) -> Result<(), Error> {
        let mut state = self.lock();
        // The retired stream's cache is closed before the handle can be wrapped again, so that
        // frees on the new stream do not enter that cache.
        state.close(|cache| cache.stream_id() == stream.id());
        stream.retire()?;
        let StoreState { order, source, .. } = &mut *state;
        order.retire(stream.id(), &mut **source)?;
        state.close_ended();
        Ok(())
    }

    /// Waits for the device and retires all foreign streams.
    pub(crate) fn retire_foreign(&self) -> Result<(), Error> {
        let mut state = self.lock();
        // Flushes and waits under one lock, so that the wait covers all memory freed so far.
        state.flush_caches();
        let foreign: Vec<u64> = state.order.foreign_ids().collect();
        // Closed for the reason given in `retire`.
        state.close(|cache| foreign.contains(&cache.stream_id()));
        // Refuses new work before the wait, so that the wait covers all work that these streams
        // ever get.
        state.order.foreign_guards().for_each(|guard| guard.refuse_work());
        let waited = self.context.synchronize();
        let StoreState { order, source, .. } = &mut *state;
        if waited.is_ok() {
            order.foreign_guards().for_each(|guard| guard.complete());
            order.complete_all(&mut **source);
        }
        // Retires the streams even after a failed wait: their handles may be invalid from now on.
        order.retire_foreign(waited.is_ok());
        state.close_ended();
        Ok(waited?)
    }

    pub(crate) fn set_limits(&self, limits: Limits) -> Result<u64, Error> {
        let above = {
            let mut state = self.lock();
            if !state.source.limit(limits)? {
                return Err(ErrorKind::BadSetting.error(format!(
                    "the hard limit of a heap with the {} pool can be lowered and not raised above \
                     the one that it was built with; build another heap",
                    self.pool
                )));
            }
            state.limits = limits;
            state.spare = spare_limit(self.kind, &*state.source);
            let most = limits.soft.unwrap_or(u64::MAX).min(limits.hard.unwrap_or(u64::MAX));
            self.note_soft_limit(&mut state);
            state.source.reserved()?.saturating_sub(most)
        };
        if above == 0 { Ok(0) } else { self.reclaim(above) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, StoreState> {
        self.state.0.lock()
    }

    /// Refuses a stream of another device, because it cannot be ordered with this heap's memory. If
    /// the pool is the driver's, also refuses a thread's own default stream.
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<(), Error> {
        if self.accepts(stream) {
            return Ok(());
        }
        if stream.context().is_same(&self.context) {
            return Err(refuse_thread_stream());
        }
        // The contexts differ after a reset too. In that case, returns the error of the reset.
        self.context.check_alive()?;
        stream.context().check_alive()?;
        Err(ErrorKind::WrongDevice.error(format!(
            "the stream is of {} and the heap of {}; use a stream of the heap's own device",
            stream.context().beside(&self.context),
            self.context.beside(stream.context())
        )))
    }

    /// Returns `true` if [`check_stream`](Self::check_stream) accepts `stream`.
    #[inline]
    pub(crate) fn accepts(&self, stream: &Stream) -> bool {
        let is_refused = self.pool == PoolKind::Driver && stream.is_thread_default();
        stream.context().is_same(&self.context) && !is_refused
    }

    /// Waits, without the lock, until every free so far has completed.
    pub(crate) fn wait_for_pending(&self) -> SourceResult {
        self.zero_again();
        let waiters: Vec<_> = {
            let mut state = self.lock();
            state.flush_caches();
            let StoreState { order, source, .. } = &mut *state;
            let fences = order.pending_fences(&mut **source)?;
            fences.into_iter().map(|fence| source.waiter(fence)).collect()
        };
        waiters.into_iter().try_for_each(|wait| wait())?;
        self.lock().poll()?;
        let needs_device = self.lock().order.needs_device();
        if needs_device {
            match self.synchronize() {
                Err(SourceError::Capturing) => {}
                waited => waited.and_then(|()| self.lock().poll())?,
            }
        }
        Ok(())
    }

    /// Waits for all work of the device, unless a stream of any heap captures a graph. The caller
    /// holds no store's lock, because the query for captures locks each store of the device.
    pub(crate) fn synchronize(&self) -> SourceResult {
        if self.context.holders.is_any_capturing() {
            return Err(SourceError::Capturing);
        }
        Ok(self.context.synchronize()?)
    }
}

impl Store {
    /// Stops threads from caching freed memory while more is reserved than the soft limit allows.
    pub(crate) fn note_soft_limit(&self, state: &mut StoreState) {
        let is_above = match state.limits.soft {
            None => false,
            Some(soft) => state.source.reserved().is_ok_and(|reserved| reserved > soft),
        };
        if is_above != state.is_above_soft_limit {
            state.is_above_soft_limit = is_above;
            let limit = if is_above { 0 } else { self.cache_limit.unwrap_or(0) };
            state.caches.iter().for_each(|cache| cache.limit.set(limit));
            if is_above {
                state.flush_caches();
            }
        }
    }
}

#[cold]
fn refuse_thread_stream() -> Error {
    // On an H200 (driver 580), freeing memory of a driver's pool hung if a thread had allocated the
    // memory on its own default stream and then ended.
    ErrorKind::StreamUnusable.error(
        "a heap over a pool of the driver cannot use a thread's own default stream \
         (CU_STREAM_PER_THREAD), because the driver may hang when the memory is freed after the \
         thread's end; use a stream of your own, or another pool, such as stitched"
            .to_owned(),
    )
}

impl StoreState {
    pub(crate) fn stream(&mut self, stream: &Stream) -> StreamRef {
        let guard = || Some(stream.guard());
        let found =
            self.order.stream(stream.id(), stream.stored_handle(), guard, &mut *self.source);
        // Closes the caches of streams whose end was noticed during the look-up.
        self.close_ended();
        found
    }

    /// Returns the statistics, with threads' own counts merged.
    pub(crate) fn stats(&mut self) -> AllocStats {
        self.flush_caches();
        *self.stats
    }

    /// Returns the statistics with threads' own counts added. Leaves threads' caches as they are,
    /// so their next requests cost no more. The counts are exact while no thread allocates or
    /// frees; at other times a sum below zero counts as zero.
    pub(crate) fn observed_stats(&self) -> AllocStats {
        let mut stats = self.stats;
        self.caches.iter().for_each(|cache| cache.add_own_counts(&mut stats));
        let mut stats = *stats;
        for sum in [&mut stats.live, &mut stats.live_blocks, &mut stats.live_allocations] {
            *sum = u64::try_from(*sum as i64).unwrap_or(0);
        }
        stats
    }

    #[inline(always)]
    pub(crate) fn with_policy<R>(
        &mut self,
        work: impl FnOnce(&mut dyn Policy, &mut Environment<'_>) -> R,
    ) -> R {
        let limits = self.limits_with(0);
        let mut environment = Environment {
            source: &mut *self.source,
            order: &mut self.order,
            stats: &mut self.stats,
            limits,
            stranded: &mut self.stranded,
        };
        work(&mut *self.policy, &mut environment)
    }

    /// Waits for all work of the device, unless a stream of this store is capturing a graph.
    /// Callers check other heaps for captures before they take this store's lock.
    pub(crate) fn synchronize(&mut self, context: &Context) -> SourceResult {
        if self.order.is_any_capturing(&mut *self.source)? {
            return Err(SourceError::Capturing);
        }
        Ok(context.synchronize()?)
    }

    /// Records the fences that earlier frees still lack.
    pub(crate) fn fence(&mut self) -> SourceResult {
        self.flush_caches();
        self.order.pending_fences(&mut *self.source).map(drop)
    }

    /// Queries the driver for frees that have completed.
    pub(crate) fn poll(&mut self) -> SourceResult {
        self.flush_caches();
        let polled = self.order.poll(&mut *self.source);
        self.close_ended();
        polled
    }

    pub(crate) fn release(&mut self, target: u64) -> SourceResult<u64> {
        self.poll()?;
        for segment in std::mem::take(&mut self.stranded) {
            if self.with_policy(|_, env| env.give_back(segment)).is_err() {
                self.stranded.push(segment);
            }
        }
        self.with_policy(|policy, env| policy.release(target, env))
    }

    /// Returns unused memory above the soft limit to the driver, and may wait for the device. A
    /// driver's pool returns such memory by itself. Because this function is called at every free,
    /// it searches all cached memory only once, when the limit is first exceeded. From then on, it
    /// searches only memory that became free.
    pub(super) fn keep_soft_limit(&mut self) -> SourceResult {
        let Some(soft) = self.limits.soft else { return Ok(()) };
        if self.source.is_stream_ordered() {
            return Ok(());
        }
        let above = self.source.reserved()?.saturating_sub(soft);
        if above == 0 {
            return Ok(());
        }
        if !self.is_above_soft_limit || !self.stranded.is_empty() {
            return self.release(above).map(drop);
        }
        if !self.policy.has_freed() {
            return Ok(());
        }
        self.order.poll(&mut *self.source)?;
        self.close_ended();
        self.with_policy(|policy, env| policy.release_freed(above, env)).map(drop)
    }

    /// Returns the limits that hold now. The bytes left of a total limit count as a hard limit,
    /// together with `spare` bytes that other heaps under the total limit can give back.
    #[inline(always)]
    pub(crate) fn limits_with(&mut self, spare: u64) -> Limits {
        match self.total {
            None => self.limits,
            Some(_) => {
                let total = self.total_with(spare);
                Limits { hard: total.into_iter().chain(self.limits.hard).min(), ..self.limits }
            }
        }
    }

    /// Returns the maximum number of bytes that the store may reserve under its total limit, if
    /// other heaps under the limit give back `spare` bytes.
    pub(crate) fn total_with(&mut self, spare: u64) -> Option<u64> {
        let total = self.total.as_ref()?;
        let elsewhere = total.reserved().saturating_sub(self.source.reserved().ok()?);
        Some(total.bytes().saturating_sub(elsewhere.saturating_sub(spare)))
    }

    /// Returns how many bytes the total limit still allows. `None` if the heap has no total limit,
    /// or if `bytes` more would exceed the store's own hard limit.
    pub(crate) fn left_of_total(&mut self, bytes: u64) -> Option<u64> {
        let total = self.total.as_ref()?;
        let left = total.bytes().saturating_sub(total.reserved());
        let grown = self.source.reserved().ok()?.saturating_add(bytes);
        let is_within = self.limits.hard.is_none_or(|hard| grown <= hard);
        is_within.then_some(left)
    }

    /// Returns the bytes that the limit and the device still allow the store to take from the
    /// driver.
    pub(crate) fn available(&mut self) -> SourceResult<u64> {
        self.available_with(0, 0)
    }

    /// Returns the bytes that the store may take from the driver after other heaps gave back
    /// `spare` bytes of the device, and heaps under the store's total limit gave back `under_total`
    /// bytes.
    fn available_with(&mut self, spare: u64, under_total: u64) -> SourceResult<u64> {
        let (free, _) = self.source.device_memory()?;
        let allowed = match self.limits_with(under_total).hard {
            Some(limit) => limit.saturating_sub(self.source.reserved()?),
            None => u64::MAX,
        };
        Ok(free.saturating_add(spare).min(allowed))
    }

    /// Returns the bytes that may be allocated after this store and `others` gave back their cached
    /// memory.
    pub(crate) fn room(&mut self, others: OtherHeaps) -> SourceResult<u64> {
        self.flush_caches();
        let cached = self.source.reserved()?.saturating_sub(self.granted);
        let spare = others.spare.saturating_sub(others.may_stay);
        let available = self.available_with(spare, others.under_total)?;
        Ok(available.saturating_add(cached).min(self.source.capacity()))
    }

    pub(crate) fn wait_for_pending(&mut self) -> SourceResult {
        self.flush_caches();
        for fence in self.order.pending_fences(&mut *self.source)? {
            self.source.wait(fence)?;
        }
        self.poll()
    }
}

pub(crate) type Parts = (Box<dyn Policy>, Box<dyn MemorySource>);

/// Returns the pool that a heap with `pool` has for a kind of memory. Only device memory has
/// virtual memory and stream-ordered pools of the driver, so `stitched` and `driver` heaps use
/// `split` for their other kinds of memory.
pub(crate) fn pool_for(kind: MemoryKind, pool: PoolKind) -> PoolKind {
    match pool {
        PoolKind::Stitched | PoolKind::Driver if kind != MemoryKind::Device => PoolKind::Split,
        pool => pool,
    }
}

/// Makes a policy for a kind of memory, and a source of plain allocations. Also returns the pool:
/// the pool from [`pool_for`], or `split` instead of `stitched` if the device has no virtual
/// memory.
pub(crate) fn policy_and_source(
    context: &Arc<Context>,
    kind: MemoryKind,
    pool: PoolKind,
    tuning: Tuning,
    total: Option<&TotalLimit>,
) -> (PoolKind, Parts) {
    let mut source = PlainSource::new(context.clone(), kind).under(total);
    let pool = match pool_for(kind, pool) {
        PoolKind::Stitched if source.pages().is_none() => PoolKind::Split,
        pool => pool,
    };
    (pool, (new_policy(pool, tuning), Box::new(source)))
}

/// Returns the bound on the reserved bytes that [`SPARE`] describes. Below the bound, a store takes
/// new memory instead of making a stream wait for another stream.
fn spare_limit(kind: MemoryKind, source: &dyn MemorySource) -> u64 {
    match kind {
        // A driver's pool needs no bound: it orders streams, and reports its bytes only by a call.
        MemoryKind::Device if !source.is_stream_ordered() => {
            (source.capacity() / SPARE_SHARE).max(SPARE)
        }
        // For unified and pinned memory, streams always wait, because new memory is slow to take.
        _ => 0,
    }
}

/// Number of times that an ending heap tries to give back all memory. A call may fail momentarily.
const LAST_TRIES: u32 = 3;

impl Drop for Store {
    fn drop(&mut self) {
        let state = self.state.0.get_mut();
        // A wait for the device would break the captures of other heaps' streams too.
        let wait = |state: &mut StoreState| match self.context.holders.is_any_capturing() {
            true => Err(SourceError::Capturing),
            false => state.synchronize(&self.context),
        };
        // There is no caller to return an error to. Memory that cannot be given back ends with the
        // context.
        let mut waited = Ok(());
        for _ in 0..LAST_TRIES {
            let unzeroed = std::mem::take(&mut state.unzeroed);
            let is_idle = state.needs_idle(&unzeroed) && wait(state).is_ok();
            state.zero_again(&self.context, unzeroed, is_idle);
            let _ = state.wait_for_pending().and_then(|()| state.release(u64::MAX));
            if state.stats.taken == 0 {
                return;
            }
            waited = wait(state);
            if waited.is_ok() {
                state.order.complete_all(&mut *state.source);
            }
        }
        // If work may still use the memory, or a graph that uses it may be captured or launched,
        // the memory is left as it is.
        let is_in_use = waited.is_err_and(|error| !is_end_of_work(&error));
        if is_in_use || state.order.keeps_for_graph() {
            state.source.leave();
        }
    }
}

/// Returns `true` if a wait failed because the work failed. The context is then lost, and no work
/// runs in it.
fn is_end_of_work(error: &SourceError) -> bool {
    match error {
        SourceError::Gone(_) => true,
        SourceError::Driver(error) => FAILED_WORK.contains(&error.code),
        _ => false,
    }
}

/// The driver's codes of failed work, such as `CUDA_ERROR_ILLEGAL_ADDRESS` and
/// `CUDA_ERROR_LAUNCH_FAILED`.
const FAILED_WORK: std::ops::Range<i32> = 700..800;
