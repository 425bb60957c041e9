//! The heap of one device.

pub(crate) mod block;
pub(crate) mod builder;
pub(crate) mod climb;
mod fallback;
pub(crate) mod fit;
pub(crate) mod flush;
pub(crate) mod idle;
pub(crate) mod ladder;
pub(crate) mod leaks;
pub(crate) mod limits;
mod notes;
pub(crate) mod reclaimers;
pub(crate) mod region;
pub(crate) mod registrations;
pub(crate) mod retry;
pub(crate) mod siblings;
pub(crate) mod staging;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod usage;

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use gpuheap_driver::{BlockNote, CUdevice, CUstream};
use gpuheap_pool::{Gone, Limits, PoolKind, SourceError, Tuning};

use crate::device::{Context, Device};
use crate::error::Error;
use crate::front::{self, Handle, ThreadCache};
use crate::heap::block::Block;
use crate::heap::builder::{HeapBuilder, policy_and_source};
use crate::heap::fallback::Fallback;
use crate::heap::idle::IdleTrim;
use crate::heap::reclaimers::{Reclaimer, Reclaimers};
use crate::heap::registrations::Registrations;
use crate::heap::staging::Staging;
use crate::heap::store::{FreeOn, Lease, Store};
use crate::heap::usage::Usage;
use crate::kind::MemoryKind;
use crate::measure;
use crate::say;
use crate::settings;
use crate::size::Bytes;
use crate::stream::Stream;
use crate::track::{TrackId, Tracker, Tracking};

/// The memory of one device, handed out in stream order.
///
/// ```text
/// Block ─► Heap ─► front: what each thread keeps of what it freed
///            │        └► policy: none | simple | binned | split | stitched | driver
///            │             └► source: driver calls (plain, virtual memory, stream-ordered)
///            ├─ order       which stream may reuse what, and behind which fence
///            ├─ stats       bytes handed out, taken, given back
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
    handle: Arc<Handle>,
}

/// What clones of a heap, its blocks and its arrays share.
pub(crate) struct Inner {
    pub(crate) context: Arc<Context>,
    pool: PoolKind,
    /// Bytes that a thread may keep for a stream of what it freed; none where threads keep nothing.
    thread_cache: Option<u64>,
    /// What the handles of the heap hold, while there are any.
    handle: Mutex<Weak<Handle>>,
    /// There are none.
    closing: AtomicBool,
    /// Why that is not the one that was asked for.
    fallback: Option<Fallback>,
    /// Warnings about the environment that the heap was built by.
    warnings: &'static [String],
    device: Store,
    /// Made when the first memory of their kind is asked for.
    unified: OnceLock<Store>,
    pinned: OnceLock<Store>,
    /// Made when a target is first asked for without one.
    stream: OnceLock<Stream>,
    staging: Staging,
    /// What staging memory is allocated on: never given work. Made at the first large copy.
    staging_stream: OnceLock<Stream>,
    pinned_limit: Option<u64>,
    registered: Registrations,
    reclaimers: Arc<Reclaimers>,
    zero_on_free: bool,
    zero_on_alloc: bool,
    tracker: Arc<Tracker>,
    /// The thread that gives cached memory back when nothing happens, where there is to be one.
    idle: OnceLock<IdleTrim>,
    /// Shared by threads that hold the heap for a moment on behalf of another one.
    pub(crate) visits: Arc<RwLock<()>>,
}

impl Heap {
    /// A heap as the environment says, by default with the policy `stitched` and no limits.
    ///
    /// # Errors
    ///
    /// The errors of [`build`](HeapBuilder::build).
    pub fn new(device: &Device) -> Result<Heap, Error> {
        Heap::builder(device).build()
    }

    /// Chooses policy, limits and the rest.
    pub fn builder(device: &Device) -> HeapBuilder {
        HeapBuilder::new(device)
    }

    /// Memory for use on `stream` from this point of it on. A request that the cache serves does not
    /// wait for the device; one that takes memory from the driver may, because giving unused
    /// segments back for it does (`cuMemFree`). Where memory is short it climbs the ladder
    /// ([`Step`](crate::Step)) before it gives up: it waits for frees in flight, those of other heaps
    /// of this process on the device included, and has them give cached memory back.
    ///
    /// # Errors
    ///
    /// [Out of memory](Error::out_of_memory), a stream of another device, or a driver call that
    /// failed for another reason. The account is then as it was.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: &Stream) -> Result<Block, Error> {
        Block::allocate(self.handle.inner(), bytes, stream, Location::caller())
    }

    /// What the heap holds of the device's memory.
    ///
    /// # Errors
    ///
    /// A driver error, where it is asked.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.handle.context.check_alive()?;
        self.handle.device.usage()
    }

    /// The same for one kind of memory: device memory, and unified and pinned memory, each with a
    /// pool of its own. Registered memory is the program's, so all of it is live.
    ///
    /// # Errors
    ///
    /// A driver error, where it is asked.
    pub fn usage_of(&self, kind: MemoryKind) -> Result<Usage, Error> {
        self.handle.context.check_alive()?;
        match kind {
            MemoryKind::Registered => Ok(self.handle.registered.usage()),
            kind => self.store(kind).usage(),
        }
    }

    /// Gives cached memory of the device back to the driver until at least `bytes` went, in few pieces
    /// and little more than asked for: the smallest unused segment that covers what is left, else the
    /// largest. With `stitched` the segments are chunks of 2 MiB and more. A `driver` pool gives back
    /// all that it can. [`flush`](Heap::flush) does so with every kind. Waits for frees in flight. Returns the
    /// bytes of the frees that succeeded, which is less where less was cached.
    ///
    /// # Errors
    ///
    /// A driver error.
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.handle.context.check_alive()?;
        self.handle.device.reclaim(bytes)
    }

    /// The same with everything that is cached of the device's memory; [`flush`](Heap::flush) empties
    /// the pools of the other kinds too.
    ///
    /// # Errors
    ///
    /// A driver error.
    #[doc(alias = "empty_cache")]
    pub fn reclaim_all(&self) -> Result<u64, Error> {
        self.reclaim(u64::MAX)
    }

    /// Changes the limits, and gives cached memory above the new ones back, for which it waits for
    /// frees in flight. What is live stays: a heap above its limit serves requests from its cache
    /// and takes nothing more. So does one whose hard limit is below what its pool takes at a time,
    /// which [`build`](HeapBuilder::build) refuses. Returns the bytes that went back.
    ///
    /// # Errors
    ///
    /// A soft limit above the hard one, and a hard limit above the one that a `driver` heap was
    /// built with, to which the driver holds its pool: a new heap can have it. Neither changes
    /// anything. A driver error; the limits may hold all the same.
    pub fn set_limits(&self, limits: Limits) -> Result<u64, Error> {
        self.handle.context.check_alive()?;
        limits::check(limits)?;
        self.handle.device.set_limits(limits)
    }

    /// The limits in force; none once the device is gone.
    pub fn limits(&self) -> Limits {
        if self.handle.context.check_alive().is_err() {
            return Limits::default();
        }
        self.handle.device.lock().limits
    }

    /// The policy.
    pub fn pool(&self) -> PoolKind {
        self.handle.pool
    }

    /// Lets go of a stream that somebody else [made](Device::foreign_stream) and is about to end. To be
    /// called before the stream is destroyed; afterwards the heap does not touch its handle any more,
    /// and what was freed on it is handed out again once the stream got there. Does not wait for the
    /// device.
    ///
    /// The [`Stream`] and its clones [refuse](Stream::is_retired) work from now on, so that nothing
    /// comes after this. Blocks and arrays that were made on it may live on, be freed as ever, and be
    /// used on other streams. Each heap that the stream was used with is told.
    ///
    /// An [unannounced](Device::unannounced_stream) stream may be gone by then, so no event marks its
    /// end. If memory is freed on it after this call, the heap hands it out once the whole device was
    /// waited for since the free: by [`Device::synchronize`], by [`reclaim`](Heap::reclaim) or
    /// [`flush`](Heap::flush), or by a request that would fail otherwise. The heap itself does not wait
    /// for the device while one of the streams that it knows captures a graph.
    ///
    /// Of all other streams a heap learns by itself when they end, and this does nothing.
    ///
    /// # Errors
    ///
    /// A stream of another device, and one that is capturing a graph: neither changes anything. A
    /// driver error: the heap then still needs the stream, which has to live until another call
    /// succeeds.
    pub fn retire(&self, stream: &Stream) -> Result<(), Error> {
        self.check_alive()?;
        self.check_device(stream)?;
        if !stream.is_foreign() {
            return Ok(());
        }
        self.handle.stores().try_for_each(|store| store.retire(stream))
    }

    /// Lets go of all streams that others made, without touching their handles: it waits for all work of
    /// the device instead. For the end of a program, where they may be gone already
    /// ([`Device::foreign_stream`] says when). Their [`Stream`]s refuse work as after
    /// [`retire`](Heap::retire), and blocks may live on and be freed. The wait breaks a capture of a
    /// graph that a stream of the device is at.
    ///
    /// # Errors
    ///
    /// What the device's work failed with, or a driver error. The streams are let go of all the
    /// same, and what was freed on them is then kept until the device was waited for.
    pub fn retire_all(&self) -> Result<(), Error> {
        self.check_alive()?;
        // Each store before the first error is returned.
        self.handle.stores().map(Store::retire_foreign).fold(Ok(()), Result::and)
    }

    /// Refuses a heap that cannot be used. For a library that has locks of its own around a heap:
    /// in a forked child it must take none, for another thread of the parent may have held it. Two
    /// loads.
    ///
    /// # Errors
    ///
    /// A forked child; a device that was reset.
    #[inline]
    pub fn check_alive(&self) -> Result<(), Error> {
        Ok(self.handle.context.check_alive()?)
    }

    /// Registers something that can give memory back: it is asked for a number of bytes when this
    /// heap is short, with no lock held, and says how many it gave back. It may use the heap, but is
    /// not asked again while it does; another heap that it uses asks its own reclaimers. A panic of the
    /// reclaimer, or of what it captured, ends there. It stays registered while the handle lives.
    ///
    /// When another heap of the device is short, this one gives back what it has cached, but its
    /// reclaimers are not asked: their locks may be ones that a thread of the other heap holds.
    pub fn register_reclaimer(
        &self,
        reclaimer: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Reclaimer {
        self.handle.reclaimers.register(reclaimer)
    }

    /// The heap's own stream, made at the first call.
    pub(crate) fn own_stream(&self) -> Result<&Stream, Error> {
        self.check_alive()?;
        self.stream_in(&self.handle.stream)
    }

    /// Logs that the heap is there, and how it is set.
    pub(crate) fn say_opened(&self) {
        if !say::is_wanted() {
            return;
        }
        let inner = &*self.handle;
        let limit = |bytes: Option<u64>| bytes.map_or("none".to_owned(), |b| Bytes(b).to_string());
        let Limits { soft, hard } = self.limits();
        if let Some(fallback) = &inner.fallback {
            say::debug(say::HEAP, format_args!("pool on {}: {fallback}", inner.context));
        }
        say::debug(
            say::HEAP,
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
        let stream = Stream::new(self.handle.context.clone())?;
        Ok(slot.get_or_init(|| stream))
    }

    /// Marks how far the streams with frees of a kind have got, so that who wants their blocks on
    /// another stream waits for these frees and not for what comes after them.
    pub(crate) fn fence(&self, kind: MemoryKind) {
        if self.handle.context.check_alive().is_ok() {
            // What fails here is tried again when a block is wanted.
            let _ = self.store(kind).lock().fence();
        }
    }

    /// Bytes that may still be handed out of a kind of memory: as many as limit and device leave with
    /// cached memory given back, that of other heaps of this process included.
    pub(crate) fn room(&self, kind: MemoryKind) -> Result<u64, Error> {
        self.handle.context.check_alive()?;
        kind.check(self.handle.context.info())?;
        let store = self.store(kind);
        // Before the lock: it visits the other heaps.
        let others = store.others();
        Ok(store.lock().room(others)?)
    }

    pub(crate) fn staging(&self) -> Staging {
        self.handle.staging
    }

    /// What staging memory is allocated on.
    pub(crate) fn staging_stream(&self) -> Result<&Stream, Error> {
        self.handle.context.check_alive()?;
        self.stream_in(&self.handle.staging_stream)
    }

    /// Pinned memory for a copy that is made without it where there is none: nothing is waited for
    /// or asked to give way. [`free_staging`](Heap::free_staging) takes it back.
    pub(crate) fn staging_lease(&self, bytes: u64, stream: &Stream) -> Option<Lease> {
        self.handle.context.check_alive().ok()?;
        let _time = measure::memory_management();
        self.store(MemoryKind::Pinned).allocate_if_there(bytes, stream)
    }

    /// Takes memory for a copy back in the order of `stream`, else of its own. It is no allocation of the
    /// thread's, and no free.
    pub(crate) fn free_staging(
        &self,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
    ) -> Result<(), Error> {
        self.handle.inner().free(MemoryKind::Pinned, lease, stream, zeroed)
    }

    /// Returns `true` if this is a forked child, in which another thread of the parent may have
    /// held a lock.
    pub(crate) fn is_forked(&self) -> bool {
        self.handle.context.check_alive() == Err(Gone::Forked)
    }

    pub(crate) fn is_same(&self, other: &Heap) -> bool {
        Arc::ptr_eq(self.handle.inner(), other.handle.inner())
    }

    /// Memory of a kind, accounted for, which the program asked for at `at`.
    pub(crate) fn lease(
        &self,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        at: &'static Location<'static>,
    ) -> Result<Lease, Error> {
        Ok(self.handle.inner().lease(kind, bytes, stream, zeroed, at)?.0)
    }

    /// Takes a lease back in the order of `stream`, else of its own.
    pub(crate) fn free(
        &self,
        kind: MemoryKind,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
    ) -> Result<(), Error> {
        measure::note_freed(lease.bytes);
        self.handle.inner().free(kind, lease, stream, zeroed)
    }

    /// Counts memory that could not be given back, and stays accounted as live.
    pub(crate) fn note_failed_free(&self, kind: MemoryKind) {
        self.handle.note_failed_free(kind);
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        self.handle.inner()
    }

    #[cfg(test)]
    pub(crate) fn streams(&self) -> usize {
        self.handle.device.lock().order.places()
    }

    /// Waits for a lease's last use and gives its memory back to the driver: the bytes regained.
    pub(crate) fn release(
        &self,
        kind: MemoryKind,
        lease: Lease,
        stream: &Stream,
        zeroed: bool,
    ) -> Result<u64, Error> {
        self.handle.check_alive_for(lease)?;
        let _time = measure::memory_management();
        measure::note_freed(lease.bytes);
        self.untrack(lease.track);
        self.store(kind).release_lease(lease, stream, zeroed || self.handle.zero_on_free)
    }

    /// Waits until the host may touch memory of a kind whose last use is on `stream`. Where that
    /// works, [`end_host_use`](Heap::end_host_use) comes later.
    pub(crate) fn begin_host_use(&self, kind: MemoryKind, stream: &Stream) -> Result<(), Error> {
        let context = &self.handle.context;
        if kind != MemoryKind::Unified || !context.gate.begin_borrow() {
            return stream.synchronize();
        }
        // The host may touch no managed memory while anything runs.
        let idle = context.synchronize().map_err(Error::from).and_then(|()| stream.synchronize());
        idle.inspect_err(|_| context.gate.end_borrow())
    }

    pub(crate) fn end_host_use(&self, kind: MemoryKind) {
        if kind == MemoryKind::Unified {
            self.handle.context.gate.end_borrow();
        }
    }

    /// Page-locks memory with `register`, and where the driver locks no more, climbs the ladder
    /// over the pinned memory.
    pub(crate) fn pin(
        &self,
        bytes: u64,
        stream: &Stream,
        register: impl FnMut() -> Result<(), SourceError>,
    ) -> Result<(), Error> {
        let pinned = self.store(MemoryKind::Pinned).climb_with(bytes, stream, register);
        pinned.map_err(|error| self.handle.with_consumers(error))
    }

    /// Remembers an allocation, where they are tracked.
    pub(crate) fn track(
        &self,
        address: u64,
        bytes: u64,
        kind: MemoryKind,
        at: &'static Location<'static>,
    ) -> Option<TrackId> {
        self.handle.tracker.allocated(address, bytes, kind, at)
    }

    /// Tells an emulated device's checks of the parts of a block that are used on their own: their
    /// addresses and bytes.
    pub(crate) fn note_parts(&self, parts: impl Iterator<Item = (u64, u64)>) {
        let context = &self.handle.context;
        let Some(checks) = context.block_checks() else { return };
        for (address, bytes) in parts {
            let context = context.raw();
            let stream = CUstream::NULL;
            checks.divided(&BlockNote { context, address, bytes, room: bytes, stream });
        }
    }

    pub(crate) fn untrack(&self, track: Option<TrackId>) {
        self.handle.untrack(track);
    }

    /// The account of registered memory.
    pub(crate) fn registered(&self) -> &Registrations {
        &self.handle.registered
    }

    pub(crate) fn zeroes_on_free(&self) -> bool {
        self.handle.zero_on_free
    }

    /// Returns `true` if the device's memory is a stream-ordered pool's.
    pub(crate) fn is_stream_ordered(&self) -> bool {
        self.handle.pool == PoolKind::Driver
    }

    pub(crate) fn check_device(&self, stream: &Stream) -> Result<(), Error> {
        self.handle.device.check_device(stream)
    }

    pub(crate) fn store(&self, kind: MemoryKind) -> &Store {
        self.handle.store(kind)
    }

    /// A handle of a heap that may have none left.
    pub(crate) fn of(inner: Arc<Inner>) -> Heap {
        let mut handle = inner.lock_handle();
        if let Some(handle) = handle.upgrade() {
            return Heap { handle };
        }
        let new = Arc::new(Handle::new(inner.clone()));
        *handle = Arc::downgrade(&new);
        inner.closing.store(false, Ordering::Relaxed);
        drop(handle);
        Heap { handle: new }
    }
}

impl Inner {
    /// What a request comes to that this thread's cache serves; nothing else is done here. Filling
    /// with zeros, tracking and the pools that threads do not cache are [elsewhere](Inner::lease).
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

    /// This thread's cache for device memory on a stream, if requests are to go by it alone.
    #[inline]
    pub(crate) fn cache_for(&self, stream: &Stream) -> Option<&'static ThreadCache> {
        let cache = ThreadCache::find(&self.device, stream.id())?;
        (cache.is_plain() && !cache.is_closed()).then_some(cache)
    }

    /// Memory of a kind, accounted for, which the program asked for at `at`; and the cache of this
    /// thread that it came through, if there is one.
    #[inline(never)]
    pub(crate) fn lease(
        self: &Arc<Inner>,
        kind: MemoryKind,
        bytes: u64,
        stream: &Stream,
        zeroed: bool,
        at: &'static Location<'static>,
    ) -> Result<(Lease, Option<&'static ThreadCache>), Error> {
        // Before any lock is taken: a thread of a forked child's parent may have held it.
        self.context.check_alive()?;
        kind.check(self.context.info())?;
        let _time = measure::memory_management();
        let store = self.store(kind);
        store.check_device(stream)?;
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

    /// The same where `cache`, which is this thread's, has nothing: device memory, neither filled nor
    /// tracked.
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

    /// Takes a lease back that `cache`, which is this thread's, does not keep as things are.
    #[inline]
    pub(crate) fn free_unkept(
        &self,
        lease: Lease,
        cache: &'static ThreadCache,
    ) -> Result<(), Error> {
        self.check_alive_for(lease)?;
        let _time = measure::memory_management();
        self.device.free_locked(lease, None, false, Some(cache))
    }

    /// Takes a lease back in the order of `stream`, else of its own.
    #[inline(never)]
    pub(crate) fn free(
        self: &Arc<Inner>,
        kind: MemoryKind,
        lease: Lease,
        stream: Option<&Stream>,
        zeroed: bool,
    ) -> Result<(), Error> {
        self.check_alive_for(lease)?;
        // All work of a retired stream comes before what the heap knows of it, if the lease is of that
        // stream; else it is waited for.
        let stream = match stream {
            Some(stream) if stream.is_retired() => {
                if stream.id() != lease.stream_id {
                    stream.synchronize().inspect_err(|_| self.note_failed_free(kind))?;
                }
                None
            }
            stream => stream,
        };
        let _time = measure::memory_management();
        self.untrack(lease.track);
        let zeroed = zeroed || self.zero_on_free;
        let stream_id = stream.map_or(lease.stream_id, Stream::id);
        let cache = match stream {
            Some(stream) if stream.is_unannounced() => None,
            Some(stream) => ThreadCache::of(self, kind, stream_id, |s| Some(s.stream(stream))),
            None => ThreadCache::of(self, kind, stream_id, |s| s.order.known(stream_id)),
        };
        let freed = self.store(kind).free(lease, stream, zeroed, cache);
        if self.is_closing() {
            self.end_if_over();
        }
        freed
    }

    /// Takes a lease back in the order of its own stream and of `stream`. If these cannot be ordered,
    /// it stays with the heap, accounted as live: nothing else may have its memory.
    #[cold]
    pub(crate) fn free_ordered(
        self: &Arc<Inner>,
        kind: MemoryKind,
        lease: Lease,
        stream: &Stream,
    ) -> Result<(), Error> {
        let is_ordered = stream.is_retired() || stream.id() == lease.stream_id;
        if lease.key.is_none() || is_ordered {
            return self.free(kind, lease, Some(stream), false);
        }
        self.check_alive_for(lease)?;
        let ordered = self.store(kind).order_free(&lease, stream);
        match ordered.inspect_err(|_| self.note_failed_free(kind))? {
            FreeOn::Own => self.free(kind, lease, None, false),
            FreeOn::Theirs => self.free(kind, lease, Some(stream), false),
        }
    }

    /// Counts memory that could not be given back, and stays accounted as live.
    pub(crate) fn note_failed_free(&self, kind: MemoryKind) {
        let mut state = self.store(kind).lock();
        state.stats.failed_frees += 1;
        state.lost += 1;
    }

    /// Returns `true` if a block is handed out and taken back as it is: neither filled nor tracked.
    pub(crate) fn is_plain(&self) -> bool {
        let fills = self.zero_on_free || self.zero_on_alloc;
        !fills && self.context.block_checks().is_none() && self.tracker.tracking() == Tracking::Off
    }

    /// Lets another device reach the virtual memory that the heap has mapped.
    pub(crate) fn open_to(&self, reader: CUdevice) -> Result<(), SourceError> {
        self.device.lock().source.open_to(reader)
    }

    /// Returns `true` if the last handle went.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Nobody can ask the heap for memory any more: threads keep nothing from here on, and the heap
    /// ends with its last block.
    pub(crate) fn close(&self) {
        // Nothing is waited for in a forked child: another thread of the parent may have held it.
        if self.context.check_alive() != Err(Gone::Forked) {
            self.end_if_over();
        }
    }

    /// Logs that the last handle went, with the account of device memory.
    pub(crate) fn say_closed(&self) {
        if say::is_wanted() && self.context.check_alive() != Err(Gone::Forked) {
            let stats = self.device.lock().stats();
            say::debug(
                say::HEAP,
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

    /// Lets go of what keeps the heap alive, if nobody has a handle or a block of it.
    #[cold]
    pub(crate) fn end_if_over(&self) {
        // Held to the end: who asks for the heap again comes wholly before this or wholly after it.
        let handle = self.lock_handle();
        let has_ended = handle.strong_count() == 0;
        self.closing.store(has_ended, Ordering::Relaxed);
        let mut gone = Vec::new();
        // After a reset no block can be given back.
        if has_ended && self.context.check_alive() == Err(Gone::Reset) {
            gone = front::let_go(self, true);
        } else if has_ended {
            for store in self.stores() {
                store.lock().close(|_| true);
            }
            let is_over = |store: &Store| {
                let state = store.lock();
                // These count as live, and nobody has them.
                let nobodys = state.unzeroed.len() as u64 + state.lost;
                state.stats.live_allocations == nobodys
            };
            if self.stores().all(is_over) {
                gone = front::let_go(self, false);
            }
        }
        drop(handle);
        // Without the lock: the last one ends the heap.
        drop(gone);
    }

    fn lock_handle(&self) -> std::sync::MutexGuard<'_, Weak<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a lease of which nothing can be given back. What a reset took is not outstanding any
    /// more.
    fn check_alive_for(&self, lease: Lease) -> Result<(), Error> {
        let alive = self.context.check_alive();
        if alive == Err(Gone::Reset) {
            self.untrack(lease.track);
        }
        Ok(alive?)
    }

    #[inline]
    fn untrack(&self, track: Option<TrackId>) {
        if let Some(track) = track {
            self.tracker.freed(track);
        }
    }

    /// Names the lines that hold the most, where allocations are tracked.
    #[cold]
    fn with_consumers(&self, error: Error) -> Error {
        error.with_consumers(|kind| self.tracker.consumers(kind))
    }

    /// The pooled memory of a kind. Registered memory is not pooled; what is said of it here is
    /// said of pinned memory.
    pub(crate) fn store(&self, kind: MemoryKind) -> &Store {
        let (slot, limit) = match kind {
            MemoryKind::Device => return &self.device,
            MemoryKind::Unified => (&self.unified, None),
            MemoryKind::Pinned | MemoryKind::Registered => (&self.pinned, self.pinned_limit),
        };
        slot.get_or_init(|| {
            let limits = Limits { soft: None, hard: limit };
            let (pool, parts) =
                policy_and_source(&self.context, kind, self.pool, Tuning::default());
            let (context, reclaimers) = (self.context.clone(), self.reclaimers.clone());
            let keeps = self.thread_cache;
            Store::new(context, kind, pool, limits, keeps, reclaimers, parts)
        })
    }
}

impl Device {
    /// The device's own heap, as the environment says: the same one for everybody, for as long as
    /// anybody uses it. A program that wants another policy or limits
    /// [builds](Heap::builder) its own.
    ///
    /// # Errors
    ///
    /// The errors of [`HeapBuilder::build`].
    pub fn heap(&self) -> Result<Heap, Error> {
        self.context().check_alive()?;
        settings::warn_once();
        let mut shared = self.context().heap.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = shared.upgrade() {
            return Ok(Heap::of(inner));
        }
        let heap = Heap::builder(self).build_silently()?;
        *shared = Arc::downgrade(heap.handle.inner());
        drop(shared);
        heap.say_opened();
        Ok(heap)
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heap ({})", self.handle.pool)
    }
}
