//! Meters measure the use of a heap in a section of a program.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use gpuheap_pool::AllocStats;
use serde::Serialize;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::store::{StoreState, Watched};
use crate::kind::MemoryKind;
use crate::measure::{Counting, ThreadUsage, thread_usage};
use crate::size::Bytes;
use crate::track::{Diff, Snapshot, Tracking, seconds};

/// Meter of a section of a program. It measures bytes, their peak, time, and the lines whose memory
/// changed. [`Heap::meter`] makes it. Meters may be nested or overlap, and be dropped in any order
/// and on any thread.
#[must_use]
pub struct Meter {
    heap: Heap,
    kind: MemoryKind,
    number: u64,
    begun: Instant,
    stats: AllocStats,
    sites: Snapshot,
    thread: Option<Thread>,
}

/// Memory use of the thread that made a meter, at the time when the meter was made.
struct Thread {
    id: ThreadId,
    before: ThreadUsage,
    _counting: Counting,
}

/// Use of a heap since a [`Meter`] was made, in bytes unless said otherwise.
///
/// Its text has the figures in one line. If the heap tracks allocations, the text also lists the
/// lines of the program that hold more or less than before.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Reading {
    /// Time since the meter was made; seconds in JSON.
    #[serde(rename = "elapsed_seconds", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// Bytes live when the meter was made.
    pub live_before: u64,
    /// Bytes live now.
    pub live: u64,
    /// High-water mark of `live`, including memory that was live when the meter was made. Exact if
    /// one thread uses the heap. Otherwise it has the same error as
    /// [`live_peak`](AllocStats::live_peak).
    pub live_peak: u64,
    /// Number of allocations, by all threads.
    pub allocations: u64,
    /// Bytes of these allocations, as requested.
    pub allocated_bytes: u64,
    /// Number of frees, by all threads.
    pub frees: u64,
    /// Bytes taken from the driver.
    pub taken: u64,
    /// Bytes given back to the driver.
    pub given_back: u64,
    /// Use of memory by the thread that made the meter. `None` without
    /// [`with_thread`](Meter::with_thread), and if another thread reads the meter.
    pub thread: Option<ThreadUsage>,
    /// Change of the outstanding allocations of every kind, by site. Empty without
    /// [tracking](crate::HeapBuilder::track).
    pub changes: Diff,
}

impl Reading {
    /// Returns the peak of live bytes, minus the bytes that were live when the meter was made.
    pub fn peak(&self) -> u64 {
        self.live_peak.saturating_sub(self.live_before)
    }

    /// Returns the reading as JSON, keyed by the names of the fields. The names are stable.
    /// Resolves the call stacks of `changes`.
    pub fn to_json(&self) -> String {
        // This cannot fail, because the fields are names, numbers and texts.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Writes `0.001234 s, 3 allocations: 4 MiB, peak 2 MiB, 12.3 % of the time in memory management`,
/// and then the lines that changed. Zeros are left out.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.allocations == 1 { "" } else { "s" };
        write!(f, "{:.6} s, {} allocation{plural}", self.elapsed.as_secs_f64(), self.allocations)?;
        if self.allocations > 0 {
            write!(f, ": {}, peak {}", Bytes(self.allocated_bytes), Bytes(self.peak()))?;
        }
        let spent = self.thread.map_or(Duration::ZERO, |thread| thread.memory_management);
        if !spent.is_zero() {
            let percent = 100.0 * spent.as_secs_f64() / self.elapsed.as_secs_f64();
            write!(f, ", {percent:.1} % of the time in memory management")?;
        }
        if self.changes.tracking == Tracking::Off {
            return Ok(());
        }
        write!(f, "\n{}", self.changes)
    }
}

impl Heap {
    /// Begins to measure the use of device memory, until the meter is dropped. Counts all threads.
    /// Flushes threads' caches, as [`usage`](Heap::usage) does, and does not wait for the device.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
    /// let target = heap.target()?;
    /// let meter = heap.meter()?;
    /// let kept = target.zeroed::<u8, _>(1000)?;
    /// drop(target.zeroed::<u8, _>(2000)?);
    /// let reading = meter.read()?;
    /// assert_eq!((reading.allocations, reading.allocated_bytes), (2, 3000));
    /// assert_eq!((reading.peak(), reading.live), (3000, kept.bytes()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset.
    pub fn meter(&self) -> Result<Meter, Error> {
        self.meter_of(MemoryKind::Device)
    }

    /// Begins to measure the use of one kind of memory, like [`meter`](Heap::meter) for device
    /// memory. A heap does not allocate registered memory: for that kind, the meter measures pinned
    /// memory.
    ///
    /// # Errors
    ///
    /// The errors of [`meter`](Heap::meter).
    pub fn meter_of(&self, kind: MemoryKind) -> Result<Meter, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        self.check_alive()?;
        let sites = self.inner().tracker.snapshot();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut state = self.store(kind).lock();
        let stats = state.stats();
        state.watch(number, stats.live);
        drop(state);
        Ok(Meter {
            heap: self.clone(),
            kind,
            number,
            begun: Instant::now(),
            stats,
            sites,
            thread: None,
        })
    }
}

impl Meter {
    /// Also measures the calling thread: its allocations of every kind and from any heap, and its
    /// time in allocating and freeing. While the process has such a meter, each request and each
    /// free on any thread reads the clock two more times.
    ///
    /// ```
    /// # fn main() -> Result<(), gpuheap::Error> {
    /// let heap = gpuheap::Device::open("emulated:1GiB")?.heap()?;
    /// let meter = heap.meter()?.with_thread();
    /// let array = heap.target()?.kind(gpuheap::MemoryKind::Pinned).zeroed::<u8, _>(1000)?;
    /// let reading = meter.read()?;
    /// let thread = reading.thread.unwrap();
    /// assert_eq!((reading.allocations, thread.allocations), (0, 1)); // the meter is of device memory
    /// assert!(thread.memory_management <= reading.elapsed);
    /// # drop(array);
    /// # Ok(()) }
    /// ```
    pub fn with_thread(mut self) -> Meter {
        let id = std::thread::current().id();
        self.thread = Some(Thread { id, before: thread_usage(), _counting: Counting::begin() });
        self
    }

    /// Returns the use of the heap since the meter was made, and continues to measure. Does not
    /// wait for the device.
    ///
    /// # Errors
    ///
    /// The process is a forked child; the device was reset.
    pub fn read(&self) -> Result<Reading, Error> {
        let elapsed = self.begun.elapsed();
        self.heap.check_alive()?;
        let own = self.thread.as_ref().filter(|one| one.id == std::thread::current().id());
        let thread = own.map(|Thread { before, .. }| {
            let now = thread_usage();
            ThreadUsage {
                allocations: now.allocations - before.allocations,
                allocated_bytes: now.allocated_bytes - before.allocated_bytes,
                memory_management: now.memory_management - before.memory_management,
            }
        });
        let mut state = self.heap.store(self.kind).lock();
        let stats = state.stats();
        let live_peak = state.live_peak_of(self.number);
        drop(state);
        let since =
            |count: fn(&AllocStats) -> u64| count(&stats).saturating_sub(count(&self.stats));
        Ok(Reading {
            elapsed,
            live_before: self.stats.live,
            live: stats.live,
            live_peak,
            allocations: since(|stats| stats.allocations),
            allocated_bytes: since(|stats| stats.allocated_bytes),
            frees: since(|stats| stats.frees),
            taken: since(|stats| stats.taken + stats.given_back),
            given_back: since(|stats| stats.given_back),
            thread,
            changes: self.heap.inner().tracker.snapshot().diff(&self.sites),
        })
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // A forked child skips this: another thread of the parent may have held the lock.
        if !self.heap.is_forked() {
            self.heap.store(self.kind).lock().watched.retain(|one| one.number != self.number);
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meter of {} memory", self.kind)
    }
}

impl StoreState {
    /// Begins to record a peak for the meter `number`, from `live` bytes.
    fn watch(&mut self, number: u64, live: u64) {
        self.note_peak();
        self.watched.push(Watched { number, peak: live });
    }

    /// Returns the high-water mark of a meter, computed from the current statistics.
    fn live_peak_of(&mut self, number: u64) -> u64 {
        self.note_peak();
        let watched = self.watched.iter().find(|one| one.number == number);
        watched.map_or(self.stats.live, |watched| watched.peak)
    }

    fn note_peak(&mut self) {
        let peak = self.stats.take_recent_peak();
        self.watched.iter_mut().for_each(|one| one.peak = one.peak.max(peak));
    }
}
