//! What a heap is made of.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use gpuheap_pool::{Direct, Limits, MemorySource, Policy, PoolKind, Tuning, new_policy};

use crate::device::{Context, Device, Holder};
use crate::error::{Error, ErrorKind};
use crate::heap::fallback::{Fallback, available};
use crate::heap::idle::IdleTrim;
use crate::heap::limits;
use crate::heap::reclaimers::Reclaimers;
use crate::heap::registrations::Registrations;
use crate::heap::staging::Staging;
use crate::heap::store::Store;
use crate::heap::{Heap, Inner};
use crate::kind::MemoryKind;
use crate::settings::{self, Settings};
use crate::size::Size;
use crate::source::{OrderedSource, PlainSource};
use crate::track::{Tracker, Tracking};

/// What a thread keeps for a stream at most, unless the heap's builder says otherwise: what a program
/// uses again and again fits, and of what it does not, little is out of the others' reach.
const THREAD_CACHE: u64 = 256 << 20;
const THREAD_CACHE_SHARE: u64 = 64;

/// Slack is at most so many times the peak.
const MOST_SLACK: f64 = 10.0;

/// A policy and where its memory comes from.
pub(crate) type Parts = (Box<dyn Policy>, Box<dyn MemorySource>);

/// Chooses what a heap is made of.
#[derive(Clone, Debug)]
pub struct HeapBuilder {
    device: Device,
    pool: Option<PoolKind>,
    hard: Option<u64>,
    soft: Option<u64>,
    pinned_limit: Option<u64>,
    zero_on_free: Option<bool>,
    zero_on_alloc: Option<bool>,
    track: Option<Tracking>,
    environment: bool,
    idle_trim: Option<Duration>,
    thread_cache: Option<u64>,
    slack: Option<f64>,
    search_depth: Option<usize>,
    release_threshold: Option<u64>,
    staging: Staging,
    fallback: Option<Fallback>,
}

impl HeapBuilder {
    pub(crate) fn new(device: &Device) -> HeapBuilder {
        HeapBuilder {
            device: device.clone(),
            pool: None,
            hard: None,
            soft: None,
            pinned_limit: None,
            zero_on_free: None,
            zero_on_alloc: None,
            track: None,
            environment: true,
            idle_trim: None,
            thread_cache: None,
            slack: None,
            search_depth: None,
            release_threshold: None,
            staging: Staging::default(),
            fallback: None,
        }
    }

    /// The policy. Unless said otherwise `stitched`; on a device without virtual memory management
    /// `split`, in whose place it is there, and the [status](crate::MemoryStatus) says why.
    pub fn pool(mut self, pool: PoolKind) -> HeapBuilder {
        self.pool = Some(pool);
        self
    }

    /// Sets the hard limit: the heap never takes more than `bytes` of the device's memory from the
    /// driver. At least 2 MiB, which is what the driver hands out at a time; with the `driver` pool
    /// 32 MiB.
    pub fn hard_limit(mut self, bytes: u64) -> HeapBuilder {
        self.hard = Some(bytes);
        self
    }

    /// Bytes above which cached memory is given back at the next call that finds it out of use.
    pub fn soft_limit(mut self, bytes: u64) -> HeapBuilder {
        self.soft = Some(bytes);
        self
    }

    /// Bytes never to be exceeded by pinned memory of the host.
    pub fn pinned_limit(mut self, bytes: u64) -> HeapBuilder {
        self.pinned_limit = Some(bytes);
        self
    }

    /// Sets whether what is freed is filled with zeros, its rounding included, before anything else
    /// can have it. For data that must not be read by the next tenant.
    pub fn zero_on_free(mut self, zero: bool) -> HeapBuilder {
        self.zero_on_free = Some(zero);
        self
    }

    /// Sets whether what is allocated is filled with zeros, its rounding included.
    pub fn zero_on_alloc(mut self, zero: bool) -> HeapBuilder {
        self.zero_on_alloc = Some(zero);
        self
    }

    /// How much is remembered of each outstanding allocation; nothing unless said otherwise.
    pub fn track(mut self, tracking: Tracking) -> HeapBuilder {
        self.track = Some(tracking);
        self
    }

    /// Takes nothing from the environment, and no limit by default on WSL2: what is not said here
    /// is as if no variable were set.
    pub fn without_environment(mut self) -> HeapBuilder {
        self.environment = false;
        self
    }

    /// Has a thread give all cached memory back, of all kinds, once nothing was allocated or freed
    /// for as long as `after`, or up to twice that. No thread unless this is set.
    pub fn idle_trim(mut self, after: Duration) -> HeapBuilder {
        self.idle_trim = Some(after);
        self
    }

    /// Bytes that each thread may keep, for each stream, of what it freed, for its own next requests:
    /// what needs no lock. Unless said otherwise a 64th of the device's memory, or of the hard limit,
    /// and at most 256 MiB; with zero all threads share the pool at every call. What other threads
    /// free of a thread's blocks may come to a quarter of that besides. What they keep counts as
    /// cached, and all of it goes back to the pool before a request fails.
    ///
    /// The pools `stitched`, `split` and `binned` have such caches, the others do not.
    pub fn thread_cache(mut self, bytes: u64) -> HeapBuilder {
        self.thread_cache = Some(bytes);
        self
    }

    /// How much more than the peak of what is live the `stitched` pool takes from the driver before it
    /// maps free memory together, as a part of the peak: 0.04 unless said otherwise. Less packs
    /// tighter, more saves time where a program does not repeat itself; `benches/peers/RESULTS.md` has the
    /// curve. Said here, it stays; unless said, the pool goes up to 0.35 for a program that makes it
    /// map again and again. Below zero and no number count as zero, more than 10 as 10.
    pub fn slack(mut self, part: f64) -> HeapBuilder {
        self.slack = Some(part);
        self
    }

    /// How many free blocks the `stitched` pool looks at for one that a stream may use without waiting
    /// for another: 8 unless said otherwise.
    pub fn search_depth(mut self, blocks: usize) -> HeapBuilder {
        self.search_depth = Some(blocks);
        self
    }

    /// Bytes that the pool of a `driver` heap keeps of what is freed
    /// (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`): all unless said otherwise. With zero it keeps nothing
    /// beyond the next wait for a stream, an event or the device. A lower soft limit wins. Other
    /// pools ignore it.
    pub fn release_threshold(mut self, bytes: u64) -> HeapBuilder {
        self.release_threshold = Some(bytes);
        self
    }

    /// How large copies of pageable memory are staged.
    #[doc(hidden)]
    pub fn staging(mut self, staging: Staging) -> HeapBuilder {
        let Staging { threads, piece, slots, threshold } = staging;
        let (threads, piece, slots) = (threads.max(1), piece.clamp(1, 1 << 30), slots.clamp(1, 64));
        self.staging = Staging { threads, piece, slots, threshold };
        self
    }

    /// Makes the heap. Takes no memory yet.
    ///
    /// What is not said here is taken from the environment, which is read once in a process. On WSL2
    /// a heap that was given no hard limit at all gets one of 80 % of what is free: its host lends
    /// more than it has, and other programs of the host pay for it.
    ///
    /// # Errors
    ///
    /// A device that is gone; a variable of the environment that means nothing; a soft limit above
    /// the hard one; a hard limit below what the pool takes at a time; a thread for
    /// [`idle_trim`](HeapBuilder::idle_trim) that cannot be had; `driver` on a device without
    /// stream-ordered pools; a driver error.
    pub fn build(self) -> Result<Heap, Error> {
        if self.environment {
            settings::warn_once();
        }
        let heap = self.build_silently()?;
        heap.say_opened();
        Ok(heap)
    }

    /// Makes the heap as [`build`](HeapBuilder::build) does, and logs nothing.
    pub(crate) fn build_silently(mut self) -> Result<Heap, Error> {
        let context = self.device.context().clone();
        context.check_alive()?;
        if self.environment {
            self.complete(&context, Settings::get()?);
        }
        limits::check(Limits { soft: self.soft, hard: self.hard })?;
        let (pool, fallback) = available(&context, self.pool.unwrap_or(PoolKind::Stitched));
        self.fallback = fallback;
        limits::check_usable(Limits { soft: self.soft, hard: self.hard }, pool)?;
        if self.environment && self.hard.is_none() && context.is_wsl2() {
            let (free, _) =
                PlainSource::new(context.clone(), MemoryKind::Device).device_memory()?;
            self.hard = Some(free / 5 * 4);
        }
        let limits = Limits { soft: self.soft, hard: self.hard };
        let (pool, parts): (PoolKind, Parts) = match pool {
            PoolKind::Driver if context.has_pools() => {
                let threshold = self.release_threshold.unwrap_or(u64::MAX);
                let source = OrderedSource::new(context.clone(), threshold, limits)?;
                (pool, (Box::new(Direct::default()), Box::new(source)))
            }
            PoolKind::Driver => {
                return Err(ErrorKind::Unsupported.error(format!(
                    "{} has no stream-ordered pools; use the split pool",
                    self.device
                )));
            }
            pool => policy_and_source(&context, MemoryKind::Device, pool, self.tuning()),
        };
        let idle_trim = self.idle_trim;
        let heap = self.build_over(pool, parts.0, parts.1);
        if let Some(after) = idle_trim {
            let idle =
                IdleTrim::start(Arc::downgrade(heap.handle.inner()), after).map_err(|error| {
                    ErrorKind::HostResources.error(format!(
                    "no thread for the heap's idle trimming: {error}; build it without idle_trim"
                ))
                })?;
            heap.handle.idle.get_or_init(|| idle);
        }
        Ok(heap)
    }

    fn tuning(&self) -> Tuning {
        let mut tuning = Tuning::default();
        if let Some(part) = self.slack {
            // As much as the variable takes; a number that is none becomes zero.
            tuning.slack = (part.clamp(0.0, MOST_SLACK) * 1000.0) as u64;
            tuning.most_slack = tuning.slack;
        }
        tuning.search_depth = self.search_depth.unwrap_or(tuning.search_depth).max(1);
        tuning
    }

    /// Takes from the environment what was not said.
    fn complete(&mut self, context: &Context, settings: &Settings) {
        let total = context.total_memory();
        let bytes = |size: Option<Size>| size.map(|size| size.of(total));
        self.pool = self.pool.or(settings.pool);
        self.hard = self.hard.or(bytes(settings.hard_limit));
        self.soft = self.soft.or(bytes(settings.soft_limit));
        self.track = self.track.or(settings.track);
        self.zero_on_free = self.zero_on_free.or(settings.zero_on_free);
        self.zero_on_alloc = self.zero_on_alloc.or(settings.zero_on_alloc);
        self.slack = self.slack.or(settings.slack);
        self.search_depth = self.search_depth.or(settings.search_depth);
        self.release_threshold = self.release_threshold.or(bytes(settings.release_threshold));
    }

    pub(crate) fn build_over(
        self,
        pool: PoolKind,
        policy: Box<dyn Policy>,
        source: Box<dyn MemorySource>,
    ) -> Heap {
        let context = self.device.context().clone();
        let reclaimers = Arc::new(Reclaimers::default());
        let room = context.total_memory().min(self.hard.unwrap_or(u64::MAX));
        let most = || THREAD_CACHE.min(room / THREAD_CACHE_SHARE);
        let thread_cache = Some(self.thread_cache.unwrap_or_else(most)).filter(|bytes| *bytes > 0);
        let device = Store::new(
            context.clone(),
            MemoryKind::Device,
            pool,
            Limits { soft: self.soft, hard: self.hard },
            thread_cache,
            reclaimers.clone(),
            (policy, source),
        );
        let inner = Arc::new(Inner {
            context,
            pool,
            thread_cache,
            handle: Mutex::default(),
            closing: AtomicBool::new(false),
            fallback: self.fallback,
            warnings: if self.environment { settings::warnings() } else { &[] },
            device,
            unified: OnceLock::new(),
            pinned: OnceLock::new(),
            stream: OnceLock::new(),
            staging: self.staging,
            staging_stream: OnceLock::new(),
            pinned_limit: self.pinned_limit,
            registered: Registrations::default(),
            reclaimers,
            zero_on_free: self.zero_on_free.unwrap_or(false),
            zero_on_alloc: self.zero_on_alloc.unwrap_or(false),
            tracker: Tracker::new(self.track.unwrap_or_default()),
            idle: OnceLock::new(),
            visits: Arc::default(),
        });
        let holder: Weak<dyn Holder> = Arc::<Inner>::downgrade(&inner);
        inner.context.register_holder(holder, inner.visits.clone());
        Heap::of(inner)
    }
}

/// A policy over plain allocations of a kind, and which one it is. Only device memory has virtual
/// memory and stream-ordered pools of the driver's, so `stitched` and `driver` heaps keep their other
/// kinds by `split`.
pub(crate) fn policy_and_source(
    context: &Arc<Context>,
    kind: MemoryKind,
    pool: PoolKind,
    tuning: Tuning,
) -> (PoolKind, Parts) {
    let mut source = PlainSource::new(context.clone(), kind);
    let pool = match pool {
        PoolKind::Stitched if source.pages().is_none() => PoolKind::Split,
        PoolKind::Driver => PoolKind::Split,
        pool => pool,
    };
    (pool, (new_policy(pool, tuning), Box::new(source)))
}
