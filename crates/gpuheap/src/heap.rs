//! The heap of one device.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::block::Block;
use crate::device::{Context, Device};
use crate::error::{Cause, Error, ErrorKind, OutOfMemory};
use crate::ladder::{LADDER, Step};
use crate::ledger::Ledger;
use crate::limits::Limits;
use crate::order::{Order, StreamRef};
use crate::pool::{Binned, Direct, Environment, Grant, Policy, PoolKind, Shortage, Simple, Split};
use crate::source::{GRANULE, MemorySource, OrderedSource, PlainSource, Segment, SourceError};
use crate::stream::Stream;

/// How long the ladder waits on WSL2 for memory that the host gives back late.
const LATE_RELEASE: Duration = Duration::from_secs(2);
/// What contexts and modules of this process may take before "others hold the rest of the device"
/// is the honest cause. A bare context takes 527 MiB on an H200 (driver 580).
const CONTEXT_ALLOWANCE: u64 = 1 << 30;

/// The memory of one device, handed out in stream order.
///
/// ```text
/// Block ─► Heap ─► policy: none | simple | binned | split | driver
///            │        └► source: driver calls (plain, stream-ordered)
///            ├─ order       which stream may reuse what, and behind which fence
///            ├─ ledger      bytes handed out, taken, given back
///            ├─ limits      soft (give back above it) and hard (never exceed)
///            └─ reclaimers  callbacks that others registered
/// ```
///
/// Cheap to clone; clones are the same heap. It may be used from any thread. Metadata lives on the
/// host. When the last clone and the last block are gone, everything goes back to the driver.
///
/// A callback that a stream runs on the host (`cuLaunchHostFunc`) must neither allocate nor free:
/// the driver forbids its calls there, and the heap may be waiting for that very stream with its
/// lock held.
#[derive(Clone)]
pub struct Heap {
    shared: Arc<Shared>,
}

/// Chooses what a heap is made of.
#[derive(Clone, Debug)]
pub struct HeapBuilder {
    device: Device,
    pool: PoolKind,
    limits: Limits,
}

/// What a heap holds at one moment, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Handed out, as requested.
    pub live: u64,
    /// Handed out, rounding included.
    pub live_blocks: u64,
    /// The high-water mark of `live`.
    pub live_peak: u64,
    /// Freed, their streams not known to be there yet.
    pub pending: u64,
    /// Held by the pool and free, pending ones included.
    pub cached: u64,
    /// The largest of these in one piece.
    pub largest_cached_block: u64,
    /// What the driver counts for this heap, its own rounding included.
    pub reserved: u64,
    /// The high-water mark of `reserved`.
    pub reserved_peak: u64,
    /// Driver calls made for memory, order and figures, a count; those that make the context
    /// current are not in it.
    pub driver_calls: u64,
    /// The account.
    pub ledger: Ledger,
}

impl Heap {
    /// A heap with the default policy, `split`, and no limits.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn new(device: &Device) -> Result<Heap, Error> {
        Heap::builder(device).build()
    }

    /// Chooses policy and limits.
    pub fn builder(device: &Device) -> HeapBuilder {
        HeapBuilder { device: device.clone(), pool: PoolKind::Split, limits: Limits::default() }
    }

    /// Memory for use on `stream` from this point of it on. A request that the cache serves does not
    /// wait for the device; one that takes memory from the driver may, because giving unused
    /// segments back for it does (`cuMemFree`). Where memory is short it climbs the ladder
    /// ([`Step`]) before it gives up.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory), a stream of another device, or a driver call that
    /// failed for another reason. The account is then as it was.
    pub fn allocate(&self, bytes: u64, stream: &Stream) -> Result<Block, Error> {
        self.shared.check_device(stream)?;
        let mut state = self.shared.lock();
        let stream = state.stream(stream);
        if bytes == 0 {
            state.ledger.allocated(0, 0);
            drop(state);
            return Ok(Block::new(self.shared.clone(), stream, None, 0, 0, 0));
        }
        let grant = match state.allocate(bytes, stream, &self.shared) {
            Ok(grant) => grant,
            Err(Shortage::Failed(error)) => return Err(error.into()),
            Err(shortage) => {
                drop(state);
                self.shared.climb(bytes, stream, shortage)?
            }
        };
        Ok(Block::new(
            self.shared.clone(),
            stream,
            Some(grant.key),
            grant.address,
            bytes,
            grant.bytes,
        ))
    }

    /// What the heap holds.
    ///
    /// # Errors
    ///
    /// The driver's own, where it is asked.
    pub fn usage(&self) -> Result<Usage, Error> {
        let mut state = self.shared.lock();
        let state = &mut *state;
        state.keep_soft_limit()?;
        let stranded: u64 = state.stranded.iter().map(|segment| segment.bytes).sum();
        let cached = state.policy.cached(None, &state.order);
        // Before the questions of this call itself.
        let driver_calls = state.source.calls();
        let reserved = state.source.reserved()?;
        // What a pool of the driver's keeps is cached too, though no policy of ours holds it.
        let kept_by_driver = if state.source.is_stream_ordered() {
            reserved.saturating_sub(state.ledger.taken)
        } else {
            0
        };
        Ok(Usage {
            live: state.ledger.live,
            live_blocks: state.ledger.live_blocks,
            live_peak: state.ledger.live_peak,
            pending: cached.pending,
            cached: cached.bytes + stranded + kept_by_driver,
            largest_cached_block: cached.largest.max(kept_by_driver),
            reserved,
            reserved_peak: state.source.reserved_peak()?,
            driver_calls,
            ledger: state.ledger,
        })
    }

    /// Gives cached memory back to the driver until at least `bytes` went, largest first. Waits
    /// for frees in flight. Returns the bytes of the frees that succeeded, which is less where
    /// less was cached.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.shared.wait_for_pending()?;
        let released = self.shared.lock().release(bytes)?;
        if released >= bytes || !self.shared.lock().source.is_stream_ordered() {
            return Ok(released);
        }
        // What is freed in stream order is the driver's to know of.
        self.shared.context.synchronize()?;
        Ok(released + self.shared.lock().source.trim()?)
    }

    /// The same with everything that is cached.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn reclaim_all(&self) -> Result<u64, Error> {
        self.reclaim(u64::MAX)
    }

    /// Changes the limits, and gives cached memory above the new ones back, for which it waits for
    /// frees in flight. What is live stays: a heap above its limit serves requests from its cache
    /// and takes nothing more. Returns the bytes that went back.
    ///
    /// # Errors
    ///
    /// The driver's own, and a hard limit above the one that a `none` or `driver` heap was built
    /// with, to which the driver holds its pool: a new heap can have it. The limits are changed
    /// all the same.
    pub fn set_limits(&self, limits: Limits) -> Result<u64, Error> {
        let above = {
            let mut state = self.shared.lock();
            state.limits = limits;
            if !state.source.limit(limits)? {
                return Err(ErrorKind::Refused(format!(
                    "the hard limit of a heap with the {} pool can be lowered and not raised above \
                     the one that it was built with; build another heap",
                    self.shared.kind
                ))
                .into());
            }
            let most = limits.soft.unwrap_or(u64::MAX).min(limits.hard.unwrap_or(u64::MAX));
            state.source.reserved()?.saturating_sub(most)
        };
        if above == 0 { Ok(0) } else { self.reclaim(above) }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.shared.lock().limits
    }

    /// The policy.
    pub fn pool(&self) -> PoolKind {
        self.shared.kind
    }

    /// Registers something that can give memory back: it is asked for a number of bytes when this
    /// heap is short, with no lock held, and says how many it gave back. It may use the heap, but is
    /// not asked again while it does. It stays registered while the handle lives.
    pub fn register_reclaimer(
        &self,
        reclaimer: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Reclaimer {
        let reclaimer: ReclaimerFn = Arc::new(reclaimer);
        let mut reclaimers = self.shared.reclaimers();
        reclaimers.push(reclaimer.clone());
        Reclaimer { shared: self.shared.clone(), reclaimer }
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heap ({})", self.shared.kind)
    }
}

impl HeapBuilder {
    /// The policy; `split` unless said otherwise.
    pub fn pool(mut self, pool: PoolKind) -> HeapBuilder {
        self.pool = pool;
        self
    }

    /// Bytes never to be exceeded by what is taken from the driver.
    pub fn hard_limit(mut self, bytes: u64) -> HeapBuilder {
        self.limits.hard = Some(bytes);
        self
    }

    /// Bytes above which cached memory is given back at the next call that finds it out of use.
    pub fn soft_limit(mut self, bytes: u64) -> HeapBuilder {
        self.limits.soft = Some(bytes);
        self
    }

    /// Makes the heap. Takes no memory yet.
    ///
    /// # Errors
    ///
    /// `driver` on a device without stream-ordered pools; the driver's own.
    pub fn build(self) -> Result<Heap, Error> {
        let context = self.device.context().clone();
        let plain = || Box::new(PlainSource::new(context.clone()));
        let ordered = |keeps| OrderedSource::new(context.clone(), keeps, self.limits).map(Box::new);
        let (policy, source): (Box<dyn Policy>, Box<dyn MemorySource>) = match self.pool {
            PoolKind::None if context.has_pools() => (Box::new(Direct::default()), ordered(false)?),
            PoolKind::None => (Box::new(Direct::default()), plain()),
            PoolKind::Driver if context.has_pools() => {
                (Box::new(Direct::default()), ordered(true)?)
            }
            PoolKind::Driver => {
                return Err(ErrorKind::Refused(format!(
                    "{} has no stream-ordered pools; use the split pool",
                    self.device
                ))
                .into());
            }
            PoolKind::Simple => (Box::new(Simple::default()), plain()),
            PoolKind::Binned => (Box::new(Binned::default()), plain()),
            PoolKind::Split => (Box::new(Split::default()), plain()),
        };
        Ok(Heap::from_parts(context, self.pool, self.limits, policy, source))
    }
}

impl Heap {
    pub(crate) fn from_parts(
        context: Arc<Context>,
        kind: PoolKind,
        limits: Limits,
        policy: Box<dyn Policy>,
        source: Box<dyn MemorySource>,
    ) -> Heap {
        let state = State {
            policy,
            source,
            order: Order::default(),
            ledger: Ledger::default(),
            limits,
            stranded: Vec::new(),
        };
        Heap {
            shared: Arc::new(Shared {
                context,
                kind,
                state: Mutex::new(state),
                reclaimers: Mutex::new(Vec::new()),
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn streams(&self) -> usize {
        self.shared.lock().order.places()
    }
}

thread_local! {
    /// Whether this thread is asking reclaimers: one that allocates itself must not start over.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

type ReclaimerFn = Arc<dyn Fn(u64) -> u64 + Send + Sync>;

/// Keeps a reclaimer registered.
#[must_use]
pub struct Reclaimer {
    shared: Arc<Shared>,
    reclaimer: ReclaimerFn,
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.shared.reclaimers().retain(|other| !Arc::ptr_eq(other, &self.reclaimer));
    }
}

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reclaimer")
    }
}

/// What clones of a heap and its blocks share.
pub(crate) struct Shared {
    context: Arc<Context>,
    kind: PoolKind,
    state: Mutex<State>,
    reclaimers: Mutex<Vec<ReclaimerFn>>,
}

/// Everything that one call at a time may touch.
pub(crate) struct State {
    policy: Box<dyn Policy>,
    source: Box<dyn MemorySource>,
    order: Order,
    ledger: Ledger,
    limits: Limits,
    stranded: Vec<Segment>,
}

impl State {
    pub(crate) fn stream(&mut self, stream: &Stream) -> StreamRef {
        self.order.stream(stream.id(), stream.raw(), || Some(stream.guard()), &mut *self.source)
    }

    fn with_policy<R>(
        &mut self,
        work: impl FnOnce(&mut dyn Policy, &mut Environment<'_>) -> R,
    ) -> R {
        let mut environment = Environment {
            source: &mut *self.source,
            order: &mut self.order,
            ledger: &mut self.ledger,
            limits: self.limits,
            stranded: &mut self.stranded,
        };
        work(&mut *self.policy, &mut environment)
    }

    /// Asks the policy and keeps the account.
    fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamRef,
        shared: &Shared,
    ) -> Result<Grant, Shortage> {
        self.refuse(bytes, shared)?;
        let grant = self.with_policy(|policy, env| policy.allocate(bytes, stream, env));
        let grant = grant.map_err(|shortage| match shortage {
            // An event that could not be made, say: memory is short all the same.
            Shortage::Failed(SourceError::OutOfMemory) => Shortage::Device(GRANULE),
            shortage => shortage,
        })?;
        self.ledger.allocated(bytes, grant.bytes);
        // What above a soft limit was still in use at its free may be out of use by now.
        if self.limits.soft.is_some() && self.ledger.cached() > 0 {
            let _ = self.keep_soft_limit();
        }
        Ok(grant)
    }

    /// Refuses what no device or limit could hold, before the driver is called.
    fn refuse(&self, bytes: u64, shared: &Shared) -> Result<(), Shortage> {
        if self.limits.hard.is_some_and(|limit| bytes > limit) {
            return Err(Shortage::Limit(bytes));
        }
        if bytes > shared.context.total_memory() {
            return Err(Shortage::Device(bytes));
        }
        Ok(())
    }

    /// Asks the driver which frees are over.
    fn poll(&mut self) -> Result<(), SourceError> {
        self.order.poll(&mut *self.source)
    }

    fn release(&mut self, target: u64) -> Result<u64, SourceError> {
        self.poll()?;
        for segment in std::mem::take(&mut self.stranded) {
            if self.with_policy(|_, env| env.give_back(segment)).is_err() {
                self.stranded.push(segment);
            }
        }
        self.with_policy(|policy, env| policy.release(target, env))
    }

    /// Gives back what is above the soft limit and out of use. A pool of the driver's does so
    /// itself.
    fn keep_soft_limit(&mut self) -> Result<(), SourceError> {
        let Some(soft) = self.limits.soft else { return Ok(()) };
        if self.source.is_stream_ordered() {
            return Ok(());
        }
        let above = self.source.reserved()?.saturating_sub(soft);
        if above == 0 { Ok(()) } else { self.release(above).map(|_| ()) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock would be a bug of ours; the account is still the best there is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reclaimers(&self) -> MutexGuard<'_, Vec<ReclaimerFn>> {
        self.reclaimers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream of another device has no order with this heap's memory.
    pub(crate) fn check_device(&self, stream: &Stream) -> Result<(), Error> {
        if stream.context().is_same(&self.context) {
            return Ok(());
        }
        Err(ErrorKind::Refused(format!(
            "the stream is of {} and the heap of {}; use a stream of the heap's own device",
            stream.context(),
            self.context
        ))
        .into())
    }

    pub(crate) fn free(
        &self,
        key: Option<u32>,
        bytes: u64,
        block_bytes: u64,
        stream: impl FnOnce(&mut State) -> StreamRef,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        state.ledger.freed(bytes, block_bytes);
        let Some(key) = key else { return Ok(()) };
        let stream = stream(&mut state);
        let mut freed = state.with_policy(|policy, env| policy.free(key, stream, env));
        freed = freed.and(state.keep_soft_limit());
        if freed.is_err() {
            state.ledger.failed_frees += 1;
        }
        Ok(freed?)
    }

    /// Climbs the ladder: does each step in turn and tries again after it.
    fn climb(&self, bytes: u64, stream: StreamRef, mut shortage: Shortage) -> Result<Grant, Error> {
        let hopeless = self.lock().refuse(bytes, self).is_err();
        let mut tried = Vec::new();
        for step in LADDER.iter().filter(|_| !hopeless) {
            let missing = match shortage {
                Shortage::Limit(missing) | Shortage::Device(missing) => missing,
                Shortage::Failed(error) => return Err(error.into()),
            };
            let attempt = match step {
                Step::Alone => {
                    let mut state = self.lock();
                    // Nothing here can make it worse: what fails shows in the attempt.
                    let _ = state.wait_for_pending().and_then(|()| state.release(u64::MAX));
                    if state.source.is_stream_ordered() {
                        let _ = self.context.synchronize();
                        let _ = state.source.trim();
                    }
                    tried.push((*step, 0));
                    let attempt = state.allocate(bytes, stream, self);
                    if let Err(shortage @ (Shortage::Limit(_) | Shortage::Device(_))) = attempt {
                        // Under the same lock, so that the figures are those of the attempt.
                        return Err(self.evidence(&mut state, bytes, stream, &shortage, tried));
                    }
                    attempt
                }
                step => {
                    let Some(regained) = self.take_step(*step, missing) else { continue };
                    tried.push((*step, regained));
                    self.lock().allocate(bytes, stream, self)
                }
            };
            match attempt {
                Ok(grant) => return Ok(grant),
                Err(next) => shortage = next,
            }
        }
        match shortage {
            Shortage::Failed(error) => Err(error.into()),
            shortage => Err(self.evidence(&mut self.lock(), bytes, stream, &shortage, tried)),
        }
    }

    /// One step of the ladder: the bytes that the driver got back by it, or `None` where it does
    /// not apply. What fails in a step shows in the attempt after it.
    fn take_step(&self, step: Step, missing: u64) -> Option<u64> {
        let regained = match step {
            Step::Ready => self.lock().poll().map(|()| 0),
            Step::InFlight => self.wait_for_pending().map(|()| 0),
            Step::Cache => {
                let mut state = self.lock();
                let available = state.available().unwrap_or(0);
                state.release(missing.saturating_sub(available))
            }
            Step::WholeCache => self.lock().release(u64::MAX),
            Step::Reclaimers => {
                let reclaimers = self.reclaimers().clone();
                if reclaimers.is_empty() || ASKING.get() {
                    return None;
                }
                ASKING.set(true);
                // One that panics gave nothing back; the others are asked all the same.
                let ask = |reclaimer: &ReclaimerFn| {
                    catch_unwind(AssertUnwindSafe(|| reclaimer(missing))).unwrap_or(0)
                };
                let regained = reclaimers.iter().map(ask).fold(0, u64::saturating_add);
                ASKING.set(false);
                Ok(regained)
            }
            Step::DriverPool => {
                if !self.lock().source.is_stream_ordered() {
                    return None;
                }
                let waited = self.context.synchronize().map_err(SourceError::from);
                waited.and_then(|()| self.lock().source.trim())
            }
            Step::LateRelease => {
                if !self.context.gives_back_late() {
                    return None;
                }
                let start = Instant::now();
                while start.elapsed() < LATE_RELEASE
                    && self.lock().available().is_ok_and(|available| available < missing)
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(0)
            }
            Step::Alone => return None,
        };
        Some(regained.unwrap_or(0))
    }

    /// Waits, without the lock, until every free so far is over.
    fn wait_for_pending(&self) -> Result<(), SourceError> {
        let waiters: Vec<_> = {
            let mut state = self.lock();
            let State { order, source, .. } = &mut *state;
            let fences = order.pending(&mut **source)?;
            fences.into_iter().map(|fence| source.waiter(fence)).collect()
        };
        waiters.into_iter().try_for_each(|wait| wait())?;
        self.lock().poll()
    }

    fn evidence(
        &self,
        state: &mut State,
        bytes: u64,
        stream: StreamRef,
        shortage: &Shortage,
        tried: Vec<(Step, u64)>,
    ) -> Error {
        let cached = state.policy.cached(Some(stream), &state.order);
        let reserved = state.source.reserved().unwrap_or(state.ledger.taken);
        let device = self.context.total_memory();
        let (device_free, _) = state.source.device_memory().unwrap_or((0, device));
        let limit = state.limits.hard;
        let foreign = device.saturating_sub(device_free).saturating_sub(reserved);
        let (needed, available, by_limit) = match *shortage {
            Shortage::Limit(needed) => (needed, limit.unwrap_or(0).saturating_sub(reserved), true),
            Shortage::Device(needed) => (needed, device_free, false),
            Shortage::Failed(_) => (bytes, 0, false),
        };
        let cause = match () {
            () if bytes > device => Cause::LargerThanDevice,
            () if limit.is_some_and(|limit| bytes > limit) => Cause::LargerThanLimit,
            () if cached.largest < bytes
                && cached.bytes > 0
                && cached.bytes + available >= needed =>
            {
                Cause::Fragmentation
            }
            () if by_limit => Cause::Limit,
            () if foreign > 0
                && reserved.saturating_add(needed).saturating_add(CONTEXT_ALLOWANCE) <= device =>
            {
                Cause::Foreign
            }
            () => Cause::DeviceFull,
        };
        let short_by = match cause {
            Cause::LargerThanDevice => bytes - device,
            Cause::LargerThanLimit => bytes - limit.unwrap_or(0),
            // A driver that refuses what its own figure says is free is short of all of it.
            _ if available >= needed => needed,
            _ => needed - available,
        };
        ErrorKind::OutOfMemory(OutOfMemory {
            requested: bytes,
            pool: self.kind,
            cause,
            short_by,
            live: state.ledger.live,
            live_blocks: state.ledger.live_blocks,
            pending: cached.pending,
            cached: cached.bytes,
            largest_cached_block: cached.largest,
            cached_on_other_streams: cached.on_other_streams,
            reserved,
            foreign,
            device,
            device_free,
            limit,
            tried,
        })
        .into()
    }
}

impl State {
    /// Bytes that may still be taken from the driver, by the limit and by the device.
    fn available(&mut self) -> Result<u64, SourceError> {
        let (free, _) = self.source.device_memory()?;
        let allowed = match self.limits.hard {
            Some(limit) => limit.saturating_sub(self.source.reserved()?),
            None => u64::MAX,
        };
        Ok(free.min(allowed))
    }

    fn wait_for_pending(&mut self) -> Result<(), SourceError> {
        for fence in self.order.pending(&mut *self.source)? {
            self.source.wait(fence)?;
        }
        self.poll()
    }
}

/// How often a heap that ends tries to give everything back: a call may fail for the moment.
const LAST_TRIES: u32 = 3;

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody is left to be told; what cannot be given back goes with the context.
        for _ in 0..LAST_TRIES {
            let _ = state.wait_for_pending().and_then(|()| state.release(u64::MAX));
            if state.ledger.taken == 0 {
                break;
            }
            if self.context.synchronize().is_ok() {
                state.order.all_over(&mut *state.source);
            }
        }
    }
}
