//! Configuration of a heap.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use gpuheap_driver::nvtx::MemoryNames;
use gpuheap_pool::{Direct, Limits, MemorySource, PoolKind, Tuning};
use gpuheap_publish::Access;

use crate::device::{Context, Device, Holder};
use crate::error::{Error, ErrorKind};
use crate::heap::fallback::{Fallback, available};
use crate::heap::idle::IdleTrim;
use crate::heap::limits;
use crate::heap::open_scopes::OpenScopes;
use crate::heap::reclaimers::Reclaimers;
use crate::heap::registrations::Registrations;
use crate::heap::staging::Staging;
use crate::heap::store::{Parts, Store, policy_and_source};
use crate::heap::{Heap, HeapInner};
use crate::kind::MemoryKind;
use crate::settings::{self, Settings};
use crate::size::Size;
use crate::source::{OrderedSource, PlainSource};
use crate::total_limit::TotalLimit;
use crate::track::{Tracker, Tracking};

/// Default limit, in bytes, of a thread's cache for a stream. It is large enough for the working
/// set of a program, and small enough to keep little unused memory from other threads.
const THREAD_CACHE: u64 = 256 << 20;
const THREAD_CACHE_SHARE: u64 = 64;

/// Upper bound of the builder's `slack`, as a multiple of the peak of live memory.
const MOST_SLACK: f64 = 10.0;

/// Builder of a heap. It sets the pool, the limits and other settings.
#[derive(Clone, Debug)]
pub struct HeapBuilder {
    device: Device,
    environment: bool,
    choices: Choices,
}

/// Settings that the program chose. The environment fills in all other settings.
#[derive(Clone, Debug, Default)]
struct Choices {
    pool: Option<PoolKind>,
    limits: Limits,
    total_limit: Option<TotalLimit>,
    pinned_limit: Option<u64>,
    zero_on_free: Option<bool>,
    zero_on_alloc: Option<bool>,
    track: Option<Tracking>,
    record: Option<PathBuf>,
    /// `Some(None)` if the heap is not published, even if the environment requests it.
    publish: Option<Option<Access>>,
    idle_trim: Option<Duration>,
    thread_cache: Option<u64>,
    slack: Option<f64>,
    search_depth: Option<usize>,
    release_threshold: Option<u64>,
    staging: Staging,
    fallback: Option<Fallback>,
    /// `true` if memory is named for a profiler.
    nvtx: bool,
}

impl Heap {
    /// Makes a heap with the settings of the environment. The defaults are the pool `stitched` and
    /// no limits.
    ///
    /// # Errors
    ///
    /// The errors of [`build`](HeapBuilder::build).
    pub fn new(device: &Device) -> Result<Heap, Error> {
        Heap::builder(device).build()
    }

    /// Returns a builder, to choose pool, limits and other settings.
    pub fn builder(device: &Device) -> HeapBuilder {
        HeapBuilder::new(device)
    }
}

impl Device {
    /// Returns the device's own heap, with the settings of the environment. All callers share this
    /// heap, and it lives while any caller uses it. A program that needs another pool or other
    /// limits [builds](Heap::builder) its own heap.
    ///
    /// # Errors
    ///
    /// The errors of [`HeapBuilder::build`].
    pub fn heap(&self) -> Result<Heap, Error> {
        self.context().check_alive()?;
        settings::warn_once();
        let mut shared = self.context().heap.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shared.as_ref().and_then(Weak::upgrade);
        if let Some(inner) = known.and_then(HeapInner::from_holder) {
            return Ok(Heap::from_inner(inner));
        }
        let heap = Heap::builder(self).build_silently()?;
        let holder: Weak<dyn Holder> = Arc::<HeapInner>::downgrade(heap.inner());
        *shared = Some(holder);
        drop(shared);
        heap.log_opened();
        Ok(heap)
    }
}

/// Declares the builder's methods that set one choice each.
macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident($value:ident: $type:ty) => $($choice:ident).+,)*) => {
        impl HeapBuilder {
            $(
                $(#[$doc])*
                pub fn $method(mut self, $value: $type) -> HeapBuilder {
                    self.choices.$($choice).+ = Some($value);
                    self
                }
            )*
        }
    };
}

setters! {
    /// Sets the pool. The default is `stitched`. On a device without virtual memory management, the
    /// heap uses `split` instead, and the [status](crate::MemoryStatus) has the reason.
    pool(pool: PoolKind) => pool,
    /// Sets the hard limit: the heap never reserves more than `bytes` of device memory. The limit
    /// has to be at least 2 MiB, the driver's granularity. With the `driver` pool, it has to be at
    /// least 32 MiB.
    hard_limit(bytes: u64) => limits.hard,
    /// Sets the soft limit in bytes. While the heap has reserved more, each call that finds unused
    /// cached memory gives that memory back to the driver.
    soft_limit(bytes: u64) => limits.soft,
    /// Sets a limit that the heap shares with other heaps, even on other devices. Together the
    /// heaps never reserve more device memory than the limit. The limit has to be at least 2 MiB. A
    /// heap with the `driver` pool cannot have one, because that pool keeps memory that the heap
    /// does not count.
    total_limit(limit: TotalLimit) => total_limit,
    /// Sets the limit of pinned memory: the heap never reserves more than `bytes` of pinned host
    /// memory. With the pools `stitched`, `split` and `driver`, the limit has to be at least 2 MiB,
    /// because these pools take that much at a time. With the other pools, the limit has to be at
    /// least one byte.
    pinned_limit(bytes: u64) => pinned_limit,
    /// Sets whether freed memory, including its rounding, is filled with zeros before it can be
    /// reused. Use it if a later owner of the memory must not read the data.
    zero_on_free(zero: bool) => zero_on_free,
    /// Sets whether allocated memory, including its rounding, is filled with zeros.
    zero_on_alloc(zero: bool) => zero_on_alloc,
    /// Sets the amount of detail recorded for each outstanding allocation. By default, nothing is
    /// recorded.
    track(tracking: Tracking) => track,
    /// Starts a thread that gives back all cached memory of all kinds to the driver while the heap
    /// is idle. Idle means that nothing was allocated or freed for a time between `after` and twice
    /// `after`. Without this call, the heap has no such thread.
    idle_trim(after: Duration) => idle_trim,
    /// Sets how many bytes of freed memory each thread may cache for each stream. The thread's next
    /// requests are served from its cache without a lock. The default is 1/64 of the device's
    /// memory, or of the hard limit, and at most 256 MiB. With zero, every call of a thread uses
    /// the shared pool.
    ///
    /// If another thread frees a block that came through a thread's cache, that cache may take the
    /// block back. With such blocks, a cache may exceed `bytes` by a quarter. Memory in thread
    /// caches counts as cached, and all of it returns to the pool before a request fails.
    ///
    /// The pools `stitched`, `split` and `binned` have thread caches; other pools do not.
    thread_cache(bytes: u64) => thread_cache,
    /// Sets the slack of the `stitched` pool, as a fraction of the peak of live memory. The pool
    /// reserves up to that much beyond the peak before it maps free pieces into one range. Less
    /// slack packs memory tighter. More slack saves time if a program does not repeat itself.
    /// `benches/peers/RESULTS.md` has measurements.
    ///
    /// The default slack is the larger of two amounts:
    ///
    /// * 0.04 of the peak. For a program that makes the pool map again and again, the fraction
    ///   grows up to 0.35.
    /// * 1/72 of the device's memory, or of a lower limit. This amount shrinks once less than 22 %
    ///   of that memory is left, and is zero when none is left. While the amount is not zero, the
    ///   pool also takes larger pieces than a request needs.
    ///
    /// A slack set here is fixed, and does not depend on the device. With 0, the pool always maps
    /// free pieces before it grows beyond the peak. A negative value and NaN count as 0, and values
    /// above 10 as 10.
    slack(part: f64) => slack,
    /// Sets how many free blocks the `stitched` pool examines to find a block that a stream may use
    /// without waiting for another stream. The default is 8.
    search_depth(blocks: usize) => search_depth,
    /// Sets the bytes of freed memory that the pool of a `driver` heap keeps
    /// (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`). By default the pool keeps all freed memory. With
    /// zero, it keeps none beyond the next wait for a stream, an event or the device. A lower soft
    /// limit takes precedence. Other pools ignore this setting.
    release_threshold(bytes: u64) => release_threshold,
}

impl HeapBuilder {
    pub(crate) fn new(device: &Device) -> HeapBuilder {
        HeapBuilder { device: device.clone(), environment: true, choices: Choices::default() }
    }

    /// Ignores the environment: settings that are not made here have their defaults, as if no
    /// variable were set. There is no default limit on WSL2 either.
    pub fn without_environment(mut self) -> HeapBuilder {
        self.environment = false;
        self
    }

    /// Records all allocations and frees of the heap into a file, from the first allocation to the
    /// end of the heap. [`Heap::record`] has the details. Heaps that are given the same path share
    /// a file. Each emulated device has its own file.
    pub fn record(mut self, path: impl Into<PathBuf>) -> HeapBuilder {
        self.choices.record = Some(path.into());
        self
    }

    /// Publishes the heap: through a socket, other processes of this user can read its figures, its
    /// limits, and the lines that hold its memory. `gpuheap status` and `gpuheap doctor` read them.
    /// With [`Access::Control`], other processes can also flush the heap and set its limit. With
    /// `None`, the heap is not published, even if `GPUHEAP_PUBLISH` is set.
    ///
    /// The process's first published heap starts a thread that only answers questions. Allocations
    /// wait for this thread no longer than for any other thread of the program.
    pub fn publish(mut self, access: impl Into<Option<Access>>) -> HeapBuilder {
        self.choices.publish = Some(access.into());
        self
    }

    /// Sets the way in which large copies of pageable memory are staged.
    #[doc(hidden)]
    pub fn staging(mut self, staging: Staging) -> HeapBuilder {
        let Staging { threads, piece, slots, threshold } = staging;
        let (threads, piece, slots) = (threads.max(1), piece.clamp(1, 1 << 30), slots.clamp(1, 64));
        self.choices.staging = Staging { threads, piece, slots, threshold };
        self
    }

    /// Builds the heap. Building reserves no memory.
    ///
    /// Settings that are not made here are taken from the environment. The environment is read once
    /// in a process. On WSL2, a heap without any hard limit gets a hard limit of 80 % of the free
    /// memory. The limit is needed because the host lends more memory than it has, at the expense
    /// of its other programs.
    ///
    /// # Errors
    ///
    /// The device's context has ended; an environment variable is invalid; the soft limit is above
    /// the hard limit; the hard limit, the total limit or the pinned limit is below the memory that
    /// the pool takes at a time; the thread for [`idle_trim`](HeapBuilder::idle_trim) cannot be
    /// started; the pool is `driver`, and the heap has a total limit or the device has no
    /// stream-ordered pools; the file of the recording cannot be created; the heap cannot be
    /// published, after [`publish`](HeapBuilder::publish); a driver error.
    pub fn build(self) -> Result<Heap, Error> {
        if self.environment {
            settings::warn_once();
        }
        let heap = self.build_silently()?;
        heap.log_opened();
        Ok(heap)
    }

    /// Builds the heap as [`build`](HeapBuilder::build) does, without logging.
    pub(crate) fn build_silently(mut self) -> Result<Heap, Error> {
        let context = self.device.context().clone();
        context.check_alive()?;
        let is_publish_chosen = self.choices.publish.is_some();
        if self.environment {
            self.complete(&context, Settings::get()?);
        }
        limits::check(self.choices.limits)?;
        let (pool, fallback) = available(&context, self.choices.pool.unwrap_or(PoolKind::Stitched));
        self.choices.fallback = fallback;
        // Names are set after the probe of virtual memory, so that the probe's memory gets no name.
        if self.choices.nvtx
            && let Some(names) = MemoryNames::get()
        {
            context.memory_names.get_or_init(|| names);
        }
        limits::check_usable(self.choices.limits, pool)?;
        limits::check_pinned(self.choices.pinned_limit, pool)?;
        limits::check_total(self.choices.total_limit.as_ref(), pool)?;
        if self.environment && self.choices.limits.hard.is_none() && context.is_wsl2() {
            let (free, _) =
                PlainSource::new(context.clone(), MemoryKind::Device).device_memory()?;
            self.choices.limits.hard = Some(gpuheap_driver::wsl2::usable(free));
        }
        let limits = self.choices.limits;
        let (pool, parts): (PoolKind, Parts) = match pool {
            PoolKind::Driver if context.info().memory_pools => {
                let threshold = self.choices.release_threshold.unwrap_or(u64::MAX);
                let source = OrderedSource::new(context.clone(), threshold, limits)?;
                (pool, (Box::new(Direct::default()), Box::new(source)))
            }
            PoolKind::Driver => {
                return Err(ErrorKind::Unsupported.error(format!(
                    "{} has no stream-ordered pools; use the split pool",
                    self.device
                )));
            }
            pool => {
                let total = self.choices.total_limit.as_ref();
                policy_and_source(&context, MemoryKind::Device, pool, self.tuning(), total)
            }
        };
        let idle_trim = self.choices.idle_trim;
        let (record, publish) = (self.choices.record.take(), self.choices.publish.flatten());
        let heap = self.build_over(pool, parts);
        if let Some(path) = record {
            heap.inner().start_recording(&path, true)?;
        }
        if let Some(access) = publish {
            let published = heap.inner().publish(access);
            // Ignores a failure to publish if only the variable `GPUHEAP_PUBLISH` requested it.
            if is_publish_chosen {
                published?;
            }
        }
        if let Some(after) = idle_trim {
            let idle = IdleTrim::start(Arc::downgrade(heap.inner()), after).map_err(|error| {
                ErrorKind::HostResources.error(format!(
                    "no thread for the heap's idle trimming: {error}; build it without idle_trim"
                ))
            })?;
            heap.inner().idle.get_or_init(|| idle);
        }
        Ok(heap)
    }

    fn tuning(&self) -> Tuning {
        let mut tuning = Tuning::default();
        if let Some(part) = self.choices.slack {
            // `GPUHEAP_SLACK` has the same bounds. The cast changes NaN to zero.
            tuning.slack = (part.clamp(0.0, MOST_SLACK) * 1000.0) as u64;
            tuning.most_slack = tuning.slack;
            tuning.allows_waste = false;
        }
        tuning.search_depth = self.choices.search_depth.unwrap_or(tuning.search_depth).max(1);
        tuning
    }

    /// Takes the settings that the builder left open from the environment.
    fn complete(&mut self, context: &Context, settings: &Settings) {
        let total = context.total_memory();
        let bytes = |size: Option<Size>| size.map(|size| size.to_bytes(total));
        let chosen = &mut self.choices;
        chosen.pool = chosen.pool.or(settings.pool);
        chosen.limits.hard = chosen.limits.hard.or(bytes(settings.hard_limit));
        chosen.limits.soft = chosen.limits.soft.or(bytes(settings.soft_limit));
        let total = || settings.total_limit.map(TotalLimit::from_environment);
        chosen.total_limit = chosen.total_limit.take().or_else(total);
        chosen.track = chosen.track.or(settings.track);
        chosen.record = chosen.record.take().or_else(|| settings.record.clone());
        chosen.publish = chosen.publish.or(Some(settings.publish));
        chosen.zero_on_free = chosen.zero_on_free.or(settings.zero_on_free);
        chosen.zero_on_alloc = chosen.zero_on_alloc.or(settings.zero_on_alloc);
        chosen.slack = chosen.slack.or(settings.slack);
        chosen.search_depth = chosen.search_depth.or(settings.search_depth);
        chosen.release_threshold = chosen.release_threshold.or(bytes(settings.release_threshold));
        chosen.nvtx = settings.nvtx.unwrap_or(false);
    }

    pub(crate) fn build_over(self, pool: PoolKind, parts: Parts) -> Heap {
        let context = self.device.context().clone();
        let reclaimers = Arc::new(Reclaimers::default());
        let Choices { limits, thread_cache, .. } = self.choices;
        let total = self.choices.total_limit;
        let hard = limits.hard.into_iter().chain(total.as_ref().map(TotalLimit::bytes)).min();
        let room = context.total_memory().min(hard.unwrap_or(u64::MAX));
        let most = || THREAD_CACHE.min(room / THREAD_CACHE_SHARE);
        let thread_cache = Some(thread_cache.unwrap_or_else(most)).filter(|bytes| *bytes > 0);
        let device = Store::new(
            context.clone(),
            MemoryKind::Device,
            pool,
            limits,
            thread_cache,
            reclaimers.clone(),
            parts,
        )
        .under(total);
        let inner = Arc::new(HeapInner {
            context,
            pool,
            thread_cache,
            clones: Mutex::default(),
            closing: AtomicBool::new(false),
            fallback: self.choices.fallback,
            warnings: if self.environment { settings::warnings() } else { &[] },
            device,
            unified: OnceLock::new(),
            pinned: OnceLock::new(),
            stream: OnceLock::new(),
            staging: self.choices.staging,
            staging_stream: OnceLock::new(),
            pinned_limit: self.choices.pinned_limit,
            registered: Registrations::default(),
            reclaimers,
            zero_on_free: self.choices.zero_on_free.unwrap_or(false),
            zero_on_alloc: self.choices.zero_on_alloc.unwrap_or(false),
            tracker: Tracker::new(self.choices.track.unwrap_or_default()),
            idle: OnceLock::new(),
            publication: OnceLock::new(),
            scopes: OpenScopes::default(),
            visits: Arc::default(),
        });
        if let Some(names) = inner.context.memory_names.get() {
            inner.tracker.name_blocks(names);
        }
        let holder: Weak<dyn Holder> = Arc::<HeapInner>::downgrade(&inner);
        inner.context.holders.register(holder, inner.visits.clone());
        Heap::from_inner(inner)
    }
}
