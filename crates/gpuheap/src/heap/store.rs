//! The memory of one kind: a policy over a source, with its order, statistics and limits, under one
//! lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_pool::{
    AllocStats, Environment, KeptByThreads, Limits, MemorySource, Order, Policy, PoolKind,
    RunningStats, Segment, SourceError, StreamRef,
};

use crate::device::Context;
use crate::error::{Error, ErrorKind};
use crate::heap::lease::Lease;
use crate::heap::other_heaps::OtherHeaps;
use crate::heap::policies::Parts;
use crate::heap::reclaimers::Reclaimers;
use crate::heap::usage::Usage;
use crate::kind::MemoryKind;
use crate::source::handle;
use crate::stream::Stream;
use crate::sync::{Biased, Locked};
use crate::thread_cache::{Kept, ThreadCache};

/// Up to so many bytes taken, or this part of the device, a pool takes new memory rather than have a
/// stream wait for another one's work. Beyond it memory is worth more than the wait: two streams that
/// hand memory to each other would hold twice as much. A 256th is 0.55 GiB of an H200.
const SPARE: u64 = 128 << 20;
const SPARE_SHARE: u64 = 256;

/// One kind's memory.
pub(crate) struct Store {
    pub(crate) context: Arc<Context>,
    pub(crate) kind: MemoryKind,
    pub(crate) pool: PoolKind,
    pub(crate) reclaimers: Arc<Reclaimers>,
    /// Which one of the process this is.
    pub(crate) number: u64,
    /// Bytes that a thread may keep for a stream of what it freed; none where threads keep nothing.
    pub(super) keeps: Option<u64>,
    pub(super) state: Apart<Biased<State>>,
}

/// On cache lines of its own: what threads read at every call is not to move with the lock.
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// Everything that one call at a time may touch.
pub(crate) struct State {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) source: Box<dyn MemorySource>,
    pub(crate) order: Order,
    /// What threads count for themselves is carried over into it.
    pub(crate) stats: RunningStats,
    /// Bytes of the blocks that the policy handed out, those included that threads keep.
    pub(crate) granted: u64,
    pub(crate) limits: Limits,
    pub(crate) stranded: Vec<Segment>,
    /// Blocks that could not be given back, which stay live for good.
    pub(crate) lost: u64,
    /// Other threads are held off.
    pub(super) is_alone: bool,
    /// More is taken than the soft limit allows.
    pub(crate) is_above_soft_limit: bool,
    /// Bytes up to which new memory is taken rather than a stream made to wait.
    pub(super) spare: u64,
    /// What was taken when all threads were last asked for what they keep, for more to be taken.
    pub(super) gathered: u64,
    /// Several threads have caches.
    pub(crate) is_shared: bool,
    /// What threads keep of what they freed.
    pub(crate) caches: Vec<&'static ThreadCache>,
    /// Freed, and not to be had again before they are filled with zeros, which failed so far. They
    /// count as live.
    pub(crate) unzeroed: Vec<Lease>,
    /// Room for what is taken from a cache on its way to the policy.
    pub(super) kept: Vec<Kept>,
    /// Regions of the program that watch the peak.
    pub(crate) regions: Vec<Watched>,
}

/// A heap's record of a region.
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
        keeps: Option<u64>,
        reclaimers: Arc<Reclaimers>,
        (policy, source): Parts,
    ) -> Store {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let spare = spare_of(kind, &*source);
        let state = State {
            policy,
            source,
            order: Order::default(),
            stats: RunningStats::default(),
            granted: 0,
            limits,
            stranded: Vec::new(),
            lost: 0,
            is_alone: false,
            is_above_soft_limit: false,
            spare,
            gathered: 0,
            is_shared: false,
            caches: Vec::new(),
            unzeroed: Vec::new(),
            kept: Vec::new(),
            regions: Vec::new(),
        };
        Store {
            context,
            kind,
            pool,
            reclaimers,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            keeps: keeps.filter(|_| KeptByThreads::of(pool).is_some()),
            state: Apart(Biased::new(state)),
        }
    }

    /// Bytes that a thread may keep for a stream of what it freed; none where threads keep nothing.
    pub(crate) fn keeps(&self) -> Option<u64> {
        self.keeps
    }

    pub(crate) fn usage(&self) -> Result<Usage, Error> {
        let mut state = self.lock();
        let state = &mut *state;
        state.flush_caches();
        state.order.learn(&mut *state.source);
        state.keep_soft_limit()?;
        self.note_soft_limit(state);
        let stranded: u64 = state.stranded.iter().map(|segment| segment.bytes).sum();
        let cached = state.policy.cached(None, &state.order);
        // Before the questions of this call itself.
        let driver_calls = state.source.calls();
        let reserved = state.source.reserved()?;
        // What a pool of the driver's keeps is cached too, though no policy of ours holds it.
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
            reserved,
            reserved_peak: state.source.reserved_peak()?,
            driver_calls,
            stats: *state.stats,
        })
    }

    /// Gives cached memory back until `bytes` went; waits for frees in flight.
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
        // What is freed in stream order is the driver's to know of, and the wait alone makes a pool
        // give back what is above its threshold.
        self.synchronize()?;
        let mut state = self.lock();
        state.source.trim()?;
        Ok(before.saturating_sub(state.source.reserved()?))
    }

    /// Retires a stream that is about to end, and lets go of it.
    pub(crate) fn retire(&self, stream: &Stream) -> Result<(), Error> {
        let mut state = self.lock();
        // Before the handle can be wrapped anew: what is freed on the new stream must not be kept with
        // what was freed on this one, which has no work from here on.
        state.close(|cache| cache.stream_id() == stream.id());
        stream.retire()?;
        let State { order, source, .. } = &mut *state;
        order.retire(stream.id(), &mut **source)?;
        state.close_ended();
        Ok(())
    }

    /// Waits for the device and lets go of all foreign streams.
    pub(crate) fn retire_foreign(&self) -> Result<(), Error> {
        let mut state = self.lock();
        // With the lock held: what is freed by now was used by work that this waits for.
        state.flush_caches();
        let foreign: Vec<u64> = state.order.foreign_ids().collect();
        // As in `retire`.
        state.close(|cache| foreign.contains(&cache.stream_id()));
        // Before the wait, so that it is for all the work that they ever take.
        state.order.foreign().for_each(|guard| guard.refuse_work());
        let waited = self.context.synchronize();
        let State { order, source, .. } = &mut *state;
        if waited.is_ok() {
            order.foreign().for_each(|guard| guard.complete());
            order.all_over(&mut **source);
        }
        // Also where that failed: their handles may mean nothing any more.
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
            state.spare = spare_of(self.kind, &*state.source);
            let most = limits.soft.unwrap_or(u64::MAX).min(limits.hard.unwrap_or(u64::MAX));
            self.note_soft_limit(&mut state);
            state.source.reserved()?.saturating_sub(most)
        };
        if above == 0 { Ok(0) } else { self.reclaim(above) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, State> {
        self.state.0.lock()
    }

    /// The same for this thread, which may have a cache.
    #[inline]
    pub(super) fn lock_with(&self, cache: Option<&'static ThreadCache>) -> Locked<'_, State> {
        match cache {
            Some(cache) => cache.lock(self.number, &self.state.0),
            None => self.lock(),
        }
    }

    /// A stream of another device has no order with this heap's memory.
    pub(crate) fn check_device(&self, stream: &Stream) -> Result<(), Error> {
        if stream.context().is_same(&self.context) {
            return Ok(());
        }
        // A context from before a reset has the name of the one after it.
        self.context.check_alive()?;
        stream.context().check_alive()?;
        Err(ErrorKind::WrongDevice.error(format!(
            "the stream is of {} and the heap of {}; use a stream of the heap's own device",
            stream.context().beside(&self.context),
            self.context.beside(stream.context())
        )))
    }

    /// Waits, without the lock, until every free so far is over.
    pub(crate) fn wait_for_pending(&self) -> Result<(), SourceError> {
        let waiters: Vec<_> = {
            let mut state = self.lock();
            state.zero_again(&self.context);
            state.flush_caches();
            let State { order, source, .. } = &mut *state;
            let fences = order.pending(&mut **source)?;
            fences.into_iter().map(|fence| source.waiter(fence)).collect()
        };
        waiters.into_iter().try_for_each(|wait| wait())?;
        self.lock().poll()?;
        // With the lock let go: the question for captures locks each store of the device.
        let needs_device = self.lock().order.needs_device();
        if needs_device && !self.context.holders.is_any_capturing() {
            self.context.synchronize()?;
            self.lock().poll()?;
        }
        Ok(())
    }

    /// Waits, without the lock, for all work of the device; not while a stream captures a graph.
    pub(crate) fn synchronize(&self) -> Result<(), SourceError> {
        self.lock().refuse_capturing()?;
        Ok(self.context.synchronize()?)
    }
}

impl Store {
    /// Has threads keep nothing of what is freed while more is taken than the soft limit allows.
    pub(crate) fn note_soft_limit(&self, state: &mut State) {
        let is_above = match state.limits.soft {
            None => false,
            Some(soft) => state.source.reserved().is_ok_and(|reserved| reserved > soft),
        };
        if is_above != state.is_above_soft_limit {
            state.is_above_soft_limit = is_above;
            let most = if is_above { 0 } else { self.keeps.unwrap_or(0) };
            state.caches.iter().for_each(|cache| cache.set_most(most));
            if is_above {
                state.flush_caches();
            }
        }
    }
}

impl State {
    pub(crate) fn stream(&mut self, stream: &Stream) -> StreamRef {
        let guard = || Some(stream.guard());
        let found = self.order.stream(stream.id(), handle(stream.raw()), guard, &mut *self.source);
        // Those whose end was noticed on the way.
        self.close_ended();
        found
    }

    /// The account, with what threads counted for themselves.
    pub(crate) fn stats(&mut self) -> AllocStats {
        self.flush_caches();
        *self.stats
    }

    #[inline(always)]
    pub(crate) fn with_policy<R>(
        &mut self,
        work: impl FnOnce(&mut dyn Policy, &mut Environment<'_>) -> R,
    ) -> R {
        let mut environment = Environment {
            source: &mut *self.source,
            order: &mut self.order,
            stats: &mut self.stats,
            limits: self.limits,
            stranded: &mut self.stranded,
        };
        work(&mut *self.policy, &mut environment)
    }

    /// The same with the lock.
    pub(crate) fn synchronize(&mut self, context: &Context) -> Result<(), SourceError> {
        self.refuse_capturing()?;
        Ok(context.synchronize()?)
    }

    /// Refuses what a capture would break by.
    fn refuse_capturing(&mut self) -> Result<(), SourceError> {
        let capturing = self.order.is_any_capturing(&mut *self.source)?;
        if capturing { Err(SourceError::Capturing) } else { Ok(()) }
    }

    /// Records the fences that the frees so far still lack.
    pub(crate) fn fence(&mut self) -> Result<(), SourceError> {
        self.flush_caches();
        self.order.pending(&mut *self.source).map(drop)
    }

    /// Asks the driver which frees are over.
    pub(crate) fn poll(&mut self) -> Result<(), SourceError> {
        self.flush_caches();
        let polled = self.order.poll(&mut *self.source);
        self.close_ended();
        polled
    }

    pub(crate) fn release(&mut self, target: u64) -> Result<u64, SourceError> {
        self.poll()?;
        for segment in std::mem::take(&mut self.stranded) {
            if self.with_policy(|_, env| env.give_back(segment)).is_err() {
                self.stranded.push(segment);
            }
        }
        self.with_policy(|policy, env| policy.release(target, env))
    }

    /// Gives back what is above the soft limit and out of use. A pool of the driver's does so
    /// itself. Called at every free, so it looks through all that there is once, when more is taken
    /// than the limit allows, and from then on at what became free.
    pub(super) fn keep_soft_limit(&mut self) -> Result<(), SourceError> {
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

    /// Bytes that may still be taken from the driver, by the limit and by the device.
    pub(crate) fn available(&mut self) -> Result<u64, SourceError> {
        self.available_with(0)
    }

    /// Bytes that may be taken from the driver once other heaps gave `spare` bytes back.
    fn available_with(&mut self, spare: u64) -> Result<u64, SourceError> {
        let (free, _) = self.source.device_memory()?;
        let allowed = match self.limits.hard {
            Some(limit) => limit.saturating_sub(self.source.reserved()?),
            None => u64::MAX,
        };
        Ok(free.saturating_add(spare).min(allowed))
    }

    /// Bytes that may be handed out with cached memory given back, here and by `others`.
    pub(crate) fn room(&mut self, others: OtherHeaps) -> Result<u64, SourceError> {
        self.flush_caches();
        let cached = self.source.reserved()?.saturating_sub(self.granted);
        let available = self.available_with(others.spare.saturating_sub(others.may_stay))?;
        Ok(available.saturating_add(cached).min(self.source.capacity()))
    }

    pub(crate) fn wait_for_pending(&mut self) -> Result<(), SourceError> {
        self.flush_caches();
        for fence in self.order.pending(&mut *self.source)? {
            self.source.wait(fence)?;
        }
        self.poll()
    }
}

/// Bytes up to which new memory of a kind is taken [rather than](SPARE) a wait.
fn spare_of(kind: MemoryKind, source: &dyn MemorySource) -> u64 {
    match kind {
        // A pool of the driver's orders streams itself, and says what it reserved by a call.
        MemoryKind::Device if !source.is_stream_ordered() => {
            (source.capacity() / SPARE_SHARE).max(SPARE)
        }
        // Slow to take, or with no memory of its own.
        _ => 0,
    }
}

/// How often a heap that ends tries to give everything back: a call may fail for the moment.
const LAST_TRIES: u32 = 3;

impl Drop for Store {
    fn drop(&mut self) {
        let state = self.state.0.get_mut();
        // Nobody is left to be told; what cannot be given back goes with the context.
        let mut waited = Ok(());
        for _ in 0..LAST_TRIES {
            state.zero_again(&self.context);
            let _ = state.wait_for_pending().and_then(|()| state.release(u64::MAX));
            if state.stats.taken == 0 {
                return;
            }
            waited = state.synchronize(&self.context);
            if waited.is_ok() {
                state.order.all_over(&mut *state.source);
            }
        }
        // A graph may be captured that uses it.
        if waited.is_err_and(|error| !is_end_of_work(&error)) {
            state.source.leave();
        }
    }
}

/// Returns `true` if a wait failed because the work did, with which the context is lost: nothing
/// runs in it any more.
fn is_end_of_work(error: &SourceError) -> bool {
    match error {
        SourceError::Gone(_) => true,
        SourceError::Driver(error) => FAILED_WORK.contains(&error.code),
        _ => false,
    }
}

/// The driver's codes for that, such as `CUDA_ERROR_ILLEGAL_ADDRESS` and `CUDA_ERROR_LAUNCH_FAILED`.
const FAILED_WORK: std::ops::Range<i32> = 700..800;
