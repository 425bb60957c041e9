//! The memory of one kind: a policy over a source, with its order, statistics and limits, under one
//! lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuheap_pool::{
    AllocStats, BlockRef, Environment, GRANULE, KeptByThreads, Limits, MemorySource, Order, Policy,
    PoolKind, RunningStats, Segment, Shortage, SourceError, StreamRef,
};

use crate::device::Context;
use crate::error::{Error, ErrorKind};
use crate::heap::lease::Lease;
use crate::heap::other_heaps::OtherHeaps;
use crate::heap::policies::Parts;
use crate::heap::reclaimers::Reclaimers;
use crate::heap::usage::Usage;
use crate::kind::MemoryKind;
use crate::source::{handle, raw};
use crate::stream::Stream;
use crate::sync::{Biased, Locked};
use crate::thread_cache::{Kept, ThreadCache};

/// What is allocated on the side takes at most one part in so many of what a limit leaves: who
/// asks for the rest meanwhile is to get it.
const SPARED: u64 = 4;

/// So much may other threads keep, or such a part of all that is taken, while more is taken, and by so
/// much has what is taken to grow before they are asked again. Asked at every growth, sixteen threads
/// had each other start over again and again: 8 million pairs a second, and not 100.
const KEPT: u64 = 32 << 20;
const KEPT_SHARE: u64 = 32;

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
    keeps: Option<u64>,
    state: Apart<Biased<State>>,
}

/// On cache lines of its own: what threads read at every call is not to move with the lock.
#[repr(align(128))]
struct Apart<T>(T);

/// Which of two streams a free comes after both of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeOn {
    /// The stream that the block was allocated on.
    Own,
    /// The stream that the free names.
    Theirs,
}

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
    is_alone: bool,
    /// More is taken than the soft limit allows.
    pub(crate) is_above_soft_limit: bool,
    /// Bytes up to which new memory is taken rather than a stream made to wait.
    spare: u64,
    /// What was taken when all threads were last asked for what they keep, for more to be taken.
    gathered: u64,
    /// Several threads have caches.
    pub(crate) is_shared: bool,
    /// What threads keep of what they freed.
    pub(crate) caches: Vec<&'static ThreadCache>,
    /// Freed, and not to be had again before they are filled with zeros, which failed so far. They
    /// count as live.
    pub(crate) unzeroed: Vec<Lease>,
    /// Room for what is taken from a cache on its way to the policy.
    kept: Vec<Kept>,
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

    /// Memory for use on `stream` from this point of it on, filled with zeros if `zeroed`.
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

    /// Fills new memory with zeros on its stream, and frees it if that fails: the stream may have been
    /// retired since the memory was granted.
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

    /// The same where this thread's cache has nothing.
    #[inline(always)]
    pub(crate) fn allocate_locked(
        &self,
        bytes: u64,
        stream: &Stream,
        cache: Option<&'static ThreadCache>,
    ) -> Result<Lease, Error> {
        let stream_id = stream.id();
        let mut state = self.lock_with(cache);
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

    /// Allocates without the reclaim steps: none where there is none as things are, or where more than a
    /// part of what the limit allows would be held so. The first use is the host's to order.
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

    /// Takes a lease back in the order of `stream`, else of its own stream; filled with zeros
    /// before anything else can have it if `zeroed`. `cache` is this thread's for that stream.
    pub(crate) fn free(
        &self,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
        cache: Option<&'static ThreadCache>,
    ) -> Result<(), Error> {
        let stream_id = stream.map_or(lease.stream_id, Stream::id);
        if !zeroed {
            // Before another thread can have it.
            lease.note_freed(&self.context, stream.map(Stream::raw), false);
        }
        match cache {
            Some(cache) if !zeroed && cache.keep(&Lease { stream_id, ..lease }) => Ok(()),
            _ => self.free_locked(lease, stream, zeroed, cache),
        }
    }

    /// The same where no cache of this thread keeps it as things are.
    #[inline]
    pub(crate) fn free_locked(
        &self,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
        cache: Option<&'static ThreadCache>,
    ) -> Result<(), Error> {
        let Lease { bytes, block_bytes, .. } = lease;
        let mut state = self.lock_with(cache);
        if cache.is_none() {
            state.merge_counts();
        }
        if let Some(cache) = cache {
            state.settle(cache);
            let stream_id = stream.map_or(lease.stream_id, Stream::id);
            if !zeroed && state.make_room(cache, &Lease { stream_id, ..lease }) {
                return Ok(());
            }
        }
        let Some(key) = lease.key else {
            state.stats.freed(bytes, block_bytes);
            return Ok(());
        };
        let stream = match stream {
            Some(stream) => state.stream(stream),
            None => lease.stream,
        };
        let current = state.order.current(stream);
        if zeroed {
            lease.note_whole(&self.context);
            if let Err(error) = state.zero(&self.context, &lease, current) {
                state.stats.failed_frees += 1;
                state.unzeroed.push(Lease { stream, ..lease });
                return Err(error.into());
            }
            lease.note_freed(&self.context, Some(raw(stream)), true);
        }
        state.stats.freed(bytes, block_bytes);
        let mut freed = state.give(key, block_bytes, stream);
        freed = freed.and(state.keep_soft_limit());
        self.note_soft_limit(&mut state);
        if freed.is_err() {
            state.stats.failed_frees += 1;
        }
        Ok(freed?)
    }

    /// Orders `stream` and the lease's own stream for a free: the lease may then be freed on the one
    /// that the result names. Waits on the host only if neither stream can wait for the other.
    pub(crate) fn order_free(&self, lease: &Lease, stream: &Stream) -> Result<FreeOn, Error> {
        let (failed, own) = {
            let mut state = self.lock();
            let theirs = state.stream(stream);
            let State { order, source, .. } = &mut *state;
            let Err(failed) = order.follow(theirs, lease.stream, &mut **source) else {
                return Ok(FreeOn::Theirs);
            };
            let current = order.current(lease.stream);
            if current.is_some_and(|own| order.follow(own, theirs, &mut **source).is_ok()) {
                return Ok(FreeOn::Own);
            }
            let mark = order.mark(lease.stream, &mut **source);
            (failed, mark.map(|fence| fence.map(|fence| source.waiter(fence))))
        };
        // One of them is capturing a graph, or the driver fails.
        if stream.synchronize().is_ok() {
            return Ok(FreeOn::Own);
        }
        let is_over = own.is_ok_and(|wait| wait.is_none_or(|wait| wait().is_ok()));
        if is_over { Ok(FreeOn::Theirs) } else { Err(failed.into()) }
    }

    /// Waits for a lease's stream and gives its memory back to the driver, past the cache: the
    /// bytes that the driver regained.
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
            state.synchronize(&self.context)?;
            // A pool that keeps nothing has given it back by itself by now.
            state.source.trim()?;
            return Ok(reserved.saturating_sub(state.source.reserved()?));
        }
        Ok(state.stats.given_back - before)
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
    fn lock_with(&self, cache: Option<&'static ThreadCache>) -> Locked<'_, State> {
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

    /// Has the policy take everything back that threads keep, and carries over what they counted.
    /// Makes no driver call.
    pub(crate) fn flush_caches(&mut self) {
        self.flush_matching(|_| true, false);
    }

    /// The same before more is taken from the driver: of this thread all, of the others what they
    /// keep where it matters.
    fn flush_before_growth(&mut self) {
        let kept: u64 =
            self.caches.iter().filter(|cache| !cache.is_mine()).map(|cache| cache.held()).sum();
        let much = (self.stats.taken / KEPT_SHARE).max(KEPT);
        let of_all = kept > much && self.stats.taken >= self.gathered.saturating_add(much);
        if of_all || self.stats.taken < self.gathered {
            self.gathered = self.stats.taken;
        }
        self.flush_matching(|cache| of_all || cache.is_mine(), false);
    }

    /// Has the policy take this thread's large blocks back before it places a large one: it then
    /// finds free what would be free without the thread caches, and a program that repeats itself gets the
    /// places that it had. Kept past such a request, one large block a stream cost `serve_threads`
    /// three times the time, as requests found their places taken.
    fn give_large(&mut self, bytes: u64) {
        for at in 0..self.caches.len() {
            let cache = self.caches[at];
            if cache.is_mine() && cache.has_large() && cache.is_large(bytes) {
                self.give_all(cache.stream(), |_, kept| cache.take_large(|block| kept.push(block)));
            }
        }
    }

    /// Has caches keep blocks up to `small` from the second thread on.
    pub(crate) fn note_threads(&mut self, small: u64) {
        let threads = || self.caches.iter().map(|cache| cache.thread()).filter(|one| *one != 0);
        let first = threads().next();
        if self.is_shared || threads().all(|thread| Some(thread) == first) {
            return;
        }
        self.is_shared = true;
        self.pause_other_threads();
        self.caches.iter().for_each(|cache| cache.set_small(small));
        self.resume_other_threads();
    }

    /// Closes and empties caches.
    pub(crate) fn close(&mut self, which: impl Fn(&ThreadCache) -> bool) {
        self.flush_matching(which, true);
    }

    fn flush_matching(&mut self, which: impl Fn(&ThreadCache) -> bool, closes: bool) {
        let open = self.caches.iter().filter(|cache| !cache.is_closed());
        // Nobody is to put anything into a cache that closes, so everybody has to be out of their own.
        let stopped = open.filter(|cache| closes || which(cache));
        let stopped: Vec<&'static ThreadCache> = stopped.copied().collect();
        ThreadCache::stop_all(stopped.iter().copied());
        stopped.iter().for_each(|cache| cache.wait());
        for cache in stopped.iter().filter(|cache| which(cache)) {
            self.give_all(cache.stream(), |stats, kept| {
                cache.drain(stats, |block| kept.push(block));
            });
            if closes {
                cache.close();
                cache.part(&self.caches);
            }
        }
        // Only now: one that goes on could put something into one that is not closed yet.
        if !self.is_alone {
            stopped.iter().for_each(|cache| cache.resume());
        }
    }

    /// Takes over what a cache of this thread counted, and what it has no place for.
    #[inline]
    fn settle(&mut self, cache: &ThreadCache) {
        cache.merge_counts(&mut self.stats);
        if cache.is_crowded() {
            self.give_all(cache.stream(), |_, kept| cache.take_unwanted(|block| kept.push(block)));
        }
    }

    /// Takes over what this thread counted: the peak of the statistics is then that of what it holds.
    #[inline]
    pub(crate) fn merge_counts(&mut self) {
        if let Some(cache) = self.caches.iter().find(|one| one.is_mine() && !one.is_closed()) {
            cache.merge_counts(&mut self.stats);
        }
    }

    /// The account with what this thread counted, and without what the others did since they last needed
    /// the lock. Their caches stay as they are.
    pub(crate) fn merged_stats(&mut self) -> RunningStats {
        self.merge_counts();
        self.stats
    }

    /// Holds off the other threads, whose frees would need no lock, until
    /// [`resume_other_threads`](State::resume_other_threads): what they keep is gathered, and the next thing that each does with
    /// the heap waits for the lock.
    pub(crate) fn pause_other_threads(&mut self) {
        self.is_alone = true;
        self.flush_caches();
    }

    pub(crate) fn resume_other_threads(&mut self) {
        self.is_alone = false;
        self.caches.iter().for_each(|cache| cache.resume());
    }

    /// Makes room in this thread's own cache for what is freed, and has it kept there.
    fn make_room(&mut self, cache: &ThreadCache, lease: &Lease) -> bool {
        let made = self.give_all(cache.stream(), |_, kept| {
            cache.make_room(lease.block_bytes, |block| kept.push(block))
        });
        made && cache.keep(lease)
    }

    /// Gives the policy what `take` takes out of a cache of `stream`.
    fn give_all<R>(
        &mut self,
        stream: StreamRef,
        take: impl FnOnce(&mut RunningStats, &mut Vec<Kept>) -> R,
    ) -> R {
        let mut kept = std::mem::take(&mut self.kept);
        let taken = take(&mut self.stats, &mut kept);
        for Kept { key, bytes, before, .. } in kept.drain(..) {
            self.order.frees_as_completed(self.order.is_completed(stream, before));
            if self.give(key, bytes, stream).is_err() {
                self.stats.failed_frees += 1;
            }
        }
        self.order.frees_as_completed(false);
        self.kept = kept;
        taken
    }

    /// Gives a block back to the policy, whose last use is on `stream`.
    fn give(&mut self, key: u32, bytes: u64, stream: StreamRef) -> Result<(), SourceError> {
        self.granted -= bytes;
        self.with_policy(|policy, env| policy.free(key, stream, env))
    }

    /// Closes and empties the caches of streams that ended.
    pub(crate) fn close_ended(&mut self) {
        while let Some(ended) = self.order.next_ended() {
            self.close(|cache| cache.stream_id() == ended);
        }
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

    /// Asks the policy and keeps the account.
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
                // None is asked for again before as much was given back.
                self.spare = self.spare.min(self.stats.taken);
                grant = self.grant_with_waits(bytes, stream);
            }
        }
        let grant = grant.map_err(|shortage| match shortage {
            // An event that could not be made, say: memory is short all the same.
            Shortage::Failed(SourceError::OutOfMemory) => Shortage::Device(GRANULE),
            shortage => shortage,
        })?;
        self.granted += grant.bytes;
        self.stats.allocated(bytes, grant.bytes);
        // What above a soft limit was still in use at its free may be out of use by now.
        if self.limits.soft.is_some() && self.stats.taken > self.granted {
            let _ = self.keep_soft_limit();
        }
        Ok(grant)
    }

    /// A block of what is cached, else what the policy takes.
    #[inline(always)]
    fn grant(&mut self, bytes: u64, stream: StreamRef) -> Result<BlockRef, Shortage> {
        if self.caches.iter().any(|cache| cache.holds()) {
            let kept = self.with_policy(|policy, env| policy.reuse(bytes, stream, env))?;
            if let Some(grant) = kept {
                return Ok(grant);
            }
            self.flush_before_growth();
        }
        self.with_policy(|policy, env| policy.allocate(bytes, stream, env))
    }

    /// A block for which `stream` may be made to wait, if there is no new memory.
    #[cold]
    fn grant_with_waits(&mut self, bytes: u64, stream: StreamRef) -> Result<BlockRef, Shortage> {
        self.grant(bytes, stream)
    }

    /// Returns `true` if new memory for a request is better than a wait: within the limits, and as
    /// long as not much is taken. Makes no driver call.
    #[inline]
    pub(crate) fn has_spare(&mut self, bytes: u64) -> bool {
        let few = self.stats.taken.saturating_add(bytes) <= self.spare;
        few && (self.limits == Limits::default() || self.is_allowed(bytes))
    }

    /// Returns `true` if the limits allow so much more.
    #[cold]
    fn is_allowed(&mut self, bytes: u64) -> bool {
        let Limits { soft, hard } = self.limits;
        let most = soft.unwrap_or(u64::MAX).min(hard.unwrap_or(u64::MAX));
        let growth = self.source.growth(bytes);
        self.source.reserved().is_ok_and(|reserved| reserved.saturating_add(growth) <= most)
    }

    /// Fills a block that is being freed with zeros, in the order of `stream`, or at once where there
    /// is none to do it in order.
    fn zero(
        &mut self,
        context: &Context,
        lease: &Lease,
        stream: Option<StreamRef>,
    ) -> Result<(), SourceError> {
        if stream.is_none() {
            self.synchronize(context)?;
        }
        self.source.zero(lease.address, lease.block_bytes, stream)
    }

    /// Tries once more to zero what could not be zeroed when it was freed, and frees it.
    fn zero_again(&mut self, context: &Context) {
        self.merge_counts();
        for lease in std::mem::take(&mut self.unzeroed) {
            let stream = self.order.current_later(lease.stream);
            if self.zero(context, &lease, stream).is_err() {
                self.unzeroed.push(lease);
                continue;
            }
            lease.note_freed(context, None, true);
            self.stats.freed(lease.bytes, lease.block_bytes);
            let Some(key) = lease.key else { continue };
            if self.give(key, lease.block_bytes, lease.stream).is_err() {
                self.stats.failed_frees += 1;
            }
        }
    }

    /// Refuses a stream that was retired after it was looked up, while the lock was open: its handle
    /// may mean nothing any more, and its place may be another stream's.
    fn refuse_ended(&self, stream: StreamRef) -> Result<(), SourceError> {
        let current = self.order.current(stream);
        match current.is_some_and(|current| current.number() == stream.number()) {
            true => Ok(()),
            false => Err(SourceError::StreamUnusable),
        }
    }

    /// Refuses what no device or limit could hold, before the driver is called.
    pub(crate) fn refuse(&self, bytes: u64) -> Result<(), Shortage> {
        if self.limits.hard.is_some_and(|limit| bytes > limit) {
            return Err(Shortage::Limit(bytes));
        }
        if bytes > self.source.capacity() {
            return Err(Shortage::Device(bytes));
        }
        Ok(())
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
    fn keep_soft_limit(&mut self) -> Result<(), SourceError> {
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
