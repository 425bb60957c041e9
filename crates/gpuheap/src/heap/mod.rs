//! The heap of one device.

mod allocate;
pub(crate) mod block;
pub(crate) mod builder;
mod cache_owner;
mod fallback;
pub(crate) mod fit;
pub(crate) mod flush;
mod free;
pub(crate) mod idle;
pub(crate) mod leaks;
pub(crate) mod limits;
pub(crate) mod meter;
mod notes;
pub(crate) mod open_scopes;
pub(crate) mod page_lock;
mod publication;
pub(crate) mod reclaimers;
pub(crate) mod recording;
pub(crate) mod recovery;
pub(crate) mod registrations;
mod renaming;
pub(crate) mod requests;
pub(crate) mod retry;
pub(crate) mod siblings;
pub(crate) mod staging;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod usage;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use gpuheap_driver::{BlockEvent, BlockNote, CUstream};
use gpuheap_pool::{Gone, Limits, PoolKind, StreamHandle, Tuning};
use gpuheap_publish::{Access, Membership};

use crate::Caller;
use crate::device::Context;
use crate::error::Error;
use crate::heap::cache_owner::detach_caches;
use crate::heap::fallback::Fallback;
use crate::heap::idle::IdleTrim;
use crate::heap::open_scopes::OpenScopes;
use crate::heap::reclaimers::{Reclaimer, Reclaimers};
use crate::heap::registrations::Registrations;
use crate::heap::staging::Staging;
use crate::heap::store::{Store, policy_and_source};
use crate::heap::usage::Usage;
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::logging;
use crate::measure;
use crate::size::Bytes;
use crate::stream::Stream;
use crate::total_limit::TotalLimit;
use crate::track::Tracker;

/// The memory of one device, allocated and freed in stream order.
///
/// ```text
/// Block ─► Heap ─► thread caches: blocks that each thread freed and keeps
///            │        └► policy: none | simple | binned | split | stitched | driver
///            │             └► source: driver calls (plain, virtual memory, stream-ordered)
///            ├─ order       which stream may reuse which memory, after which fence
///            ├─ stats       bytes handed out, taken, given back
///            ├─ limits      soft (give back above it) and hard (never exceed)
///            └─ reclaimers  callbacks that others registered
/// ```
///
/// Cheap to clone; clones are the same heap. A heap may be used from any thread. Its metadata lives
/// on the host. When the last clone and the last block are dropped, all memory returns to the
/// driver.
///
/// A host callback of a stream (`cuLaunchHostFunc`) must neither allocate nor free. The driver
/// forbids calls of its functions there, and the heap may be waiting for that very stream while it
/// holds its own lock.
#[derive(Clone)]
pub struct Heap {
    clones: Arc<Clones>,
}

/// Count of a heap's clones. When the last clone is dropped, the heap closes.
struct Clones {
    inner: Arc<HeapInner>,
}

impl Drop for Clones {
    fn drop(&mut self) {
        self.inner.close();
        self.inner.log_closed();
    }
}

/// State that a heap's clones, blocks and arrays share. The state ends with the last of these
/// objects.
pub(crate) struct HeapInner {
    pub(crate) context: Arc<Context>,
    pool: PoolKind,
    /// Limit, in bytes, of a thread's cache for a stream; `None` if threads have no caches.
    thread_cache: Option<u64>,
    /// The heap's clones, while there are any.
    clones: Mutex<Weak<Clones>>,
    /// `true` once the last clone was dropped.
    closing: AtomicBool,
    /// Reason why `pool` differs from the requested pool, if it does.
    fallback: Option<Fallback>,
    /// Warnings about the environment in which the heap was built.
    warnings: &'static [String],
    device: Store,
    /// Store of a kind of memory, made at the first request for that kind.
    unified: OnceLock<Store>,
    pinned: OnceLock<Store>,
    /// Stream of targets that were made without a stream. The first such target makes it.
    stream: OnceLock<Stream>,
    pub(crate) staging: Staging,
    /// Stream on which staging memory is allocated. No work is enqueued on it. The first large copy
    /// makes it.
    staging_stream: OnceLock<Stream>,
    pinned_limit: Option<u64>,
    registered: Registrations,
    reclaimers: Arc<Reclaimers>,
    pub(crate) zero_on_free: bool,
    zero_on_alloc: bool,
    tracker: Arc<Tracker>,
    /// Thread that gives back cached memory while the heap is idle; unset unless the builder
    /// requested it.
    idle: OnceLock<IdleTrim>,
    /// Handle that publishes the heap to other processes, or the reason why the heap is not
    /// published. Unset unless the builder or the environment requested it.
    publication: OnceLock<Result<(Access, Membership), Error>>,
    /// Open scopes that other processes can query. Empty if the heap is not published.
    scopes: OpenScopes,
    /// Read-locked while a thread uses the heap without a clone, to reclaim memory for another
    /// heap's request or to answer another process. [`Heap::close`] waits for such threads.
    pub(crate) visits: Arc<RwLock<()>>,
}

impl Heap {
    /// Returns how the heap uses the device's memory. If the heap is above its soft limit, the call
    /// first gives back unused cached memory.
    ///
    /// # Errors
    ///
    /// A driver error, if the driver is queried.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.inner().context.check_alive()?;
        self.inner().device.usage()
    }

    /// Returns how the heap uses one kind of memory. Device, unified and pinned memory have a pool
    /// each. Registered memory belongs to the program, so all of it is live. If the heap is above
    /// its soft limit, the call first gives back unused cached memory.
    ///
    /// # Errors
    ///
    /// A driver error, if the driver is queried.
    pub fn usage_of(&self, kind: MemoryKind) -> Result<Usage, Error> {
        self.inner().context.check_alive()?;
        match kind {
            MemoryKind::Registered => Ok(self.inner().registered.usage()),
            kind => self.store(kind).usage(),
        }
    }

    /// Gives back at least `bytes` of cached device memory to the driver, or all of it if the pool
    /// has less. Waits for frees in flight. Returns the number of bytes given back.
    ///
    /// The heap chooses the smallest unused segment that covers the remaining bytes, or else the
    /// largest segment. It thus gives back few segments and little more than `bytes`. With
    /// `stitched`, segments are chunks of 2 MiB and more. A `driver` pool gives back all that it
    /// can. [`flush`](Heap::flush) empties the pools of every kind of memory.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.inner().context.check_alive()?;
        self.inner().device.reclaim(bytes)
    }

    /// Gives back all cached device memory to the driver. Waits for frees in flight. Returns the
    /// number of bytes given back. [`flush`](Heap::flush) also empties the pools of the other kinds
    /// of memory.
    ///
    /// # Errors
    ///
    /// A driver error.
    #[doc(alias = "empty_cache")]
    pub fn reclaim_all(&self) -> Result<u64, Error> {
        self.reclaim(u64::MAX)
    }

    /// Changes the limits, waits for frees in flight, and gives back cached memory above the new
    /// limits. Returns the bytes given back.
    ///
    /// Live memory stays: a heap above its limit serves requests from its cache and takes no more
    /// memory. A hard limit below the bytes that the pool takes at a time has the same effect;
    /// [`build`](crate::HeapBuilder::build) refuses such a limit.
    ///
    /// # Errors
    ///
    /// The soft limit is above the hard limit; the hard limit of a `driver` heap is above the limit
    /// that its pool was built with (build a new heap instead). In these cases nothing changes. A
    /// driver error; even then, the new limits may be in force.
    pub fn set_limits(&self, limits: Limits) -> Result<u64, Error> {
        self.inner().context.check_alive()?;
        limits::check(limits)?;
        self.inner().device.set_limits(limits)
    }

    /// Returns the limits in force. Once the device's context has ended, returns no limits.
    pub fn limits(&self) -> Limits {
        if self.inner().context.check_alive().is_err() {
            return Limits::default();
        }
        self.inner().device.lock().limits
    }

    /// Returns the limit that the heap shares with other heaps, if it has one.
    pub fn total_limit(&self) -> Option<TotalLimit> {
        self.inner().device.total.clone()
    }

    /// Returns the pool in use.
    pub fn pool(&self) -> PoolKind {
        self.inner().pool
    }

    /// Returns `true` if `address` is the start of a piece of device memory that the heap took from
    /// the driver with `cuMemAlloc`. `cuMemFree(address)` would free that piece while the heap
    /// still uses it. Libraries that pass frees on to the driver check this first.
    pub fn holds(&self, address: u64) -> bool {
        self.check_alive().is_ok() && self.inner().device.lock().source.holds(address)
    }

    /// Announces the end of a [foreign stream](crate::Device::foreign_stream). Call it before the
    /// stream is destroyed, on each heap that the stream was used with. The heap no longer uses the
    /// driver's handle afterwards. Memory freed on the stream is reused once the stream has reached
    /// the free. Does not wait for the device.
    ///
    /// The [`Stream`] and its clones [refuse](Stream::is_retired) work from now on, so that no work
    /// follows this call. Blocks and arrays made on the stream stay valid: they can be freed, and
    /// used on other streams.
    ///
    /// An [unannounced](crate::Device::unannounced_stream) stream may have ended before this call,
    /// so no event marks its end. Memory freed on such a stream after this call is reused only
    /// after a wait for the whole device. That wait is made by
    /// [`Device::synchronize`](crate::Device::synchronize), [`reclaim`](Heap::reclaim),
    /// [`flush`](Heap::flush), or a request that would otherwise fail. While one of the streams
    /// known to the heap is capturing a graph, the heap itself does not wait for the device.
    ///
    /// For all other streams this call does nothing, because a heap notices their end by itself.
    ///
    /// # Errors
    ///
    /// The stream is of another device, or is capturing a graph; then nothing changes. A driver
    /// error: the heap then still needs the stream, so the stream has to live until a later call
    /// succeeds.
    pub fn retire(&self, stream: &Stream) -> Result<(), Error> {
        self.check_alive()?;
        self.inner().device.check_stream(stream)?;
        if !stream.is_foreign() {
            return Ok(());
        }
        if stream.is_of_capture() {
            return self.retire_after_capture(stream);
        }
        self.inner().stores().try_for_each(|store| store.retire(stream))?;
        if stream.is_announced() {
            self.inner().context.captures.retire(Some(stream.stored_handle()));
        }
        Ok(())
    }

    /// Announces the end of a stream that has no [`Stream`], because it was used only in a
    /// [capture](Stream#a-stream-that-is-first-seen-in-a-capture). Blocks that were allocated on it
    /// can be freed afterwards. Their memory is reused after a wait for the whole device. Makes no
    /// driver call.
    pub fn retire_captured(&self, raw: CUstream) {
        // This check comes before any lock: in a forked child, a thread of the parent may have held
        // that lock.
        if self.check_alive().is_err() {
            return;
        }
        self.inner().context.captures.retire(Some(StreamHandle(raw.0)));
    }

    /// Retires a stream that was first seen in a capture, after the end of that capture.
    fn retire_after_capture(&self, stream: &Stream) -> Result<(), Error> {
        if stream.is_retired() {
            return Ok(());
        }
        let renamed = stream.renamed()?;
        renamed.refuse_capturing()?;
        self.retire(&renamed)?;
        stream.retire()
    }

    /// Retires all foreign streams. Does not use their handles, but waits for all work of the
    /// device. Call it at the end of a program if these streams may have ended already
    /// ([`Device::foreign_stream`](crate::Device::foreign_stream) has the cases). Their [`Stream`]s
    /// refuse work, as after [`retire`](Heap::retire); blocks stay valid and can be freed. The wait
    /// breaks a capture of a graph on any stream of the device.
    ///
    /// # Errors
    ///
    /// An error of the work on the device; a driver error. Even then, the streams are retired.
    /// Memory freed on them is then kept until a wait for the device succeeds.
    pub fn retire_all(&self) -> Result<(), Error> {
        self.check_alive()?;
        // Tries every store before it returns the first error.
        let retired = self.inner().stores().map(Store::retire_foreign).fold(Ok(()), Result::and);
        self.inner().context.captures.retire(None);
        retired
    }

    /// Returns an error if the heap cannot be used. A library with its own lock around a heap calls
    /// this before it takes that lock. In a forked child, another thread of the parent may have
    /// held the lock. The check costs two loads.
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset.
    #[inline]
    pub fn check_alive(&self) -> Result<(), Error> {
        Ok(self.inner().context.check_alive()?)
    }

    /// Registers a reclaimer: a function that gives back memory when this heap is short of memory.
    /// The heap calls the function with a number of bytes, without a lock held. The function
    /// returns the bytes that it gave back. The registration ends when the returned handle is
    /// dropped.
    ///
    /// The reclaimer may use the heap. While it does, the heap does not call it again. If the
    /// reclaimer uses another heap, that heap may call its own reclaimers. A panic of the
    /// reclaimer, or of its drop, is caught.
    ///
    /// When another heap of the device is short of memory, this heap gives back its cached memory
    /// without calling its reclaimers. The requesting thread may hold a lock that these reclaimers
    /// need.
    pub fn register_reclaimer(
        &self,
        reclaimer: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Reclaimer {
        self.inner().reclaimers.register(reclaimer)
    }

    /// Returns the heap's own stream, made at the first call.
    pub(crate) fn own_stream(&self) -> Result<&Stream, Error> {
        self.check_alive()?;
        self.stream_in(&self.inner().stream)
    }

    /// Logs the opened heap and its settings.
    pub(crate) fn log_opened(&self) {
        self.inner().warn_unpublished();
        if !logging::is_wanted() {
            return;
        }
        let inner = self.inner();
        let limit = |bytes: Option<u64>| bytes.map_or("none".to_owned(), |b| Bytes(b).to_string());
        let Limits { soft, hard } = self.limits();
        if let Some(fallback) = &inner.fallback {
            logging::debug(logging::HEAP, format_args!("pool on {}: {fallback}", inner.context));
        }
        logging::debug(
            logging::HEAP,
            format_args!(
                "opened a {} heap on {}; soft limit {}, hard limit {}, tracking {}",
                inner.pool,
                inner.context,
                limit(soft),
                limit(hard),
                self.tracking()
            ),
        );
    }

    fn stream_in<'a>(&self, slot: &'a OnceLock<Stream>) -> Result<&'a Stream, Error> {
        if let Some(stream) = slot.get() {
            return Ok(stream);
        }
        let stream = Stream::new(self.inner().context.clone())?;
        Ok(slot.get_or_init(|| stream))
    }

    /// Records an event on each stream on which memory of a kind was freed. A stream that reuses
    /// freed memory then waits for the event, and not for later work.
    pub(crate) fn fence(&self, kind: MemoryKind) {
        if self.inner().context.check_alive().is_ok() {
            // If this fails, the next request for a block records the missing events.
            let _ = self.store(kind).lock().fence();
        }
    }

    /// Returns the bytes of a kind of memory that the limit and the device still allow. Counts all
    /// cached memory as given back, also in other heaps of this process.
    pub(crate) fn room(&self, kind: MemoryKind) -> Result<u64, Error> {
        self.inner().check_kind(kind)?;
        let store = self.store(kind);
        // Called before this heap is locked: the call locks other heaps, so threads could deadlock.
        let others = store.others();
        Ok(store.lock().room(others)?)
    }

    pub(crate) fn staging_stream(&self) -> Result<&Stream, Error> {
        self.inner().context.check_alive()?;
        self.stream_in(&self.inner().staging_stream)
    }

    /// Allocates pinned memory to stage a copy, without waiting and without reclaim steps. Returns
    /// `None` if the pool has no memory for it; the copy is then made without staging memory. Free
    /// the lease with [`HeapInner::free`].
    pub(crate) fn staging_lease(&self, bytes: u64, stream: &Stream) -> Option<Lease> {
        self.inner().context.check_alive().ok()?;
        let _time = measure::memory_management();
        self.store(MemoryKind::Pinned).allocate_if_there(bytes, stream)
    }

    /// Returns `true` in a forked child, in which another thread of the parent may have held a
    /// lock.
    pub(crate) fn is_forked(&self) -> bool {
        self.inner().context.check_alive() == Err(Gone::Forked)
    }

    /// Allocates memory of a kind for the line `at` of the program, and counts it in the
    /// statistics.
    pub(crate) fn lease(
        &self,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        at: Caller,
    ) -> Result<Lease, Error> {
        self.inner().check_kind(kind)?;
        Ok(self.inner().allocate(kind, bytes, stream, zeroed, at)?.0)
    }

    /// Frees a lease in the order of `stream`, or of the lease's own stream if `stream` is `None`.
    pub(crate) fn free(
        &self,
        kind: MemoryKind,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
    ) -> Result<(), Error> {
        self.inner().free(kind, lease, stream, zeroed)
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<HeapInner> {
        &self.clones.inner
    }

    #[cfg(test)]
    pub(crate) fn streams(&self) -> usize {
        self.inner().device.lock().order.slot_count()
    }

    /// Waits for a lease's last use and returns its memory to the driver. Returns the bytes
    /// regained.
    pub(crate) fn release(
        &self,
        kind: MemoryKind,
        lease: Lease,
        stream: &Stream,
        zeroed: bool,
    ) -> Result<u64, Error> {
        self.inner().check_alive_for(lease)?;
        let _time = measure::memory_management();
        self.inner().untrack(lease.track, Some(stream.id()));
        let renamed = self.inner().rename(kind, lease, Some(stream));
        if let Some(renamed) = &renamed {
            renamed.note_freed();
        }
        let lease = renamed.as_ref().map_or(lease, |renamed| renamed.lease);
        let stream = renamed.as_ref().and_then(|renamed| renamed.stream.as_ref()).unwrap_or(stream);
        self.store(kind).release_lease(lease, stream, zeroed || self.inner().zero_on_free)
    }

    /// Waits until the host may access memory of a kind. The last use of the memory is on `stream`.
    /// After success, [`end_host_use`](Heap::end_host_use) has to follow.
    pub(crate) fn begin_host_use(&self, kind: MemoryKind, stream: &Stream) -> Result<(), Error> {
        let context = &self.inner().context;
        if kind != MemoryKind::Unified || !context.gate.begin_borrow() {
            return stream.synchronize();
        }
        // The host may not access managed memory while any work runs.
        let idle = context.synchronize().map_err(Error::from).and_then(|()| stream.synchronize());
        idle.inspect_err(|_| context.gate.end_borrow())
    }

    pub(crate) fn end_host_use(&self, kind: MemoryKind) {
        if kind == MemoryKind::Unified {
            self.inner().context.gate.end_borrow();
        }
    }

    /// Reports the separately used parts of a block to an emulated device, so that it can check
    /// them. Each part is an address and a size in bytes.
    pub(crate) fn note_parts(&self, parts: impl Iterator<Item = (u64, u64)>) {
        let context = &self.inner().context;
        let Some(checks) = context.block_checks() else { return };
        for (address, bytes) in parts {
            let context = context.raw();
            let stream = CUstream::NULL;
            let part = BlockNote { context, address, bytes, room: bytes, stream };
            checks.note(BlockEvent::Divided, &part);
        }
    }

    pub(crate) fn store(&self, kind: MemoryKind) -> &Store {
        self.inner().store(kind)
    }

    /// Makes a clone of a heap, even if only blocks keep the heap alive.
    pub(crate) fn from_inner(inner: Arc<HeapInner>) -> Heap {
        let mut known = inner.lock_clones();
        if let Some(clones) = known.upgrade() {
            return Heap { clones };
        }
        let clones = Arc::new(Clones { inner: inner.clone() });
        *known = Arc::downgrade(&clones);
        inner.closing.store(false, Ordering::Relaxed);
        drop(known);
        Heap { clones }
    }
}

impl HeapInner {
    /// Returns `true` if blocks are not filled, tracked or recorded.
    pub(crate) fn is_plain(&self) -> bool {
        let fills = self.zero_on_free || self.zero_on_alloc;
        !fills && self.context.block_checks().is_none() && !self.tracker.is_on()
    }

    /// Returns an error if the heap cannot allocate a kind of memory: the kind is registered
    /// memory, the device does not support the kind, or the heap cannot be used.
    pub(crate) fn check_kind(&self, kind: MemoryKind) -> Result<(), Error> {
        self.context.check_alive()?;
        kind.check(self.context.info())
    }

    /// Returns `true` once the last clone was dropped.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Closes the heap after its last clone was dropped, so no request can follow. Threads cache
    /// nothing from here on. The heap ends with its last block.
    pub(crate) fn close(&self) {
        // A forked child does not wait for the lock: another thread of the parent may have held it.
        if self.context.check_alive() != Err(Gone::Forked) {
            self.end_if_over();
        }
    }

    /// Logs that the heap's last clone was dropped, with the statistics of device memory.
    pub(crate) fn log_closed(&self) {
        if logging::is_wanted() && self.context.check_alive() != Err(Gone::Forked) {
            let stats = self.device.lock().stats();
            logging::debug(
                logging::HEAP,
                format_args!(
                    "closed a {} heap on {}; {} allocations, {} frees, {} live, peak of live {}",
                    self.pool,
                    self.context,
                    stats.allocations,
                    stats.frees,
                    Bytes(stats.live),
                    Bytes(stats.live_peak)
                ),
            );
        }
    }

    /// If the heap has neither clones nor blocks, detaches the caches that keep the heap alive.
    #[cold]
    pub(crate) fn end_if_over(&self) {
        // Holds this lock to the end, so that no other thread makes a clone of the heap meanwhile.
        let clones = self.lock_clones();
        let has_ended = clones.strong_count() == 0;
        self.closing.store(has_ended, Ordering::Relaxed);
        let mut gone = Vec::new();
        // After a reset no block can be freed.
        if has_ended && self.context.check_alive() == Err(Gone::Reset) {
            gone = detach_caches(self, true);
        } else if has_ended {
            for store in self.stores() {
                store.lock().close(|_| true);
            }
            let is_over = |store: &Store| {
                let state = store.lock();
                // These allocations count as live, but no block holds them.
                let unowned = state.unzeroed.len() as u64 + state.lost;
                state.stats.live_allocations == unowned
            };
            if self.stores().all(is_over) {
                gone = detach_caches(self, false);
            }
        }
        drop(clones);
        // Drops this without the lock, because dropping the last reference ends the heap.
        drop(gone);
    }

    fn lock_clones(&self) -> std::sync::MutexGuard<'_, Weak<Clones>> {
        self.clones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to an error the lines that hold the most memory, if allocations are tracked.
    #[cold]
    fn with_consumers(&self, error: Error) -> Error {
        error.with_consumers(|kind| self.tracker.consumers(kind))
    }

    /// Returns the store of a kind of memory. Registered memory is not pooled, and has the store of
    /// pinned memory.
    pub(crate) fn store(&self, kind: MemoryKind) -> &Store {
        let (slot, limit) = match kind {
            MemoryKind::Device => return &self.device,
            MemoryKind::Unified => (&self.unified, None),
            MemoryKind::Pinned | MemoryKind::Registered => (&self.pinned, self.pinned_limit),
        };
        slot.get_or_init(|| {
            let limits = Limits { soft: None, hard: limit };
            let (pool, parts) =
                policy_and_source(&self.context, kind, self.pool, Tuning::default(), None);
            let (context, reclaimers) = (self.context.clone(), self.reclaimers.clone());
            let cache_limit = self.thread_cache;
            Store::new(context, kind, pool, limits, cache_limit, reclaimers, parts)
        })
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heap ({})", self.inner().pool)
    }
}
